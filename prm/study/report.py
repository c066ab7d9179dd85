"""All that a study found, from its folder or from traces of policies trained anywhere.

Left out: figures and the page (``prm.study.page``), training (``prm.study.run``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from prm.data.files import read_traces
from prm.data.terminal import json_text
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.eval.budget_report import BudgetReport, budget_report
from prm.eval.budget_runs import BudgetOptions
from prm.eval.estimate import Estimate
from prm.eval.hacking import HackingReport, hacking_report
from prm.study.arm import KEPT_EVERY, SEED_KEY, UPDATE_KEY
from prm.study.claims import Claim, Roles, claims, roles
from prm.study.config import StudyConfig
from prm.study.findings import Policies, as_json
from prm.study.known import Known, known_answers
from prm.study.layout import (
    RUNS,
    TRAINING,
    Job,
    is_done,
    jobs_of,
    measured_file,
    place_of,
    seconds_of,
)
from prm.study.learning import Learning, learning
from prm.study.measure import Findings
from prm.study.measures import MEASURES
from prm.study.words import answer, budget_answer

WATCH_RESAMPLES = 200
"""Of the hacking watch, which goes draw by draw."""


class Trained(NamedTuple):
    """What is known of arms that the study trained itself."""

    config: StudyConfig
    roles: Roles
    policies: Policies
    claims: list[Claim]
    known: list[Known]
    learned: dict[str, Learning]
    watched: dict[str, HackingReport]
    """Of the arms with scores, over the updates of training."""
    failed: dict[str, str]
    """Arms that failed, by the name of their folder, and why."""
    seconds: dict[str, float]
    """Of training, by the name of the folder; alone in not being the same when it is done again."""


class StudyReport(NamedTuple):
    """The answer and what it rests on."""

    answer: list[str]
    """Sentences, three where the arms allow."""
    budget: BudgetReport
    trained: Trained | None
    """None for policies of which only runs are known."""

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not defined is None. ``seconds`` alone is not reproducible."""
        found: dict[str, Any] = {"answer": self.answer, "budget": self.budget.as_json()}
        one = self.trained
        if one is None:
            return found
        return {
            "answer": self.answer,
            "claims": [claim.as_json() for claim in one.claims],
            "known": [each.as_json() for each in one.known],
            "policies": {name: _policy_json(one, name) for name in one.policies.names},
            "learning": {name: found.as_json() for name, found in one.learned.items()},
            "hacking": {
                name: {"verdict": watch.verdict(), **watch.as_json()}
                for name, watch in one.watched.items()
            },
            "budget": self.budget.as_json(),
            "failed": one.failed,
            "study": msgspec.to_builtins(one.config),
            "seconds": one.seconds,
        }

    def as_text(self) -> str:
        """Strict JSON."""
        return json_text(self.as_json())


def study_report(
    config: StudyConfig, folder: Path, failed: Mapping[str, str], *, resamples: int
) -> StudyReport:
    """The report of a study from what is in its folder.

    Raises :class:`PRMError` when no arm is done, or a file was damaged.
    """
    try:
        return _study_report(config, folder, failed, resamples=resamples)
    except PRMError as error:
        if str(folder) not in str(error):
            raise
        raise PRMError(
            f"{error}; what is removed from {folder}/arms and {folder}/measured is done again"
        ) from error


def _study_report(
    config: StudyConfig, folder: Path, failed: Mapping[str, str], *, resamples: int
) -> StudyReport:
    done = [job for job in jobs_of(config) if is_done(folder, job)]
    if not any(job.arm for job in done):
        first, reason = next(iter(failed.items()), ("", "nothing was run"))
        raise PRMError(f"all arms failed; the first, {first}: {reason}")
    for job in jobs_of(config):
        if job.arm is None and job not in done:
            reason = failed.get(job.name, "it was not run")
            raise PRMError(f"all is compared with {job.policy!r}, and it failed: {reason}")
    found = _findings(folder, done)
    policies = Policies(
        {name: [one.runs for one in seeds] for name, seeds in found.items()},
        {name: [one.decisions for one in seeds] for name, seeds in found.items()},
        resamples=resamples,
    )
    parts = roles(config, policies.names)
    places: dict[str, list[Path]] = {}
    for job in done:
        if job.arm is not None:
            places.setdefault(job.policy, []).append(place_of(folder, job))
    updates = config.training.updates
    learned = {name: learning(folders, updates) for name, folders in places.items()}
    grid = config.evaluation
    options = BudgetOptions(
        source="rerun",
        k=tuple(k for k in (1, 2, 4, 8, 16) if k <= grid.samples),
        t=tuple(sorted(grid.turns)),
        primary=(config.primary.k, config.primary.t),
        against=parts.outcome,
        seed_key=SEED_KEY,
        resamples=resamples,
    )
    budget = budget_report([trace for job in done for trace in _bare(folder, job)], options)
    trained = Trained(
        config=config,
        roles=parts,
        policies=policies,
        claims=claims(config, policies),
        known=known_answers(config, policies),
        learned=learned,
        watched=_watched(config, places),
        failed=dict(failed),
        seconds=seconds_of(config, folder),
    )
    primary = config.primary.k, config.primary.t
    planned = roles(config, [arm.name for arm in config.arms])
    return StudyReport(answer(policies, parts, planned, learned, primary), budget, trained)


def traces_report(traces: Sequence[Trace], options: BudgetOptions) -> StudyReport:
    """The budget part of the report, for policies trained anywhere."""
    budget = budget_report(traces, options)
    return StudyReport(budget_answer(budget), budget, None)


def regret_to_trained(trained: Trained, name: str) -> dict[int, Estimate]:
    """T -> success at T of the specialist that was trained at T minus that of the policy.

    The specialists are named beforehand, so that no luck of a choice is in it.
    """
    policies, specialists = trained.policies, trained.roles.specialists
    return {
        limit: policies.difference(specialists[limit], name, MEASURES["success"])[place]
        for place, limit in enumerate(policies.turns)
        if limit in specialists
    }


def _policy_json(one: Trained, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"n_seeds": one.policies.n_seeds[name]}
    for key, measure in MEASURES.items():
        found[key] = as_json(one.policies.estimate(name, measure))
    found["regret_to_trained"] = {
        str(limit): estimate.as_json() for limit, estimate in regret_to_trained(one, name).items()
    }
    return found


def _findings(folder: Path, done: Sequence[Job]) -> dict[str, list[Findings]]:
    found: dict[str, list[Findings]] = {}
    for job in done:
        path = measured_file(folder, job)
        try:
            one = msgspec.json.decode(path.read_bytes(), type=Findings)
        except msgspec.DecodeError as error:
            raise PRMError(f"{path}: expected what was measured: {error}") from error
        if one.name != job.name:
            raise PRMError(f"{path}: expected what was measured of {job.name}, found {one.name}")
        found.setdefault(job.policy, []).append(one)
    return found


def _bare(folder: Path, job: Job) -> Iterator[Trace]:
    """The runs of a policy without their texts, of which there would be gigabytes."""
    for trace in read_traces(place_of(folder, job) / RUNS):
        meta = {SEED_KEY: trace.meta[SEED_KEY]}
        yield msgspec.structs.replace(trace, messages=[], tools=None, meta=meta)


def _watched(config: StudyConfig, places: Mapping[str, Sequence[Path]]) -> dict[str, HackingReport]:
    watched = {}
    # A change needs two updates of which traces were kept.
    by = UPDATE_KEY if config.training.updates > KEPT_EVERY else None
    for arm in config.arms:
        if arm.shaping_config().mode == "terminal" or arm.name not in places:
            continue
        traces = [trace for folder in places[arm.name] for trace in read_traces(folder / TRAINING)]
        watched[arm.name] = hacking_report(traces, by=by, resamples=WATCH_RESAMPLES)
    return watched
