"""What is read from the runs of one policy: numbers for each task, at each T.

Everything the report says about a policy is computed from these tables, so that tasks and seeds
can be resampled without reading the runs again. Conditional shares ("success after an error") are
kept as two tables, the part and its weight, whose ratio is taken after resampling.

Axes: N tasks in the order of the evaluation, m budgets T.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from prm.data.files import read_traces
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.eval.repetition import repeated_steps
from prm.rl.desk.play import annotate
from prm.rl.desk.text import Call, read_call, read_prompt
from prm.rl.desk.world import DeskConfig
from prm.study.decisions import Decisions

TURNS_AFTER = 2
"""An error counts for natural recovery if at least so many turns are left after it."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the samples of each task; every table is [T][task]."""

    tasks: list[str]
    turns: list[int]
    """The grid of T."""
    hops: list[int]
    """Links to follow, of each task."""
    success: list[list[float]]
    steps: list[list[float]]
    """Turns used."""
    checks: list[list[float]]
    """Calls of refresh in a run."""
    repeated: list[list[float]]
    """Share of the steps of a run that only repeat a call."""
    cut: list[list[float]]
    """Share of runs that ran out of turns."""
    optimal: list[list[float]]
    """Share of optimal actions among those taken where V > 0, under the policy's own states; part
    of a ratio with ``judged``."""
    judged: list[list[float]]
    erred: list[list[float]]
    """Runs whose first action that is not optimal leaves ``TURNS_AFTER`` turns or more: weight."""
    recovered: list[list[float]]
    """Of these, the ones that succeed: part."""

    def __post_init__(self) -> None:
        shape = len(self.turns), len(self.tasks)
        for name in _COLUMNS:
            table = np.array(getattr(self, name), dtype=np.float64)
            if table.shape != shape or not (table >= 0).all():
                raise ValueError(f"{name}: expected {shape} numbers of 0 or more")
        for name in ("success", "repeated", "cut", "erred", "recovered"):
            if np.max(getattr(self, name)) > 1:
                raise ValueError(f"{name}: expected shares of at most 1")


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one policy and one seed."""

    name: str
    """Of the job, so that a file that was moved is noticed."""
    runs: Measured
    decisions: Decisions


def measure(path: Path, desk: DeskConfig) -> Measured:
    """Read the runs of one policy and one seed.

    Raises :class:`PRMError` when a task was not run at each T.
    """
    rows: dict[tuple[int, str], list[NDArray[np.float64]]] = {}
    hops: dict[str, int] = {}
    for trace in read_traces(path):
        limit = trace.outcome.max_turns
        assert limit is not None
        rows.setdefault((limit, trace.task_id), []).append(_row(trace, desk))
        hops[trace.task_id] = len(read_prompt(trace.prompt()).path)
    turns = sorted({limit for limit, _ in rows})
    tasks = list(hops)
    for limit in turns:
        for task in tasks:
            if (limit, task) not in rows:
                raise PRMError(f"{path}: task {task!r} was not run at T = {limit}")
    tables = {
        name: [
            [float(np.mean([row[i] for row in rows[limit, task]])) for task in tasks]
            for limit in turns
        ]
        for i, name in enumerate(_COLUMNS)
    }
    return Measured(tasks=tasks, turns=turns, hops=list(hops.values()), **tables)


_COLUMNS = (
    "success", "steps", "checks", "repeated", "cut", "optimal", "judged", "erred", "recovered",
)  # fmt: skip


def _row(trace: Trace, desk: DeskConfig) -> NDArray[np.float64]:
    """The columns of one run."""
    judged = [step.labels["optimal"] for step in annotate(trace, desk).steps]
    known = [label for label in judged if label is not None]
    assert trace.outcome.max_turns is not None
    first = judged.index(0.0) if 0.0 in judged else None
    erred = first is not None and trace.outcome.max_turns - (first + 1) >= TURNS_AFTER
    success = bool(trace.outcome.success)
    return np.array(
        [
            success,
            trace.n_steps,
            sum(_refreshes(trace)),
            np.nansum(repeated_steps(trace)) / trace.n_steps,
            trace.outcome.status == "out_of_turns",
            sum(known),
            len(known),
            erred,
            erred and success,
        ],
        dtype=np.float64,
    )


def _refreshes(trace: Trace) -> Sequence[bool]:
    calls = [read_call(window.action) for window in trace.windows()]
    return [isinstance(call, Call) and call.tool == "refresh" for call in calls]
