"""Running a study: base policy, step reward model, arms in parallel processes, and resuming.

    FOLDER/study.json     the config, with which a resumed study must agree
    FOLDER/base/          the base policy
    FOLDER/scorer/        the step reward model, if an arm needs one
    FOLDER/arms/NAME-sN/  one for each arm and seed, there when it is done; NAME as a file name
    FOLDER/failed.json    arms that failed, and why

A part is there or not: a study that was killed goes on with what is missing. An arm that fails does
not stop the others.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import msgspec

from prm.errors import PRMError
from prm.study.config import BASE, Arm, StudyConfig


class Job(NamedTuple):
    """An arm with a seed; no arm = the base policy."""

    arm: Arm | None
    seed: int

    @property
    def name(self) -> str:
        """Of the folder."""
        if self.arm is None:
            return BASE
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', self.arm.name).strip('-')}-s{self.seed}"


def run_study(config: StudyConfig, folder: Path, *, processes: int | None = None) -> dict[str, str]:
    """Do what is missing of a study; the arms that failed, with the reason of each.

    Raises :class:`PRMError` when ``folder`` holds another study, or a base cannot be had.
    """
    begin(config, folder)
    base, scorer = _prepare(config, folder)
    arms = [Job(arm, seed) for seed in config.seeds for arm in config.arms]
    jobs = [job for job in [Job(None, 0), *arms] if not _place(folder, job).exists()]
    failed: dict[str, str] = {}
    began, done = time.monotonic(), 0
    # Two at least would run on any machine; a process has one thread, as tiny models like it.
    workers = processes or max(1, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting: dict[Future[None], Job] = {
            pool.submit(_run, config, job, base, scorer, _place(folder, job)): job for job in jobs
        }
        while waiting:
            finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                job = waiting.pop(future)
                done += 1
                error = future.exception()
                if error is not None:
                    failed[job.name] = " ".join(f"{type(error).__name__}: {error}".split())
                left = (time.monotonic() - began) / done * len(waiting)
                _tell(job.name, "failed" if error else "done", done, len(jobs), left)
    (folder / "failed.json").write_text(json.dumps(failed, indent=1) + "\n")
    return failed


def begin(config: StudyConfig, folder: Path) -> None:
    """Make the folder of a study, or see that it is this study's."""
    mine = json.loads(msgspec.json.encode(config))
    path = folder / "study.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise PRMError(f"{folder}: expected a new or empty folder, or that of a study")
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(mine, indent=1) + "\n")
        return
    theirs = json.loads(path.read_text())
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            raise PRMError(
                f"{folder}: it holds a study with another {name!r}: {theirs.get(name)!s:.80}; "
                f"this one has {mine.get(name)!s:.80}; give a new folder"
            )


def _prepare(config: StudyConfig, folder: Path) -> tuple[Path, Path | None]:
    """The base policy and, where an arm needs it, the step reward model."""
    from prm.study.parts import teach_base, train_scorer

    base = Path(config.base.folder) if config.base.folder else folder / "base"
    if not base.exists():
        _say("the base policy is taught")
        teach_base(config, base)
    needed = any(
        arm.shaping_config().mode != "terminal" and arm.scores != "oracle" for arm in config.arms
    )
    if not needed:
        return base, None
    scorer = Path(config.scorer.folder) if config.scorer.folder else folder / "scorer"
    if not scorer.exists():
        _say("the step reward model is trained")
        train_scorer(config, scorer)
    return base, scorer


def _run(config: StudyConfig, job: Job, base: Path, scorer: Path | None, place: Path) -> None:
    """One job, in a process of its own."""
    import torch

    from prm.study.arm import evaluate_base, train_arm

    torch.set_num_threads(1)
    if job.arm is None:
        evaluate_base(config, base, place)
    else:
        train_arm(config, job.arm, job.seed, base, scorer, place)


def _place(folder: Path, job: Job) -> Path:
    return folder / "arms" / job.name


def _tell(name: str, how: str, done: int, total: int, seconds_left: float) -> None:
    minutes = f", about {seconds_left / 60:.0f} min left" if done < total else ""
    _say(f"{done} of {total}: {name} {how}{minutes}")


def _say(text: str) -> None:
    print(f"study: {text}", file=sys.stderr, flush=True)
