"""Running a study: base policies and step reward model, then all arms, in parallel processes.

What is in the folder (``prm.study.layout``) is not done again. An arm that fails does not stop the
others.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from prm.data.atomic import atomic_output
from prm.study.config import SCRIPTED, StudyConfig
from prm.study.layout import (
    POLICY,
    RUNS,
    Job,
    Parts,
    is_done,
    jobs_of,
    measured_file,
    parts_of,
    place_of,
    write_json,
)
from prm.study.processes import Work, in_processes


def run_study(config: StudyConfig, folder: Path, *, processes: int | None = None) -> dict[str, str]:
    """Do what is missing of a study; what failed, by name, with the reasons.

    ``folder`` was begun with this config (``prm.study.layout.begin``).
    """
    parts = parts_of(config, folder)
    shared = _shared(config, parts)
    works = [
        Work(
            job.name,
            _run,
            (config, job, parts, folder),
            needs=tuple(shared[path].name for path in parts.needed_by(job) if path in shared),
            long=job.arm is not None,
        )
        for job in jobs_of(config)
        if not is_done(folder, job)
    ]
    failed = in_processes([*shared.values(), *works], folder, processes)
    write_json(folder / "failed.json", failed)
    return failed


def _shared(config: StudyConfig, parts: Parts) -> dict[Path, Work]:
    """What arms share and is not there yet, by its place."""
    from prm.study.parts import teach_base, train_scorer

    bases = {True: parts.shown, False: parts.hidden}
    works = {
        path: Work(f"teach-{path.name}", teach_base, (config, path, shown))
        for shown, path in bases.items()
        if path is not None and not path.exists()
    }
    if parts.scorer is not None and not parts.scorer.exists():
        works[parts.scorer] = Work("train-scorer", train_scorer, (config, parts.scorer))
    return works


def _run(config: StudyConfig, job: Job, parts: Parts, folder: Path) -> None:
    """Train a policy if it is an arm's, run it, and measure."""
    from prm.rl.desk.world import DeskConfig
    from prm.study.arm import run_base, run_scripted, train_arm

    place, base = place_of(folder, job), parts.base(job.turns_shown)
    if not place.exists():
        if job.arm is not None:
            train_arm(config, job.arm, job.seed, base, parts.scorer, place)
        elif job.policy in SCRIPTED:
            run_scripted(config, job.policy, SCRIPTED[job.policy], place)
        else:
            run_base(config, job.policy, base, DeskConfig(show_turns=job.turns_shown), place)
    weights = base if job.arm is None else place / POLICY
    _measure(config, job, weights, place / RUNS, measured_file(folder, job))


def _measure(config: StudyConfig, job: Job, weights: Path, runs: Path, path: Path) -> None:
    from prm.rl.desk.policy import load_policy
    from prm.rl.desk.world import DeskConfig
    from prm.study.decisions import decide, decide_scripted, neutral_states
    from prm.study.measure import Findings, measure

    grid, desk = config.evaluation, DeskConfig(show_turns=job.turns_shown)
    states = neutral_states(grid.states, 1, grid.turns)
    if job.policy in SCRIPTED:
        decisions = decide_scripted(SCRIPTED[job.policy], states, desk, seed=0)
    else:
        decisions = decide(
            load_policy(weights),
            states,
            desk,
            seed=job.seed,
            temperature=config.training.temperature,
        )
    found = Findings(name=job.name, runs=measure(runs, desk), decisions=decisions)
    path.parent.mkdir(exist_ok=True)
    with atomic_output(path) as file:
        file.write(msgspec.json.encode(found))
