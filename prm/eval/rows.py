"""Traces laid out flat: one row a step, with the numbers of its trace and its task.

Tasks are numbered in the order of their ids, so that nothing that is resampled by task depends on
the order in which traces come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from prm.data.trace import Trace
from prm.errors import PRMError
from prm.eval.steps import Floats, Ints
from prm.eval.traces import first_errors

Kind = Literal["labels", "scores"]


class Rows(NamedTuple):
    """M steps of B traces of N tasks."""

    trace: Ints
    """(M,) number of the row's trace."""
    step: Ints
    """(M,) place in that trace."""
    task: Ints
    """(M,) number of the row's task."""
    trace_task: Ints
    """(B,) number of the trace's task."""
    n_tasks: int

    def first_errors(self, error: Floats) -> Floats:
        """(B,) the first error of each trace, from (M,) errors."""
        return first_errors(error, self.trace, self.step, len(self.trace_task))


def numbered(names: Sequence[str]) -> tuple[list[str], Ints]:
    """The different names in order, and the number of each of the M given: (M,).

    Not NumPy's ``unique``, whose strings have one width and lose trailing NULs.

    >>> numbered(["b", "a", "b"])
    (['a', 'b'], array([1, 0, 1]))
    """
    different = sorted(set(names))
    place = {name: number for number, name in enumerate(different)}
    return different, np.array([place[name] for name in names], dtype=np.int64)


def success_column(traces: Sequence[Trace]) -> Floats:
    """(B,) 1.0 or 0.0; NaN where success is not known or says nothing about the policy."""
    outcomes = [trace.outcome for trace in traces]
    known = [outcome.success if outcome.valid else None for outcome in outcomes]
    return np.array([np.nan if success is None else float(success) for success in known])


def rows_of(traces: Sequence[Trace]) -> Rows:
    """The layout of all steps of ``traces``, in order."""
    ids, trace_task = numbered([trace.task_id for trace in traces])
    n_steps = np.array([trace.n_steps for trace in traces])
    number = np.repeat(np.arange(len(traces)), n_steps)
    step = np.concatenate([np.arange(n) for n in n_steps])
    return Rows(number, step, trace_task[number], trace_task, len(ids))


def step_column(traces: Sequence[Trace], kind: Kind, name: str) -> Floats:
    """(M,) the labels or scores called ``name``; NaN where there is none.

    Raises :class:`PRMError`, with the names that there are, when no step has one.
    """
    read = Trace.step_labels if kind == "labels" else Trace.step_scores
    column = np.concatenate([read(trace, name) for trace in traces] or [np.empty(0)])
    present = {key for trace in traces for step in trace.steps for key in getattr(step, kind)}
    _check_known(column, "step", kind, name, present)
    return column


def state_column(traces: Sequence[Trace], kind: Kind, name: str) -> Floats:
    """(M + B,) the state labels or scores called ``name``; as :func:`step_column`."""
    column = np.concatenate([trace.states(name, kind) for trace in traces] or [np.empty(0)])
    present = {key for trace in traces for key in getattr(trace, f"state_{kind}")}
    _check_known(column, "state", kind, name, present)
    return column


def _check_known(column: Floats, unit: str, kind: str, name: str, present: set[str]) -> None:
    if np.isnan(column).all():
        others = ", ".join(sorted(present - {name})) or "none"
        raise PRMError(
            f"no {unit} of the traces has a {kind[:-1]} {name!r}; other {unit} {kind} are: {others}"
        )
