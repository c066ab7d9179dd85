"""Pass@(K,T) of several policies with intervals, robustness to the budget, and comparisons.

Pure: traces in, a report out. All policies and all cells share the same bootstrap draws of the
tasks, so every difference is paired. Cells have BCa intervals of their own; differences of two
policies over the K x T grid have a simultaneous band and p-values adjusted for all cells; the one
primary cell is named beforehand and has an interval of its own, with p-values adjusted for the
number of policy pairs (Holm).

Left out: files, tables and the command (``prm.eval.evaluate_budget``), figures and pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np

from prm.data.trace import Trace
from prm.errors import PRMError, listed, plural
from prm.eval.bootstrap import MIN_SEEDS, resample_means
from prm.eval.budget_runs import (
    BudgetOptions,
    count_runs,
    default_k,
    flat,
    runs_by_policy,
    task_groups,
)
from prm.eval.budget_statistics import (
    Comparison,
    Layout,
    PolicyBudget,
    Table,
    by_group,
    common_tasks,
    compared,
    policy_budget,
    regrets_of,
    task_table,
    with_holm,
)
from prm.eval.estimate import Estimate, json_number
from prm.eval.pass_at_kt import CutCounts, turn_limit

SAFE_TASKS, MARGIN = 100, 0.05
"""With fewer tasks, cells nearer than this to 0 or 1 get a warning."""


SAFE_SEEDS = 8
"""With 3 seeds a nominal 95 % interval covers about 81 %, with 5 85 %, with 8 92 % (simulated: 50
tasks, strong seed effect)."""


class BudgetReport(NamedTuple):
    """What was measured."""

    source: Literal["cut", "rerun"]
    k: tuple[int, ...]
    t: tuple[int, ...]
    primary: tuple[int, int]
    """(K, T)"""
    by: str | None
    target: float
    """Of ``turns_to_reach``."""
    alpha: float
    """Of ``worst_share``."""
    policies: dict[str, PolicyBudget]
    comparisons: list[Comparison]
    notes: list[str]
    """What a reader has to know, one sentence each."""

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not defined, or not reached, is None."""

        def cells(rows: list[list[Estimate]]) -> list[list[dict[str, Any]]]:
            return [[cell.as_json() for cell in row] for row in rows]

        def named(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
            return {name: one.as_json() for name, one in estimates.items()}

        return {
            "source": self.source,
            "k": list(self.k),
            "t": list(self.t),
            "primary": {"k": self.primary[0], "t": self.primary[1]},
            "target": self.target,
            "alpha": self.alpha,
            "policies": {
                name: {
                    "n_tasks": one.n_tasks,
                    "n_samples": one.n_samples,
                    "n_skipped": one.n_skipped,
                    "n_seeds": one.n_seeds,
                    "pass_at": cells(one.pass_at),
                    "pass_hat": cells(one.pass_hat),
                    "steps_per_success": [cell.as_json() for cell in one.steps_per_success],
                    "robustness": named(one.robustness),
                    "bias": {key: json_number(value) for key, value in one.bias.items()},
                    "by": None if self.by is None else {self.by: named(one.groups)},
                }
                for name, one in self.policies.items()
            },
            "comparisons": [
                {"a": c.a, "b": c.b, "k": k, "t": t}
                | {
                    name: json_number(float(table[i, j]))
                    for name, table in zip(
                        ("difference", "low", "high", "p"),
                        (c.difference, c.low, c.high, c.p),
                        strict=True,
                    )
                }
                for c in self.comparisons
                for i, k in enumerate(self.k)
                for j, t in enumerate(self.t)
            ],
            "pairs": [
                {
                    "a": c.a,
                    "b": c.b,
                    "n_tasks": c.n_tasks,
                    "primary": c.primary.as_json()
                    | {"p": json_number(c.primary_p), "p_holm": json_number(c.primary_p_holm)},
                    "area": c.area.as_json(),
                    "solved": {
                        "only_a": c.only_a,
                        "only_b": c.only_b,
                        "p": json_number(c.solved_p),
                        "p_holm": json_number(c.solved_p_holm),
                    },
                }
                for c in self.comparisons
            ],
            "notes": self.notes,
        }


def budget_report(traces: Sequence[Trace], options: BudgetOptions | None = None) -> BudgetReport:
    """Measure the policies in ``traces`` over a grid of K and T.

    Raises :class:`PRMError` when a policy has no success information, when sources are mixed, when
    a T cannot be known, when no task has K trajectories, when no two policies share a task, and
    when ``by`` or ``seed_key`` is not in ``meta``.
    """
    options = options or BudgetOptions()
    runs = runs_by_policy(traces, options.seed_key)
    counts = count_runs(runs, options)
    source: Literal["cut", "rerun"] = (
        "cut" if all(isinstance(c, CutCounts) for c in flat(counts)) else "rerun"
    )
    t = next(flat(counts)).t
    k = options.k if options.k is not None else default_k(counts)
    k = tuple(sorted(set(k)))
    primary = options.primary or (k[0], t[-1])
    if primary[0] not in k or primary[1] not in t:
        raise PRMError(
            f"--primary: expected a K of {list(k)} and a T of {list(t)}, found K = {primary[0]}, "
            f"T = {primary[1]}"
        )
    tasks = sorted({task for c in flat(counts) for task in c.tasks})
    tables = {policy: task_table(policy, seeds, tasks, k) for policy, seeds in counts.items()}
    layout = Layout(len(k), len(t))
    rng = np.random.default_rng(options.seed)
    means = dict(
        zip(
            tables,
            resample_means(
                [table.values for table in tables.values()], resamples=options.resamples, rng=rng
            ),
            strict=True,
        )
    )
    regrets = regrets_of(tables, layout, options)
    groups = task_groups(traces, tasks, options.by)
    cell = k.index(primary[0]), t.index(primary[1])
    policies = {
        policy: policy_budget(
            tables[policy], means[policy], regrets.get(policy), layout, k, t, primary, options
        )._replace(groups=by_group(tables[policy], groups, layout, cell, options))
        for policy in tables
    }
    pairs = _pairs(list(tables), options.against)
    strangers = [(a, b) for a, b in pairs if not common_tasks([tables[a], tables[b]]).any()]
    if pairs and len(strangers) == len(pairs):
        a, b = pairs[0]
        raise PRMError(f"policies {a!r} and {b!r} have no task in common, so they are not compared")
    comparisons = [
        compared(a, b, tables, layout, t, cell, options)
        for a, b in pairs
        if (a, b) not in strangers
    ]
    return BudgetReport(
        source=source,
        k=k,
        t=t,
        primary=primary,
        by=options.by,
        target=options.target,
        alpha=options.alpha,
        policies=policies,
        comparisons=with_holm(comparisons),
        notes=list(_notes(source, runs, t, k, policies, tables, strangers)),
    )


def _pairs(policies: Sequence[str], against: str | None) -> list[tuple[str, str]]:
    if against is None:
        return list(combinations(policies, 2))
    if against not in policies:
        raise PRMError(
            f"--against: expected a policy of {', '.join(map(repr, policies))}, found {against!r}"
        )
    return [(policy, against) for policy in policies if policy != against]


def _limits(runs: Mapping[str, Mapping[str, Sequence[Trace]]], t: Sequence[int]) -> Iterator[str]:
    """What the turns that runs were allowed mean for the grid."""
    limits = [turn_limit(run) for seeds in runs.values() for each in seeds.values() for run in each]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        yield (
            f"{plural(len(limits) - len(known), 'run')} of unknown budget (no outcome.max_turns) "
            f"taken to have ended by themselves."
        )
    if known and min(known) < max(known):
        yield (
            f"Runs were allowed {min(known)} to {max(known)} turns; T ends at {t[-1]}, because "
            f"what those with {min(known)} would have done with more is not known."
        )


def _notes(
    source: str,
    runs: Mapping[str, Mapping[str, Sequence[Trace]]],
    t: Sequence[int],
    k: Sequence[int],
    policies: Mapping[str, PolicyBudget],
    tables: Mapping[str, Table],
    strangers: Sequence[tuple[str, str]],
) -> Iterator[str]:
    if source == "cut":
        yield (
            "Cut: each run was made once and counts within T when it succeeds in at most T turns. "
            "That says nothing about a policy that is told its budget."
        )
        yield from _limits(runs, t)
    numbers = sorted({one.n_seeds for one in policies.values()})
    for n_seeds in numbers:
        names = listed(name for name, one in policies.items() if one.n_seeds == n_seeds)
        if 1 < n_seeds < MIN_SEEDS:
            yield (
                f"{names}: {n_seeds} training seeds give no interval over seeds; intervals hold "
                f"for these seeds."
            )
        if MIN_SEEDS <= n_seeds < SAFE_SEEDS:
            yield (
                f"{names}: with {n_seeds} training seeds, fewer than {SAFE_SEEDS}, intervals are "
                f"too narrow."
            )
    for name, one in policies.items():
        if one.n_skipped:
            yield f"{name}: {plural(one.n_skipped, 'run')} without success information left out."
    cells = [cell for one in policies.values() for row in one.pass_at for cell in row]
    if any(cell.n_skipped for cell in cells):
        yield "Tasks with fewer than K runs are left out of the cells of that K."
    if k[-1] > 1 and k[-1] >= min(table.n_each for table in tables.values()):
        yield (
            f"At K = {k[-1]}, as many as a task has runs, Pass@ is 0 or 1 for each task and most "
            f"uncertain."
        )
    sizes = {one.n_tasks for one in policies.values()}
    if len(policies) > 1 and len(sizes | {int(common_tasks(tables.values()).sum())}) > 1:
        yield "Policies were not all run on the same tasks; pairs are compared on those they share."
    if strangers:
        a, b = strangers[0]
        yield (
            f"{plural(len(strangers), 'pair')} of policies without a common task not compared: "
            f"{a} and {b}{', …' if len(strangers) > 1 else ''}."
        )
    if len({one.n_samples / one.n_tasks for one in policies.values()}) > 1:
        yield (
            "Policies have different numbers of runs a task, and more runs solve more tasks: do "
            "not read the solved sets as a comparison of policies."
        )
    if min(sizes) < SAFE_TASKS and any(not MARGIN < cell.value < 1 - MARGIN for cell in cells):
        yield (
            f"With fewer than {SAFE_TASKS} tasks, intervals of cells near 0 or 1 are too narrow "
            f"(eval/results/coverage.md)."
        )
