"""How a policy's success depends on its turn budget: summaries of p(T) = Pass@(1,T).

With budgets T_1 < … < T_m, each summary is a function of arrays (…, T) on any leading axes, so that
one call serves the data, all bootstrap draws and the jackknife. The log scale weighs a doubling of
the budget alike everywhere. No published formula for language agents was found for these; they are
definitions of this package.

Minima and maxima of noisy cells are biased (the least cell is too low, the largest regret too
high); reports put the bootstrap estimate of that bias beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.integrate import trapezoid

from prm.eval.steps import Floats


def area(p: Floats, grid: Sequence[int]) -> Floats:
    """Mean height of p over ln T (or ln K): the trapezoid area divided by ln(T_m / T_1).

    In [0, 1]; NaN on a grid of one value, which has no area.

    >>> float(area(np.array([0.0, 0.5, 1.0]), [1, 2, 4]))
    0.5
    """
    if len(grid) < 2:
        return np.full(p.shape[:-1], np.nan)
    log = np.log(np.asarray(grid, dtype=np.float64))
    return np.asarray(trapezoid(p, log, axis=-1) / (log[-1] - log[0]))


def worst(p: Floats) -> Floats:
    """The least p(T) of the grid."""
    return np.asarray(p.min(axis=-1))


def worst_share(p: Floats, alpha: float = 0.25) -> Floats:
    """Mean of the ceil(alpha m) lowest p(T): conditional value at risk over budgets.

    NaN where a p(T) is, which may be among the lowest.

    >>> float(worst_share(np.array([0.4, 0.1, 0.3, 0.2, 0.9]), alpha=0.4).round(3))
    0.15
    """
    count = max(1, math.ceil(alpha * p.shape[-1] - 1e-9))
    lowest = np.sort(p, axis=-1)[..., :count].mean(axis=-1)
    return np.asarray(np.where(np.isnan(p).any(axis=-1), np.nan, lowest))


def slope(p: Floats, grid: Sequence[int]) -> Floats:
    """Least-squares slope of p on log2 T: what a doubling of the budget brings.

    >>> float(slope(np.array([0.1, 0.2, 0.3]), [1, 2, 4]).round(3))
    0.1
    """
    if len(grid) < 2:
        return np.full(p.shape[:-1], np.nan)
    log = np.log2(np.asarray(grid, dtype=np.float64))
    centred = log - log.mean()
    return np.asarray(p @ centred / (centred @ centred))


def drop_ratio(p: Floats) -> Floats:
    """p(T_1) / p(T_m): what is left at the tightest budget; NaN where p(T_m) is 0."""
    first, last = p[..., 0], p[..., -1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(last > 0, first / last, np.nan))


def turns_to_reach(p: Floats, grid: Sequence[int], target: float) -> Floats:
    """The least budget T of the grid with p(T) >= target; infinity where no budget reaches it.

    >>> turns_to_reach(np.array([[0.1, 0.4, 0.6], [0.1, 0.2, 0.3]]), [1, 2, 4], 0.5)
    array([ 4., inf])
    """
    # A mean of many cells that is equal to the target up to rounding has reached it.
    # Where a NaN comes first, the target may have been reached there.
    stop = (p >= target - 1e-12) | np.isnan(p)
    first = stop.argmax(axis=-1)
    unknown = np.isnan(np.take_along_axis(p, first[..., None], axis=-1)[..., 0])
    budgets = np.where(unknown, np.nan, np.asarray(grid, dtype=np.float64)[first])
    return np.asarray(np.where(stop.any(axis=-1), budgets, np.inf))


def steps_per_success(turns: Floats, p: Floats) -> Floats:
    """E[min(turns, T)] / p(T): turns paid for each success; infinity where nothing succeeds.

    The turn analogue of cost of pass (Erol et al. 2025, arXiv 2504.13359).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(p > 0, turns / p, np.where(np.isnan(p), np.nan, np.inf)))


def specialist(halves: Floats) -> Floats:
    """What the best policy at each budget is worth, chosen on one half of the tasks and scored on
    the other, both ways, so that luck in the choice is not counted.

    Args:
        halves: (…, 2, P, T) p(T) of P policies on the two halves of the tasks.

    Returns:
        (…, T) mean of the two crossed scores; policies that tie share the choice. NaN in a half
        makes it NaN.

    >>> halves = np.array([[[0.6], [0.5]], [[0.2], [0.5]]])  # the first looks better on one half
    >>> specialist(halves)  # (0.2 + 0.5) / 2, not 0.55
    array([0.35])
    """
    best = halves.max(axis=-2, keepdims=True)  # NaN where a policy is
    # Up to rounding: sums of the same outcomes may differ in their last bits.
    chosen = np.where(np.isnan(best), np.nan, halves >= best - 1e-12)
    crossed = halves[..., ::-1, :, :] * chosen / chosen.sum(axis=-2, keepdims=True)
    return np.asarray(crossed.sum(axis=-2).mean(axis=-2))
