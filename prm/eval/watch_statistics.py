"""Statistics of the hacking watch: functions of task weights, and their estimates.

A statistic is a function of how often each task counts, so that all of them can be evaluated on the
same resampled tasks.

* Rank correlation inside groups is Somers' D (Somers 1962, doi:10.2307/2090408): of the pairs of a
  group that differ in x, the share in which y goes the same way minus the share in which it goes
  the other way. For a binary x it is 2 AUROC − 1. Unlike Spearman's it is defined, as 0, where y is
  constant.
* Intervals are BCa. Where all n tasks have the same value v of a mean of values in [a, b], at most
  a share r = 1 − 0.025^(1/n) of all tasks can be otherwise, so the mean is in
  [v − r (v − a), v + r (b − v)]. Where all draws of anything else agree, there is no interval.

Axes: B items (steps or traces) in G groups, N tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from prm.eval.bootstrap import Resampled, bootstrap
from prm.eval.estimate import Estimate
from prm.eval.intervals import bca, exact_reach
from prm.eval.steps import Bools, Floats, Ints, spearman_of_groups, tied_groups


class Statistic(NamedTuple):
    """A number that is not yet taken."""

    evaluate: Callable[[Floats], float]
    """Task weights (N,) -> value; NaN where it is not defined."""
    n: int
    n_skipped: int
    bounds: tuple[float, float] | None = None
    """The range of the values of single tasks, if this is their mean."""


def share_of_task(used: Bools, task: Ints, n_tasks: int) -> Floats:
    """(B,) 1 / (number of used items of the same task); 0 for items that are not used."""
    count = np.bincount(task, used, n_tasks)
    return used / np.maximum(count, 1)[task]


def mean_by_task(values: Floats, used: Bools, task: Ints, n_tasks: int) -> Floats:
    """(N,) mean of the used values (B,) of each task; NaN where there is none."""
    total = _sums(values[used], task[used], n_tasks)
    count = np.bincount(task[used], minlength=n_tasks)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def task_mean(values: Floats, bounds: tuple[float, float] | None = None) -> Statistic:
    """The mean of (N,) values; tasks where it is NaN are left out. ``n`` counts tasks."""
    used = ~np.isnan(values)
    n = int(used.sum())
    return Statistic(_ratio(np.where(used, values, 0.0), 1.0 * used), n, len(values) - n, bounds)


def item_mean(
    values: Floats, weight: Floats, task: Ints, n_tasks: int, n_skipped: int
) -> Statistic:
    """The mean of (B,) values by weight >= 0. Values of weight 0 need not be known."""
    part = np.where(weight > 0, weight * values, 0.0)
    mean = _ratio(_sums(part, task, n_tasks), _sums(weight, task, n_tasks))
    return Statistic(mean, int((weight > 0).sum()), n_skipped)


def slope_within(
    x: Floats, y: Floats, weight: Floats, task: Ints, n_tasks: int, n_skipped: int
) -> Statistic:
    """Slope of (B,) y on x by least squares, with an intercept for each task: Σ Sxy / Σ Sxx.

    The weights are equal within tasks. ``n`` counts items whose x is not the mean of their task.
    """
    centred = x - mean_by_task(x, np.full(len(x), True), task, n_tasks)[task]
    sxy, sxx = weight * centred * y, weight * centred**2
    slope = _ratio(_sums(sxy, task, n_tasks), _sums(sxx, task, n_tasks))
    return Statistic(slope, int((sxx > 0).sum()), n_skipped)


def pair_correlation(x: Floats, y: Floats, group: Ints, task: Ints, n_tasks: int) -> Floats:
    """(N,) Somers' D of (B,) y on x over the pairs in the same group; in [−1, 1].

    Pairs of all groups of a task are taken together; a group is part of one task. NaN where no pair
    differs in x.

    >>> zeros = np.zeros(3, dtype=int)
    >>> pair_correlation(np.array([1.0, 2, 3]), np.array([5.0, 7, 7]), zeros, zeros, 1).round(3)
    array([0.667])
    """
    net, pairs = np.zeros((2, n_tasks))
    order = np.argsort(group, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        for value in np.unique(x[members])[1:]:
            here = y[members[x[members] == value]]
            below = np.sort(y[members[x[members] < value]])
            lower = np.searchsorted(below, here, "left")
            higher = len(below) - np.searchsorted(below, here, "right")
            net[task[members[0]]] += (lower - higher).sum()
            pairs[task[members[0]]] += len(here) * len(below)
    return np.where(pairs > 0, net / np.maximum(pairs, 1), np.nan)


def spearman(x: Floats, y: Floats, weight: Floats, task: Ints, n_skipped: int) -> Statistic:
    """Spearman's rank correlation of (B,) items of all tasks; items of weight 0 are left out."""
    used = weight > 0
    a, b, weight, task = tied_groups(x[used]), tied_groups(y[used]), weight[used], task[used]
    return Statistic(
        lambda task_weight: spearman_of_groups(a, b, task_weight[task] * weight),
        len(a),
        n_skipped,
    )


def combination(weights: Sequence[float], statistics: Sequence[Statistic], n: int) -> Statistic:
    """A weighted sum of statistics, paired by task. ``n`` is not known from the parts.

    >>> one = task_mean(np.array([1.0, 3.0]))
    >>> combination([1, -0.5], [one, one], 2).evaluate(np.ones(2))
    1.0
    """
    return Statistic(
        lambda task_weight: sum(
            weight * one.evaluate(task_weight)
            for weight, one in zip(weights, statistics, strict=True)
        ),
        n,
        max(one.n_skipped for one in statistics),
    )


def estimate(
    statistics: Mapping[str, Statistic], n_tasks: int, *, resamples: int, seed: int
) -> dict[str, Estimate]:
    """All statistics by name, with 95 % intervals from the same draws of the N tasks."""

    def evaluate(task_weight: Floats) -> Floats:
        values = [one.evaluate(task_weight) for one in statistics.values()]
        # Sums of thirds depend on their order, and draws that agree have to be recognised.
        return np.round(values, 12)

    rng = np.random.default_rng(seed)
    value, samples = bootstrap(evaluate, n_tasks, resamples=resamples, rng=rng)
    left_out = np.array([evaluate(1 - one) for one in np.eye(n_tasks)])
    ends = zip(*bca(Resampled(value, samples, (left_out,))), strict=True)
    return {
        name: Estimate(float(v), *_interval(one, v, low, high), one.n, one.n_skipped)
        for (name, one), v, (low, high) in zip(statistics.items(), value, ends, strict=True)
    }


def _interval(one: Statistic, value: float, low: float, high: float) -> tuple[float, float]:
    """The interval, or what stands for it where all draws agree."""
    if low != high:
        return float(low), float(high)
    if one.bounds is None:
        return math.nan, math.nan
    reach = exact_reach(np.array(one.n))
    least, most = one.bounds
    return float(value - reach * (value - least)), float(value + reach * (most - value))


def _sums(values: Floats, task: Ints, n_tasks: int) -> Floats:
    """(N,) sums of (B,) values."""
    total = np.zeros(n_tasks)
    np.add.at(total, task, values)
    return total


def _ratio(part: Floats, weight: Floats) -> Callable[[Floats], float]:
    """Task weights -> ratio of the weighted sums of (N,) parts and weights."""

    def ratio(task_weight: Floats) -> float:
        total = float(task_weight @ weight)
        return float(task_weight @ part) / total if total > 0 else math.nan

    return ratio
