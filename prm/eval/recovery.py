"""Errors along trajectories: where the first one falls, and how often success follows all the same.

From labelled traces alone, for each policy:

* natural recovery: P(success | the first error is at step i, at least r turns are left);
* first-error statistics: how many trajectories have one, and where;
* the long-horizon curve: success against a numeric property of the task.

Every number is a mean over trajectories as if a task were drawn first and then one of the policy's
trajectories on it, so each task counts once however often it was sampled; with the same number of
samples of every task these are plain shares. A conditional mean is the ratio of two such means,
resampled by task (``prm.eval.bootstrap``).

Read with care: natural recovery is confounded. Hard tasks have more errors and are solved less
often, and policies make errors of different kinds in different places. Only forcing the same error
in the same states tells recovery apart from that; it needs an environment and is not done here.
Differences of policies, and training seeds as a level of their own, are left out too.

Axes: B traces, N tasks, F cells. Steps are numbered from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from prm.data.trace import Trace
from prm.errors import PRMError, plural
from prm.eval.bootstrap import Resampled, combined, resample_means
from prm.eval.budget_runs import UNNAMED
from prm.eval.estimate import Estimate
from prm.eval.intervals import bca, exact_where_all_agree
from prm.eval.pass_at_kt import default_grid
from prm.eval.rows import Rows, rows_of, step_column, success_column
from prm.eval.steps import Bools, Floats, Ints
from prm.eval.traces import NO_ERROR

N_PLACES = 10
"""Steps 0 … 9 have a cell each; all later steps share one more."""


class PolicyRecovery(NamedTuple):
    """One policy. ``n`` and ``n_skipped`` count trajectories, except where it says steps.

    Skipped is a trajectory of which it is not known whether it belongs to the cell, or, if it does,
    its value. Unknown are: the first error, when an unlabelled step may be it; the turns left after
    it, without ``max_turns``; success, when the source does not say or the outcome is not valid.
    """

    n_tasks: int
    n_traces: int
    recovery_at_least: list[Estimate]
    """For each r of ``remaining``: success of trajectories with r turns or more left after the
    first error, used or not: a wrong final answer is an error that leaves turns unused."""
    recovery_up_to_next: list[Estimate]
    """The same with r turns or more left, but fewer than the next r of ``remaining``. Compare
    policies by this: above, one may have had more turns beyond r than the other."""
    success_without_error: Estimate
    """Success of trajectories without any error."""
    success_where_unknown: Estimate
    """Success of trajectories whose first error is not known. Where it is unlike the others, labels
    are missing for a reason, and what rests on the other trajectories is biased."""
    error_share: Estimate
    """Share of trajectories with an error."""
    first_error_step: Estimate
    """Mean step i of the first error, where there is one."""
    first_error_place: Estimate
    """Mean of i / S, in [0, 1)."""
    first_error_at: list[Estimate]
    """For each of ``steps``: share of the first errors that fall there."""
    error_rate: list[Estimate]
    """For each of ``steps``: share of errors among the labelled steps there, first or not, of the
    trajectories that get that far. ``n`` and ``n_skipped`` count steps."""
    horizon: list[Estimate]
    """For each of ``horizon_values``: success on the tasks of that value, whatever the labels. It
    is Pass@(1,T) of those tasks where all runs have the budget T."""

    def as_json(self) -> dict[str, Any]:
        """The fields by name; what is not defined is None."""
        return {name: _plain(field) for name, field in self._asdict().items()}


class RecoveryReport(NamedTuple):
    """What was measured; the lists of each policy go along the grids named here."""

    label: str
    good_at: float
    remaining: tuple[int, ...]
    """Turns left after the first error, ascending."""
    steps: tuple[str, ...]
    """Step numbers; the last is "10+" where there are more than ten steps."""
    horizon_key: str | None
    horizon_values: tuple[float, ...]
    policies: dict[str, PolicyRecovery]

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not defined is None."""
        policies = {name: one.as_json() for name, one in self.policies.items()}
        return {
            "label": self.label,
            "good_at": self.good_at,
            "remaining": list(self.remaining),
            "steps": list(self.steps),
            "horizon": {"key": self.horizon_key, "values": list(self.horizon_values)},
            "policies": policies,
        }


def recovery_report(
    traces: Sequence[Trace],
    *,
    label: str,
    good_at: float = 1.0,
    horizon_key: str | None = None,
    remaining: Sequence[int] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> RecoveryReport:
    """Measure the errors and recoveries of each policy in ``traces``.

    The label must judge the action. A reward for having finished, such as ``executed`` of InterCode
    at ``good_at`` 1, would call every step before success an error.

    Args:
        traces: trajectories, in any order.
        label: name of the step label.
        good_at: a step is an error when its label is below this.
        horizon_key: key of ``meta`` with a number, the same in all traces of a task.
        remaining: numbers r of turns left. None = 0 and Fibonacci numbers up to the most found.
        resamples: draws of the tasks, at least 20; 0 for no intervals.
        seed: of the draws.

    Raises:
        PRMError: no trace; no step with the label; no trace with a known first error, or one beyond
            the turns that it was allowed; a horizon that is missing, no number, or not the same
            for all traces of a task; ``remaining`` empty or below 0; too few resamples.

    >>> from prm.data.trace import Outcome, Step
    >>> def run(task: str, labels: list[float], success: bool) -> Trace:
    ...     messages = [{"role": "assistant", "content": "…"} for _ in labels]
    ...     steps = [Step(at=i, labels={"good": value}) for i, value in enumerate(labels)]
    ...     outcome = Outcome(success=success, max_turns=4)
    ...     return Trace(id=task, task_id=task, messages=messages, steps=steps, outcome=outcome)
    >>> runs = [run("a", [1, 0, 1], True), run("b", [0, 1], False), run("c", [1], True)]
    >>> report = recovery_report(runs, label="good", remaining=[0, 3], resamples=0)
    >>> [float(one.value) for one in report.policies["unnamed policy"].recovery_at_least]
    [0.5, 0.0]
    """
    if not traces:
        raise PRMError("there is no trace to evaluate")
    rows = rows_of(traces)
    labels = step_column(traces, "labels", label)
    error = np.where(np.isnan(labels), np.nan, labels < good_at)
    first = rows.first_errors(error)
    if not (first >= 0).any():
        raise PRMError(
            f"no trace has a known first error: expected a step with label {label!r} below "
            f"{good_at:g} and no unlabelled step before it; the lowest label is "
            f"{np.nanmin(labels):g}"
        )
    left = _turns_left(traces, first)
    grid = _grid(remaining, left)
    lengths = np.array([trace.n_steps for trace in traces])
    steps = [str(step) for step in range(min(lengths.max(), N_PLACES))]
    if lengths.max() > N_PLACES:
        steps.append(f"{N_PLACES}+")
    success = success_column(traces)
    horizon = _horizon(traces, horizon_key)
    values = np.unique(horizon[~np.isnan(horizon)])
    cells = {
        **_recovery(success, first, left, grid),
        **_first_errors(first, lengths, len(steps)),
        "error_rate": _error_rate(rows, error, len(steps)),
        "horizon": _cells(success, (horizon[:, None] == values).astype(np.float64)),
    }
    policy = np.array([UNNAMED if trace.policy is None else trace.policy for trace in traces])
    policies = {}
    for name in np.unique(policy).tolist():
        own = policy == name
        table = {cell: _Cells(*(field[own] for field in one)) for cell, one in cells.items()}
        # The same draws for all policies that were run on the same tasks.
        rng = np.random.default_rng(seed)
        policies[name] = _policy(table, rows.trace_task[own], resamples, rng)
    return RecoveryReport(
        label=label,
        good_at=good_at,
        remaining=grid,
        steps=tuple(steps),
        horizon_key=horizon_key,
        horizon_values=tuple(values.tolist()),
        policies=policies,
    )


def _turns_left(traces: Sequence[Trace], first: Floats) -> Floats:
    """(B,) turns left after the first error; NaN where there is none, or either is not known."""
    allowed = [trace.outcome.max_turns for trace in traces]
    turns = np.array([math.nan if most is None else most for most in allowed])
    left = np.where(first >= 0, turns - (first + 1), np.nan)
    for trace, turn, step in zip(traces, left, first, strict=True):
        if turn < 0:
            raise PRMError(
                f"trace {trace.id!r} has its first error at step {step:.0f} (from 0), beyond the "
                f"{plural(trace.outcome.max_turns or 0, 'turn')} that it was allowed "
                f"(outcome.max_turns), so how many were left is not known"
            )
    return left


def _grid(remaining: Sequence[int] | None, left: Floats) -> tuple[int, ...]:
    """The numbers of turns left, ascending."""
    if remaining is None:
        most = int(np.nanmax(left, initial=0))
        return (0, *default_grid(most)) if most > 0 else (0,)
    grid = tuple(sorted(set(remaining)))
    if not grid or grid[0] < 0:
        raise PRMError(f"remaining: expected numbers of turns >= 0, found {list(remaining)}")
    return grid


def _horizon(traces: Sequence[Trace], key: str | None) -> Floats:
    """(B,) the number in ``meta`` of each trace's task; NaN without a key."""
    if key is None:
        return np.full(len(traces), np.nan)
    numbers: dict[str, float] = {}
    for trace in traces:
        if key not in trace.meta:
            known = ", ".join(sorted(trace.meta)) or "none"
            raise PRMError(f"horizon: trace {trace.id!r} has no meta key {key!r}; it has {known}")
        found = trace.meta[key]
        if (
            isinstance(found, bool)
            or not isinstance(found, int | float)
            or not math.isfinite(found)
        ):
            raise PRMError(
                f"horizon: expected a number as meta key {key!r} of trace {trace.id!r}, found "
                f"{found!r}"
            )
        if numbers.setdefault(trace.task_id, found) != found:
            raise PRMError(
                f"horizon: task {trace.task_id!r} has {key!r} {numbers[trace.task_id]:g} in one "
                f"trace and {found:g} in another, so it is no property of the task"
            )
    return np.array([numbers[trace.task_id] for trace in traces], dtype=np.float64)


class _Cells(NamedTuple):
    """F weighted means over trajectories, not yet taken."""

    part: Floats
    """(B, F) weight times value; NaN where either is not known."""
    weight: Floats
    """(B, F) 0 outside the cell; NaN where ``part`` is."""
    skipped: Floats
    """(B, F) units left out."""


def _cells(value: Floats, weight: Floats) -> _Cells:
    """Cells of (B,) or (B, F) values and weights; a value outside its cell need not be known."""
    value, weight = (array.reshape(len(array), -1) for array in (value, weight))
    value, weight = np.broadcast_arrays(value, weight)
    known = (weight == 0) | (~np.isnan(weight) & ~np.isnan(value))
    part = np.where(weight == 0, 0.0, weight * value)
    return _Cells(part, np.where(known, weight, np.nan), (~known).astype(np.float64))


def _recovery(
    success: Floats, first: Floats, left: Floats, grid: tuple[int, ...]
) -> dict[str, _Cells]:
    reaches = np.where(np.isnan(left)[:, None], np.nan, left[:, None] >= np.array(grid))
    # A trajectory without an error belongs to no cell, whatever its budget.
    at_least = np.where(first[:, None] == NO_ERROR, 0.0, reaches)
    beyond = np.concatenate([at_least[:, 1:], 0 * at_least[:, :1]], axis=1)
    return {
        "recovery_at_least": _cells(success, at_least),
        "recovery_up_to_next": _cells(success, at_least - beyond),
        "success_without_error": _cells(success, _where_known(first, first == NO_ERROR)),
        "success_where_unknown": _cells(success, np.isnan(first).astype(np.float64)),
    }


def _first_errors(first: Floats, lengths: Ints, n_places: int) -> dict[str, _Cells]:
    erred = _where_known(first, first != NO_ERROR)
    at = np.minimum(first, n_places - 1)[:, None] == np.arange(n_places)
    return {
        "error_share": _cells(erred, np.ones(len(first))),
        "first_error_step": _cells(first, erred),
        # A trace without steps has no first error that is known.
        "first_error_place": _cells(first / np.maximum(lengths, 1), erred),
        "first_error_at": _cells(at.astype(np.float64), erred),
    }


def _where_known(first: Floats, flag: Bools) -> Floats:
    return np.where(np.isnan(first), np.nan, flag)


def _error_rate(rows: Rows, error: Floats, n_places: int) -> _Cells:
    """Of a trajectory, all steps of one place go together: the part is the number of errors."""
    place = rows.trace, np.minimum(rows.step, n_places - 1)

    def count(steps: Bools) -> Floats:
        table = np.zeros((len(rows.trace_task), n_places))
        np.add.at(table, place, steps)
        return table

    missing = np.isnan(error)
    return _Cells(count(error == 1), count(~missing), count(missing))


def _policy(
    cells: Mapping[str, _Cells], task: Ints, resamples: int, rng: np.random.Generator
) -> PolicyRecovery:
    """Take the means of one policy's trajectories, (B,) of ``task``, over the tasks that it ran."""
    tasks, task = np.unique(task, return_inverse=True)
    joined = _Cells(*(np.concatenate(field, axis=1) for field in zip(*cells.values(), strict=True)))
    parts, weights = (_by_task(field, task, len(tasks)) for field in (joined.part, joined.weight))
    (means,) = resample_means(
        [np.concatenate([parts, weights], axis=1)[None]], resamples=resamples, rng=rng
    )
    ratios = combined(_ratio, means)
    bounded = np.concatenate(
        [np.full(one.part.shape[1], name != "first_error_step") for name, one in cells.items()]
    )
    low, high = _ends(ratios, weights, bounded)
    counts = np.nansum(joined.weight, axis=0), joined.skipped.sum(axis=0)
    flat = (
        Estimate(float(value), float(lower), float(upper), int(n), int(skipped))
        for value, lower, upper, n, skipped in zip(ratios.value, low, high, *counts, strict=True)
    )
    found = {name: list(islice(flat, one.part.shape[1])) for name, one in cells.items()}
    return PolicyRecovery(
        n_tasks=len(tasks),
        n_traces=len(task),
        recovery_at_least=found["recovery_at_least"],
        recovery_up_to_next=found["recovery_up_to_next"],
        success_without_error=found["success_without_error"][0],
        success_where_unknown=found["success_where_unknown"][0],
        error_share=found["error_share"][0],
        first_error_step=found["first_error_step"][0],
        first_error_place=found["first_error_place"][0],
        first_error_at=found["first_error_at"],
        error_rate=found["error_rate"],
        horizon=found["horizon"],
    )


def _ends(ratios: Resampled, weights: Floats, bounded: Bools) -> tuple[Floats, Floats]:
    """(F,) ends of the intervals: BCa; exact where all draws of a mean of [0, 1] say 0 or 1.

    The exact bound counts as many values as are sure to be independent. Draw one trajectory of each
    task: those that fall into the cell are, and there are as many, on average, as the tasks'
    weights sum to. (Where several steps of a trajectory share a cell, weights are scaled to at most
    1.) Where all draws agree on anything else, their spread says nothing: there is no interval.
    """
    low, high = bca(ratios)
    independent = np.nansum(weights, axis=0) / np.fmax.reduce(weights, axis=0, initial=1.0)
    low, high = exact_where_all_agree(low, high, ratios.value, np.where(bounded, independent, 0.0))
    return np.where(low == high, np.nan, low), np.where(low == high, np.nan, high)


def _by_task(column: Floats, task: Ints, n_tasks: int) -> Floats:
    """(N, F) mean over each task's trajectories of what is known; NaN where nothing is."""
    total, count = np.zeros((2, n_tasks, column.shape[1]))
    np.add.at(total, task, np.nan_to_num(column))
    np.add.at(count, task, ~np.isnan(column))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _ratio(means: Floats) -> Floats:
    """(…, 2 F) mean parts, then mean weights -> (…, F) weighted means; NaN in empty cells.

    Rounded, because sums of thirds depend on their order, and a share of 1 has to be recognised.
    """
    part, weight = np.split(means, 2, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(weight > 0, np.round(part / weight, 12), np.nan)


def _plain(field: int | Estimate | list[Estimate]) -> Any:
    if isinstance(field, list):
        return [one.as_json() for one in field]
    return field.as_json() if isinstance(field, Estimate) else field
