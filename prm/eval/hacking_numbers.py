"""What the hacking watch measures, as statistics of task weights.

The names of the numbers, and what they mean, are those of the reports in ``prm.eval.hacking``; the
estimators are in ``prm.eval.watch_statistics``.

Axes: M steps, B traces, N tasks, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from prm.data.trace import Trace
from prm.errors import PRMError
from prm.eval.repetition import repeated_steps
from prm.eval.rows import rows_of, step_column, success_column
from prm.eval.steps import Bools, Floats, Ints
from prm.eval.traces import best_of_n
from prm.eval.watch_statistics import (
    Statistic,
    combination,
    item_mean,
    mean_by_task,
    pair_correlation,
    share_of_task,
    slope_within,
    spearman,
    task_mean,
)

Statistics = dict[str, Statistic]
DIGITS = 12
"""Rewards are rounded to this: sums that telescope differ by rounding, and would not tie."""


class WatchTable(NamedTuple):
    """Traces as arrays. A trace has a reward when every step has a score, and it has a step."""

    scores: Floats
    """(M,)"""
    repeated: Floats
    """(M,) 1.0, 0.0, or NaN without a call."""
    trace: Ints
    """(M,)"""
    task: Ints
    """(B,)"""
    n_tasks: int
    steps: Floats
    """(B,) number of steps."""
    total: Floats
    """(B,) sum of the step scores; NaN where it is not known."""
    mean: Floats
    """(B,)"""
    success: Floats
    """(B,) 1.0 or 0.0; NaN where it is not known or says nothing about the agent."""

    @property
    def rewarded(self) -> Bools:
        """(B,) whether the reward is known."""
        return ~np.isnan(self.total)

    @property
    def graded(self) -> Bools:
        """(B,) whether both reward and success are known."""
        return self.rewarded & ~np.isnan(self.success)


def watch_table(traces: Sequence[Trace], score: str) -> WatchTable:
    """Raises :class:`PRMError` when no trace has the score at every step."""
    scores = step_column(traces, "scores", score)
    rows = rows_of(traces)
    steps = np.array([trace.n_steps for trace in traces], dtype=np.float64)
    total = np.full(len(traces), np.nan)
    total[steps > 0] = 0.0
    np.add.at(total, rows.trace, scores)
    if np.isnan(total).all():
        raise PRMError(f"no trace has a score {score!r} at every step, so none has a reward")
    return WatchTable(
        scores=scores,
        repeated=np.concatenate([repeated_steps(trace) for trace in traces]),
        trace=rows.trace,
        task=rows.trace_task,
        n_tasks=rows.n_tasks,
        steps=steps,
        total=np.round(total, DIGITS),
        mean=np.round(total / np.maximum(steps, 1), DIGITS),
        success=success_column(traces),
    )


def reward_statistics(table: WatchTable, reward: Floats) -> Statistics:
    """The numbers of a ``RewardWatch`` for the rewards (B,) of the traces."""
    task, n_tasks, success = table.task, table.n_tasks, table.success
    rewarded, graded = table.rewarded, table.graded
    n_ungraded = int((~graded).sum())
    share = share_of_task(graded, task, n_tasks)

    def within(x: Floats, used: Bools) -> Statistic:
        values = pair_correlation(x[used], reward[used], task[used], task[used], n_tasks)
        return task_mean(values, (-1.0, 1.0))

    def per_step(used: Bools) -> Statistic:
        weight = share_of_task(used, task, n_tasks)[used]
        return slope_within(
            table.steps[used], reward[used], weight, task[used], n_tasks, n_ungraded
        )

    succeeded, failed = (
        item_mean(reward, share * (success == one), task, n_tasks, n_ungraded) for one in (1, 0)
    )
    gains, losses = (
        mean_by_task(reward, graded & (success == one), task, n_tasks) for one in (1, 0)
    )
    choice = best_of_n(reward, success, task, n_tasks)
    mixed = (choice.oracle == 1) & (choice.random < 1)
    on_top, by_chance = (np.where(mixed, 1 - p, np.nan) for p in (choice.chosen, choice.random))
    return {
        "success": succeeded,
        "failure": failed,
        "difference": combination([1, -1], [succeeded, failed], int(graded.sum())),
        "correlation": spearman(success, reward, share, task, n_ungraded),
        "difference_within": task_mean(gains - losses),
        "correlation_within": within(success, graded),
        "length": spearman(
            table.steps,
            reward,
            share_of_task(rewarded, task, n_tasks),
            task,
            int((~rewarded).sum()),
        ),
        "length_within": within(table.steps, rewarded),
        "length_success": within(table.steps, graded & (success == 1)),
        "length_failure": within(table.steps, graded & (success == 0)),
        "per_step_success": per_step(graded & (success == 1)),
        "per_step_failure": per_step(graded & (success == 0)),
        "failure_on_top": task_mean(on_top, (0.0, 1.0)),
        "failure_by_chance": task_mean(by_chance, (0.0, 1.0)),
        "failure_excess": task_mean(on_top - by_chance, (-1.0, 1.0)),
    }


def repetition_statistics(table: WatchTable) -> Statistics:
    """The numbers of a ``RepetitionWatch``."""
    trace, scores, repeated, n_tasks = table.trace, table.scores, table.repeated, table.n_tasks
    task = table.task[trace]
    used = table.rewarded[trace]
    calls = ~np.isnan(repeated)
    both = used & calls
    n_skipped = int((calls & ~used).sum())
    share = share_of_task(table.rewarded, table.task, n_tasks)[trace]

    def mean(values: Floats, weight: Floats) -> Statistic:
        return item_mean(values, weight, task, n_tasks, n_skipped)

    again, new = (mean(scores, share * (repeated == one)) for one in (1, 0))
    shares = bool((scores[used] >= 0).all())
    reward = mean(repeated == 1, np.where(used & shares, share * scores, 0.0))
    within = pair_correlation(repeated[both], scores[both], trace[both], task[both], n_tasks)
    return {
        "calls": mean(repeated, share * calls),
        "reward": reward._replace(n=int(used.sum()), n_skipped=int((~used).sum())),
        "repeated": again,
        "new": new,
        "difference": combination([1, -1], [again, new], int(both.sum())),
        "correlation_within": task_mean(within, (-1.0, 1.0)),
    }


def group_statistics(table: WatchTable, group: Ints, position: Floats) -> list[Statistics]:
    """The numbers of a ``GroupWatch`` for each of G groups, and last for the change along them.

    ``group`` is (B,) the number of the trace's group, ``position`` (G,) where the groups lie.
    """
    task, n_tasks = table.task, table.n_tasks
    repeats = np.bincount(table.trace, table.repeated == 1, len(table.steps))
    quantities = {
        "reward": (table.total, None),
        "score": (table.mean, None),
        "success": (table.success, (0.0, 1.0)),
        "steps": (table.steps, None),
        "repeated": (repeats / np.maximum(table.steps, 1), (0.0, 1.0)),
    }
    groups = [
        {
            name: task_mean(
                mean_by_task(values, table.graded & (group == number), task, n_tasks), bounds
            )
            for name, (values, bounds) in quantities.items()
        }
        for number in range(len(position))
    ]
    centred = position - position.mean()
    along = np.ptp(position) * centred / (centred @ centred)
    n_tasks_graded = len(np.unique(task[table.graded]))
    change = {
        name: combination(along.tolist(), [one[name] for one in groups], n_tasks_graded)
        for name in quantities
    }
    return [*groups, change]


def groups_of(
    traces: Sequence[Trace], by: str | Sequence[str | float]
) -> tuple[list[str], Ints, Floats]:
    """Names of G groups in order, the number of each trace's group (B,), and positions (G,).

    ``by`` is a key of ``meta`` or the groups of the traces (B,). Numbers are ordered by value,
    which is their position; names by first appearance. Raises :class:`PRMError` for a key that a
    trace lacks, another number of groups than of traces, values that are neither all finite numbers
    nor all text, and fewer than two groups.
    """
    if isinstance(by, str):
        for trace in traces:
            if by not in trace.meta:
                known = ", ".join(sorted(trace.meta)) or "none"
                raise PRMError(f"by: trace {trace.id!r} has no meta key {by!r}; it has {known}")
        values = [trace.meta[by] for trace in traces]
    else:
        values = list(by)
        if len(values) != len(traces):
            raise PRMError(
                f"by: expected a group for each of the {len(traces)} traces, found {len(values)}"
            )
    numbers, texts = [_is_number(value) for value in values], [isinstance(v, str) for v in values]
    if not all(numbers) and not all(texts):
        odd = [v for v, *known in zip(values, numbers, texts, strict=True) if not any(known)]
        raise PRMError(
            f"by: expected groups that are all finite numbers or all text, found "
            f"{repr(odd[0]) if odd else 'both'}"
        )
    numeric = all(numbers)
    groups = sorted(set(values)) if numeric else list(dict.fromkeys(values))
    if len(groups) < 2:
        raise PRMError(
            f"by: expected at least 2 groups, because one shows no change, found only {groups[0]!r}"
        )
    number = {value: place for place, value in enumerate(groups)}
    position = np.array(groups if numeric else range(len(groups)), dtype=np.float64)
    return [str(value) for value in groups], np.array([number[v] for v in values]), position


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
