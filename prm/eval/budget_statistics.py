"""Resampled statistics of policies over the grid, from counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from prm.errors import PRMError
from prm.eval import robustness
from prm.eval.bootstrap import Resampled, combined, resample_means
from prm.eval.budget_runs import BudgetOptions
from prm.eval.estimate import Estimate
from prm.eval.intervals import (
    LEVEL,
    MAX_UNDEFINED,
    bca,
    bias_of,
    exact_where_all_agree,
    max_t_band,
)
from prm.eval.pass_at_kt import Counts, CutCounts, pass_at_kt, pass_hat_kt
from prm.eval.significance import holm, mcnemar
from prm.eval.steps import Bools, Floats

N_SPLITS = 10
"""Random halvings of the tasks over which the cross-fitted regret is averaged."""


class PolicyBudget(NamedTuple):
    """One policy over the grid."""

    n_tasks: int
    n_samples: int
    """Trajectories with a known outcome."""
    n_skipped: int
    """Trajectories without one."""
    n_seeds: int
    pass_at: list[list[Estimate]]
    """K x T; ``n`` and ``n_skipped`` count tasks."""
    pass_hat: list[list[Estimate]]
    """K x T pass^K."""
    steps_per_success: list[Estimate]
    """T."""
    robustness: dict[str, Estimate]
    """Summary -> estimate; infinity where a target is never reached."""
    bias: dict[str, float]
    """Bootstrap bias of those summaries that are minima or maxima."""
    groups: dict[str, Estimate]
    """Value of the ``--by`` key -> Pass@ of the primary cell."""


class Comparison(NamedTuple):
    """Policy ``a`` minus policy ``b`` on the tasks that both have."""

    a: str
    b: str
    n_tasks: int
    difference: Floats
    """(K, T)"""
    low: Floats
    """(K, T) ends of the simultaneous band."""
    high: Floats
    p: Floats
    """(K, T) adjusted for all cells; NaN where all draws agree."""
    primary: Estimate
    """The primary cell, with an interval of its own, symmetric as the band is."""
    primary_p: float
    primary_p_holm: float
    """Adjusted for the number of policy pairs."""
    area: Estimate
    """Difference of the areas under Pass@(1,T) over ln T."""
    only_a: int
    """Tasks that only ``a`` solves within the largest T, with any of its trajectories."""
    only_b: int
    solved_p: float
    """Exact McNemar."""
    solved_p_holm: float

    def survives(self) -> Bools:
        """(K, T) whether the band excludes 0."""
        return (self.low > 0) | (self.high < 0)


class Layout(NamedTuple):
    """Where the statistics lie among the F columns of a table."""

    n_k: int
    n_t: int

    def pass_at(self, columns: Floats) -> Floats:
        """(…, F) -> (…, K, T)"""
        return columns[..., : self.n_k * self.n_t].reshape(*columns.shape[:-1], self.n_k, self.n_t)

    def pass_hat(self, columns: Floats) -> Floats:
        """(…, F) -> (…, K, T)"""
        size = self.n_k * self.n_t
        return columns[..., size : 2 * size].reshape(*columns.shape[:-1], self.n_k, self.n_t)

    def single(self, columns: Floats) -> Floats:
        """(…, F) -> (…, T) Pass@(1,T)"""
        start = 2 * self.n_k * self.n_t
        return columns[..., start : start + self.n_t]

    def turns(self, columns: Floats) -> Floats:
        """(…, F) -> (…, T) mean of min(turns, T)"""
        return columns[..., 2 * self.n_k * self.n_t + self.n_t :]


class Table(NamedTuple):
    """Per-task statistics of one policy on the tasks of the whole report."""

    values: Floats
    """(S, N, F); NaN where a task was not run or has too few samples."""
    solved: Floats
    """(N,) solved within the largest T by any trajectory of any seed; NaN where not run."""
    n_samples: int
    n_skipped: int
    n_each: float
    """Median number of trajectories of a task, at one budget and of one seed."""


def task_table(
    policy: str, seeds: Sequence[Counts], tasks: Sequence[str], k: Sequence[int]
) -> Table:
    """The statistics of one policy; an error where no task has K trajectories."""
    place = {task: number for number, task in enumerate(tasks)}
    n_columns = (2 * len(k) + 2) * len(seeds[0].t)
    values = np.full((len(seeds), len(tasks), n_columns), np.nan)
    solved = np.full(len(tasks), np.nan)
    for seed, counts in enumerate(seeds):
        rows = [place[task] for task in counts.tasks]
        pieces = (
            pass_at_kt(counts.successes, counts.samples, k),
            pass_hat_kt(counts.successes, counts.samples, k),
            pass_at_kt(counts.successes, counts.samples, [1]),
            counts.turns,
        )
        flat = [piece.reshape(len(rows), -1) for piece in pieces]
        values[seed, rows] = np.concatenate(flat, axis=1)
        solved[rows] = np.fmax(
            solved[rows], np.where(counts.samples[:, -1] > 0, counts.successes[:, -1] > 0, np.nan)
        )
    for size in k:
        most = max(int(counts.samples.max()) for counts in seeds)
        if size > most:
            raise PRMError(
                f"K = {size} needs {size} trajectories of a task, but no task of policy "
                f"{policy!r} has more than {most} (choose --k up to {most})"
            )
    return Table(
        values,
        solved,
        sum(int(c.samples[:, -1].sum()) for c in seeds)
        if isinstance(seeds[0], CutCounts)
        else sum(int(c.samples.sum()) for c in seeds),
        sum(c.n_skipped for c in seeds),
        float(np.median(np.concatenate([c.samples[c.samples > 0] for c in seeds]))),
    )


def policy_budget(
    table: Table,
    means: Resampled,
    regret: Resampled | None,
    layout: Layout,
    k: Sequence[int],
    t: Sequence[int],
    primary: tuple[int, int],
    options: BudgetOptions,
) -> PolicyBudget:
    ran = ~np.isnan(table.values).all(axis=(0, 2))
    seen = (~np.isnan(table.values)).any(axis=0).sum(axis=0)
    skipped = int(ran.sum()) - seen
    single = combined(layout.single, means)
    at_t = list(t).index(primary[1])
    summaries = {
        "area_t": combined(lambda p: robustness.area(p, t), single),
        "worst": combined(robustness.worst, single),
        "worst_share": combined(lambda p: robustness.worst_share(p, options.alpha), single),
        "slope": combined(lambda p: robustness.slope(p, t), single),
        "drop_ratio": combined(robustness.drop_ratio, single),
        "area_k": combined(
            lambda columns: robustness.area(layout.pass_at(columns)[..., at_t], k), means
        ),
    }
    if regret is not None:
        summaries["regret_mean"] = combined(lambda r: r.mean(axis=-1), regret)
        summaries["regret_max"] = combined(lambda r: r.max(axis=-1), regret)
    n_tasks = int(ran.sum())
    estimates = {name: _estimate(summary, n_tasks) for name, summary in summaries.items()}
    reached = combined(lambda p: robustness.turns_to_reach(p, t, options.target), single)
    paid = combined(
        lambda columns: robustness.steps_per_success(layout.turns(columns), layout.single(columns)),
        means,
    )
    estimates["turns_to_reach"] = _ordered_estimate(reached, n_tasks)
    noisy = [name for name in ("worst", "worst_share", "regret_max") if name in summaries]
    return PolicyBudget(
        n_tasks=n_tasks,
        n_samples=table.n_samples,
        n_skipped=table.n_skipped,
        n_seeds=len(table.values),
        pass_at=_cells(
            combined(layout.pass_at, means), layout.pass_at(seen), layout.pass_at(skipped)
        ),
        pass_hat=_cells(
            combined(layout.pass_hat, means), layout.pass_hat(seen), layout.pass_hat(skipped)
        ),
        steps_per_success=[
            _ordered_estimate(combined(lambda cells, j=j: cells[..., j], paid), n_tasks)
            for j in range(len(t))
        ],
        robustness=estimates,
        bias={name: float(bias_of(summaries[name])) for name in noisy},
        groups={},
    )


def _cells(means: Resampled, n: Floats, skipped: Floats) -> list[list[Estimate]]:
    low, high = exact_where_all_agree(*bca(means), means.value, n)
    return [
        [
            Estimate(
                float(means.value[i, j]),
                float(low[i, j]),
                float(high[i, j]),
                int(n[i, j]),
                int(skipped[i, j]),
            )
            for j in range(n.shape[1])
        ]
        for i in range(n.shape[0])
    ]


def _estimate(statistic: Resampled, n: int, n_skipped: int = 0) -> Estimate:
    """No interval where all draws agree: there the bootstrap knows nothing about other tasks."""
    low, high = bca(statistic)
    if low == high:
        low = high = np.asarray(np.nan)
    return Estimate(float(statistic.value), float(low), float(high), n, n_skipped)


def _difference(statistic: Resampled, n: int, n_skipped: int = 0) -> Estimate:
    """A difference of two policies with the symmetric interval that agrees with its p-value."""
    low, high, _ = max_t_band(statistic)
    return Estimate(float(statistic.value), float(low), float(high), n, n_skipped)


def _ordered_estimate(statistic: Resampled, n: int) -> Estimate:
    """For values on a grid, or that may be infinite: percentiles that are draws themselves."""
    samples = statistic.samples
    if len(samples) == 0 or np.isnan(samples).mean() > MAX_UNDEFINED:
        return Estimate(float(statistic.value), np.nan, np.nan, n, 0)
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.nanquantile(samples, ends, method="inverted_cdf")
    return Estimate(float(statistic.value), float(low), float(high), n, 0)


def regrets_of(
    tables: Mapping[str, Table], layout: Layout, options: BudgetOptions
) -> dict[str, Resampled]:
    """Policy -> resampled (T,) regret to the best of the policies at each T, cross-fitted.

    Only tasks that all policies were run on count; without at least two policies and four such
    tasks there is none.
    """
    common = common_tasks(tables.values())
    if len(tables) < 2 or common.sum() < 4:
        return {}
    rng = np.random.default_rng([options.seed, 1])
    singles = [layout.single(table.values)[:, common] for table in tables.values()]
    n_tasks = int(common.sum())
    halvings = np.array([rng.permutation(n_tasks) < n_tasks // 2 for _ in range(N_SPLITS)])
    members = np.stack([halvings, ~halvings], axis=1).reshape(2 * N_SPLITS, n_tasks)
    # Halves are columns, so that all halves of a policy have the same seeds drawn.
    drawn = resample_means(
        [
            np.concatenate([np.where(m[None, :, None], single, np.nan) for m in members], axis=2)
            for single in singles
        ],
        resamples=options.resamples,
        rng=np.random.default_rng(options.seed),
    )

    def regrets(*means: Floats) -> Floats:
        halves = np.stack(means, axis=-2)  # (…, P, splits * 2 * T)
        halves = halves.reshape(*halves.shape[:-1], N_SPLITS, 2, layout.n_t)
        halves = np.moveaxis(halves, -4, -2)
        best = robustness.specialist(halves)[..., None, :]
        return np.asarray((best - halves.mean(axis=-3)).mean(axis=-3))

    whole = combined(regrets, *drawn)
    return {
        policy: combined(lambda r, i=place: r[..., i, :], whole)
        for place, policy in enumerate(tables)
    }


def compared(
    a: str,
    b: str,
    tables: Mapping[str, Table],
    layout: Layout,
    t: Sequence[int],
    cell: tuple[int, int],
    options: BudgetOptions,
) -> Comparison:
    common = common_tasks([tables[a], tables[b]])
    pair = [tables[name].values[:, common] for name in (a, b)]
    shared = ~(np.isnan(pair[0]).all(axis=0) | np.isnan(pair[1]).all(axis=0))
    left, right = resample_means(
        [np.where(shared, values, np.nan) for values in pair],
        resamples=options.resamples,
        rng=np.random.default_rng(options.seed),
    )
    difference = combined(np.subtract, left, right)
    cells = combined(layout.pass_at, difference)
    band = max_t_band(cells)
    primary = combined(lambda columns: layout.pass_at(columns)[..., cell[0], cell[1]], difference)
    counted = int(layout.pass_at(np.asarray(shared, dtype=np.float64)).sum(axis=0)[cell])
    area = combined(lambda columns: robustness.area(layout.single(columns), t), difference)
    solved = [tables[name].solved[common] for name in (a, b)]
    only_a = int(((solved[0] == 1) & (solved[1] == 0)).sum())
    only_b = int(((solved[0] == 0) & (solved[1] == 1)).sum())
    n_tasks = int(common.sum())
    return Comparison(
        a,
        b,
        n_tasks,
        cells.value,
        *band,
        primary=_difference(primary, counted, n_tasks - counted),
        primary_p=float(max_t_band(primary).p),
        primary_p_holm=np.nan,
        area=_difference(area, n_tasks),
        only_a=only_a,
        only_b=only_b,
        solved_p=mcnemar(only_a, only_b),
        solved_p_holm=np.nan,
    )


def with_holm(comparisons: list[Comparison]) -> list[Comparison]:
    primary = holm([c.primary_p for c in comparisons])
    solved = holm([c.solved_p for c in comparisons])
    return [
        c._replace(primary_p_holm=float(p), solved_p_holm=float(s))
        for c, p, s in zip(comparisons, primary, solved, strict=True)
    ]


def common_tasks(tables: Iterable[Table]) -> Bools:
    """(N,) tasks on which all policies were run."""
    ran = [~np.isnan(table.values).all(axis=(0, 2)) for table in tables]
    return np.asarray(np.logical_and.reduce(ran))


def by_group(
    table: Table,
    groups: Mapping[str, Bools],
    layout: Layout,
    cell: tuple[int, int],
    options: BudgetOptions,
) -> dict[str, Estimate]:
    found = {}
    for name, member in groups.items():
        column = layout.pass_at(table.values[:, member])[..., cell[0], cell[1], None]
        ran = ~np.isnan(table.values[:, member]).all(axis=(0, 2))
        if not ran.any():
            continue
        (means,) = resample_means(
            [column], resamples=options.resamples, rng=np.random.default_rng(options.seed)
        )
        n = int((~np.isnan(column)).any(axis=0).sum())
        (estimates,) = _cells(
            combined(lambda values: values[..., None, :], means),
            np.array([[n]]),
            np.array([[int(ran.sum()) - n]]),
        )
        found[name] = estimates[0]
    return found
