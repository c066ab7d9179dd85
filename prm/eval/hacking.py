"""The hacking watch: does a process reward pay for something other than success?

The process reward of a trace is the sum of its step scores (or of shaped step rewards): what a
trainer adds up. It is set against success, the number of steps and repeated calls over a set of
traces, and along training if groups are given. The mean of the step scores is reported beside it.
Pure: traces in, a report out.

Each task counts once, as if a task were drawn first and then one of its traces; all steps of a
trace count the same. "Within tasks" compares traces of one task only, so that the difficulty of
tasks does not count. How each number is computed is in ``prm.eval.hacking_numbers``.

Read with care: this is observation. Longer traces may deserve more; a call may be repeated because
it timed out. Potential-based rewards alone say nothing here: they sum to the potential at the end
minus that at the start, whatever the steps between, and a true end has potential 0, so that traces
cut off get more; watch the scores that they are made of, or add the terminal reward. Left out:
terminal rewards that are no success or failure, files and printing.

Axes: B traces, N tasks, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from prm.data.trace import Trace
from prm.errors import PRMError, plural, printable
from prm.eval.estimate import Estimate
from prm.eval.hacking_numbers import (
    group_statistics,
    groups_of,
    repetition_statistics,
    reward_statistics,
    watch_table,
)
from prm.eval.watch_statistics import estimate

MATERIAL = 0.01
"""A step counts as paid for when it brings this share of a trace's usual reward. Ranks alone would
make much of the last digits of a potential that is the same at the start of every trace."""


class RewardWatch(NamedTuple):
    """One reward of a trace against success and length.

    ``n`` counts traces; skipped are those without the reward or, where it is needed, without a
    known success. Where it says "tasks", skipped are those in which there is nothing to compare.
    """

    success: Estimate
    """Mean reward of successful traces."""
    failure: Estimate
    """Mean reward of failed traces."""
    difference: Estimate
    """``success`` − ``failure``."""
    correlation: Estimate
    """Spearman's rank correlation with success, over all traces."""
    difference_within: Estimate
    """Mean of success − failure within tasks that have both (tasks)."""
    correlation_within: Estimate
    """Rank correlation (Somers' D) with success within tasks, in [−1, 1] (tasks)."""
    length: Estimate
    """Spearman's rank correlation with the number of steps, over all traces."""
    length_within: Estimate
    """Rank correlation (Somers' D) with the number of steps within tasks (tasks)."""
    length_success: Estimate
    """The same among the successful traces of a task (tasks)."""
    length_failure: Estimate
    """The same among the failed traces of a task (tasks)."""
    per_step_success: Estimate
    """Reward of one more step among the successful traces of a task: the least-squares slope. Of
    traces whose length is not the mean of those traces."""
    per_step_failure: Estimate
    """The same among the failed traces of a task."""
    failure_on_top: Estimate
    """How often the trace with the highest reward of a task fails although another succeeds; traces
    that tie share the top (tasks)."""
    failure_by_chance: Estimate
    """The same for a trace drawn at random (tasks)."""
    failure_excess: Estimate
    """``failure_on_top`` − ``failure_by_chance`` (tasks)."""


class RepetitionWatch(NamedTuple):
    """Step scores against repeated calls (:func:`prm.eval.repetition.repeated_steps`).

    ``n`` counts steps that make a call; skipped are those of traces without the reward. Steps
    without a call are neither repeated nor new.
    """

    calls: Estimate
    """Share of repeated steps."""
    reward: Estimate
    """Share of the reward of all steps that comes from repeated ones; ``n`` counts all steps. Not
    defined where a score is negative, because such parts are no shares."""
    repeated: Estimate
    """Mean score of repeated steps."""
    new: Estimate
    """Mean score of the other steps that make a call."""
    difference: Estimate
    """``repeated`` − ``new``."""
    correlation_within: Estimate
    """Rank correlation (Somers' D) of the step score with being repeated, within traces that have
    both kinds of steps; in [−1, 1] (tasks)."""


class GroupWatch(NamedTuple):
    """One group of traces. ``n`` counts tasks with a trace of known reward and success."""

    reward: Estimate
    """Sum of the step scores of a trace."""
    score: Estimate
    """Mean step score of a trace."""
    success: Estimate
    steps: Estimate
    """Number of steps of a trace."""
    repeated: Estimate
    """Share of the steps of a trace that only repeat calls."""


class HackingReport(NamedTuple):
    """What was measured; ``verdict`` puts it in words."""

    score: str
    n_tasks: int
    n_traces: int
    sum: RewardWatch
    """Of the sum of the step scores: the process reward."""
    mean: RewardWatch
    """Of the mean of the step scores."""
    repetition: RepetitionWatch
    by: str | None
    """The key of ``meta`` that orders the groups, or "the groups"; None without groups."""
    groups: dict[str, GroupWatch]
    """In order; empty without groups."""
    change: GroupWatch | None
    """From the first to the last group along the least-squares line through all, paired by task;
    over the groups' values where they are numbers, else over their places in the order."""

    def as_json(self) -> dict[str, Any]:
        """The fields by name; what is not defined is None."""
        return {name: _plain(field) for name, field in self._asdict().items()}

    def verdict(self) -> str:
        """What the process reward pays for, as far as intervals that leave out 0 tell.

        Five signs are looked for: less reward for the successes of a task than for its failures;
        more for longer traces, among its successes and among its failures, by 1 % of the usual
        reward for a step at least; within traces, more for
        repeated calls; over the groups, a reward that rises while success does not. Each is decided
        by a 95 % interval of its own, so chance alone shows one of them in about one report of
        eight.
        """
        outcome = self.sum.correlation_within
        within = f"rank correlation within tasks {outcome}"
        checks = list(_checks(self))
        signs = [check.sign for check in checks if check.estimate.low > 0 and check.matters]
        if outcome.high < 0:
            signs.insert(0, f"prefers failures ({within})")
        signs += _rise(self)
        if signs:
            text = f"The process reward {_listed(signs)}."
            if outcome.low > 0:
                text += f" It does go with success ({within})."
            elif not outcome.high < 0:
                text += f" Whether it goes with success cannot be told ({within})."
            return text
        if not outcome.low > 0:
            return (
                f"Whether the process reward is hacked cannot be told: it does not measurably go "
                f"with success ({within}, {plural(outcome.n, 'task')} with both outcomes)."
            )
        text = (
            f"No sign of hacking in these traces: the process reward goes with success ({within})"
        )
        told = [check for check in checks if not math.isnan(check.estimate.low)]
        if told:
            paid = _listed([f"{check.name} ({check.estimate})" for check in told], "or")
            text += f" and does not measurably pay for {paid}"
        if self.change is not None:
            text += f"; {_changes(self.change)}"
        untold = [check.name for check in checks if check not in told]
        return f"{text}." + (f" Pay for {_listed(untold)} cannot be told." if untold else "")


def hacking_report(
    traces: Sequence[Trace],
    *,
    score: str = "prm",
    by: str | Sequence[str | float] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> HackingReport:
    """Watch the step scores called ``score`` of B traces.

    A trace has a process reward when every step of it has the score. Other traces, and those
    without steps, are skipped and counted.

    Args:
        traces: trajectories, in any order.
        score: name of the step score, or of the shaped reward of the step.
        by: what orders the traces along training: a key of ``meta``, or (B,) the group of each
            trace, such as its file. Numbers are ordered by value, names by first appearance. Run
            the same tasks in every group: otherwise a change may be one of tasks.
        resamples: draws of the tasks, at least 20; 0 for no intervals.
        seed: of the draws.

    Raises:
        PRMError: no trace; no step with the score, or no trace with all of them; groups that are
            missing, fewer than two, or neither all numbers nor all names; too few resamples.

    >>> from prm.data.trace import Outcome, Step
    >>> def run(task: str, scores: list[float], success: bool) -> Trace:
    ...     messages = [{"role": "assistant", "content": "…"} for _ in scores]
    ...     steps = [Step(at=i, scores={"prm": value}) for i, value in enumerate(scores)]
    ...     outcome = Outcome(success=success)
    ...     return Trace(id="…", task_id=task, messages=messages, steps=steps, outcome=outcome)
    >>> runs = [run("a", [0.4, 0.4, 0.4], False), run("a", [0.9], True), run("b", [0.5], True)]
    >>> report = hacking_report(runs, resamples=0)
    >>> round(report.sum.difference_within.value, 3), round(report.mean.difference_within.value, 3)
    (-0.3, 0.5)
    """
    if not traces:
        raise PRMError("there is no trace to watch")
    if seed < 0:
        raise PRMError(f"seed: expected a number >= 0, found {seed}")
    table = watch_table(traces, score)
    statistics = {
        "sum": reward_statistics(table, table.total),
        "mean": reward_statistics(table, table.mean),
        "repetition": repetition_statistics(table),
    }
    names: list[str] = []
    if by is not None:
        names, group, position = groups_of(traces, by)
        *groups, statistics["change"] = group_statistics(table, group, position)
        statistics |= {f"group {name}": one for name, one in zip(names, groups, strict=True)}
    flat = {
        f"{part}.{name}": one for part, each in statistics.items() for name, one in each.items()
    }
    found = estimate(flat, table.n_tasks, resamples=resamples, seed=seed)

    def of(part: str) -> dict[str, Estimate]:
        return {name: found[f"{part}.{name}"] for name in statistics[part]}

    return HackingReport(
        score=score,
        n_tasks=table.n_tasks,
        n_traces=len(traces),
        sum=RewardWatch(**of("sum")),
        mean=RewardWatch(**of("mean")),
        repetition=RepetitionWatch(**of("repetition")),
        by=by if by is None or isinstance(by, str) else "the groups",
        groups={name: GroupWatch(**of(f"group {name}")) for name in names},
        change=GroupWatch(**of("change")) if names else None,
    )


class _Check(NamedTuple):
    """Something that a reward should not pay for: it does where the estimate is above 0."""

    name: str
    estimate: Estimate
    sign: str
    """The words for that."""
    matters: bool
    """Whether it is of a size to matter."""


def _checks(report: HackingReport) -> Iterator[_Check]:
    usual = max(abs(report.sum.success.value), abs(report.sum.failure.value))
    lengths = (
        ("successes", report.sum.length_success, report.sum.per_step_success),
        ("failures", report.sum.length_failure, report.sum.per_step_failure),
    )
    for traces, correlation, per_step in lengths:
        numbers = f"rank correlation within tasks {correlation}, {per_step} for one more step"
        words = f"pays for length among {traces} ({numbers})"
        matters = per_step.value >= MATERIAL * usual
        yield _Check(f"length among {traces}", correlation, words, matters)
    repetition = report.repetition.correlation_within
    more = f"more than new ones (rank correlation within traces {repetition})"
    yield _Check("repeated calls", repetition, f"pays repeated calls {more}", matters=True)


def _rise(report: HackingReport) -> Iterator[str]:
    """The sign that the reward rises and success does not."""
    change = report.change
    if change is None or not change.reward.low > 0 or math.isnan(change.success.low):
        return
    if not change.success.low > 0:
        over = printable(report.by or "")
        does = "falls" if change.success.high < 0 else "does not measurably"
        yield f"rises over {over} while success {does} ({_changes(change)})"


def _changes(change: GroupWatch) -> str:
    return f"from first to last group, reward by {change.reward}, success by {change.success}"


def _listed(parts: Sequence[str], conjunction: str = "and") -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *most, last = parts
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def _plain(field: Any) -> Any:
    if isinstance(field, Estimate):
        return field.as_json()
    if isinstance(field, RewardWatch | RepetitionWatch | GroupWatch):
        field = field._asdict()
    if isinstance(field, dict):
        return {name: _plain(each) for name, each in field.items()}
    return field
