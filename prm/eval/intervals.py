"""Intervals from bootstrap draws.

* Percentile (Efron 1981): for statistics of which only draws are known.
* BCa, bias-corrected and accelerated (Efron 1987, doi:10.1080/01621459.1987.10478410): the
  acceleration comes from the jackknife, summed over tasks and seeds as for several samples (Davison
  and Hinkley 1997, equation 5.26).
* Where all tasks have a mean of exactly 0, every draw says 0. There the upper end is
  1 - alpha^(1/N), which holds for any values in [0, 1] because P(X = 0) <= 1 - E X; at 1 likewise.
* Simultaneous band: the largest |t| over the cells (Romano and Wolf 2005, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from prm.eval.bootstrap import Resampled
from prm.eval.steps import Floats

MAX_UNDEFINED = 0.05
"""Share of undefined resamples above which there is no interval."""
LEVEL = 0.95


def interval(samples: Floats, level: float = LEVEL) -> tuple[float, float]:
    """The percentile interval (low, high) of resampled values (R,) at ``level`` in (0, 1).

    Resamples on which the statistic is not defined (one class only, say) cannot take part. They
    are few where the interval means anything: with more than 5 % of them, or with no resample at
    all, it is (NaN, NaN).
    """
    if len(samples) == 0 or np.isnan(samples).mean() > MAX_UNDEFINED:
        return (np.nan, np.nan)
    low, high = np.nanquantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bca(statistic: Resampled, level: float = LEVEL) -> tuple[Floats, Floats]:
    """BCa interval (low, high), of the statistic's shape; (value, value) where all draws agree.

    NaN where more than 5 % of the draws are not defined, or there is no draw. A value beyond all
    draws would put the bias correction at infinity; it is taken to lie half a draw inside.

    >>> from prm.eval.bootstrap import resample_means
    >>> values = np.arange(8.0).reshape(1, 8, 1)
    >>> (mean,) = resample_means([values], resamples=2000, rng=np.random.default_rng(0))
    >>> low, high = bca(mean)
    >>> bool(1.7 < low[0] < 2.2 and 4.7 < high[0] < 5.3)
    True
    """
    n_draws = len(statistic.samples)
    undefined = np.isnan(statistic.samples)
    if n_draws == 0:
        nothing = np.full(statistic.value.shape, np.nan)
        return nothing, nothing
    ordered = np.sort(statistic.samples, axis=0)  # NaN last
    counts = n_draws - undefined.sum(axis=0)
    below, ties = _place(statistic.samples, statistic.value)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (below + ties / 2) / counts
        bias = ndtri(np.clip(share, 0.5 / counts, 1 - 0.5 / counts))
        slope = _acceleration(statistic.left_out)
        ends = []
        for tail in ((1 - level) / 2, (1 + level) / 2):
            shifted = bias + ndtri(tail)
            quantile = ndtr(bias + shifted / (1 - slope * shifted))
            ends.append(_sorted_quantile(ordered, quantile, counts))
    usable = undefined.mean(axis=0) <= MAX_UNDEFINED
    low, high = (np.where(usable, end, np.nan) for end in ends)
    return low, high


def exact_reach(n: Floats, level: float = LEVEL) -> Floats:
    """How far from 0 the mean of values in [0, 1] may lie when all n of them are 0.

    >>> round(float(exact_reach(np.array(50))), 3)
    0.071
    """
    return np.asarray(1 - ((1 - level) / 2) ** (1 / n))


def exact_where_all_agree(
    low: Floats, high: Floats, value: Floats, n: Floats, level: float = LEVEL
) -> tuple[Floats, Floats]:
    """Replace the empty interval of a mean of n values in [0, 1] that are all 0, or all 1.

    >>> zero = np.zeros(1)
    >>> low, high = exact_where_all_agree(zero, zero, zero, np.array([50]))
    >>> float(low[0]), round(float(high[0]), 3)
    (0.0, 0.071)
    """
    with np.errstate(divide="ignore"):
        reach = exact_reach(n, level)
    agree = (low == high) & (n > 0)
    low = np.where(agree & (value == 1), 1 - reach, low)
    high = np.where(agree & (value == 0), reach, high)
    return low, high


class Band(NamedTuple):
    """A simultaneous band over cells, each array of the statistic's shape."""

    low: Floats
    high: Floats
    p: Floats
    """Adjusted p-value of "this cell is 0": share of draws whose largest |t| is as large."""


def max_t_band(statistic: Resampled, level: float = LEVEL) -> Band:
    """The band that holds all cells at once in ``level`` of the draws, by the largest |t|.

    On one cell it is the symmetric interval value ± reach, which for differences of paired cells
    covers better than BCa (``eval/results/coverage.md``). Draws of N tasks vary less than new
    samples do; the reach is widened by sqrt(N / (N - 1)) and the ratio of the t to the normal
    quantile (Hesterberg 2015, doi:10.1080/00031305.2015.1089789). A cell is outside the band
    exactly where its p-value is at most 1 - ``level``.

    Cells where all draws agree, or where more than 5 % of the draws are not defined, have no
    standard error; they take no part and are NaN.
    """
    samples = statistic.samples
    n_tasks = len(statistic.left_out[0])
    allowed = math.floor((1 - level) * (1 + len(samples)) + 1e-9) - 1
    if allowed < 0 or n_tasks < 2:
        nothing = np.full(statistic.value.shape, np.nan)
        return Band(nothing, nothing, nothing)
    tail = (1 + level) / 2
    wider = math.sqrt(n_tasks / (n_tasks - 1)) * float(stdtrit(n_tasks - 1, tail) / ndtri(tail))
    defined = np.isnan(samples).mean(axis=0) <= MAX_UNDEFINED
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(defined, np.nanstd(np.where(defined, samples, 0.0), axis=0, ddof=1), 0.0)
        scale = np.where(error > 1e-12, error, np.nan)
        drawn = np.nan_to_num(np.abs(samples - statistic.value) / scale)
        size = np.abs(statistic.value) / (scale * wider)
    largest = np.sort(drawn.reshape(len(samples), -1).max(axis=1))
    beyond = len(largest) - np.searchsorted(largest, np.nan_to_num(size), side="left")
    p = np.where(np.isnan(scale), np.nan, (1 + beyond) / (1 + len(largest)))
    reach = largest[len(largest) - 1 - allowed] * scale * wider
    return Band(statistic.value - reach, statistic.value + reach, p)


def bias_of(statistic: Resampled) -> Floats:
    """Bootstrap estimate of the bias: mean of the draws minus the value (Efron 1979).

    Large for minima and maxima of noisy cells: the plug-in minimum is too low.
    """
    defined = ~np.isnan(statistic.samples)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(defined, statistic.samples, 0).sum(axis=0) / defined.sum(axis=0)
    return np.asarray(mean - statistic.value)


def _place(samples: Floats, value: Floats) -> tuple[Floats, Floats]:
    """How many draws lie below the value, and how many equal it up to rounding."""
    near = 1e-9 * np.maximum(1.0, np.abs(value))
    return (samples < value - near).sum(axis=0), (np.abs(samples - value) <= near).sum(axis=0)


def _acceleration(groups: Sequence[Floats]) -> Floats:
    """sum_g n_g^-3 sum l^3 / (6 (sum_g n_g^-2 sum l^2)^1.5), l the jackknife influences."""
    third: Floats | float = 0.0
    second: Floats | float = 0.0
    for group in groups:
        n = len(group)
        defined = ~np.isnan(group)
        mean = np.where(defined, group, 0).sum(axis=0) / np.maximum(defined.sum(axis=0), 1)
        influence = np.where(defined, (n - 1) * (mean - group), 0)
        third = third + (influence**3).sum(axis=0) / n**3
        second = second + (influence**2).sum(axis=0) / n**2
    second = np.asarray(second)
    return np.where(second > 0, third / (6 * np.where(second > 0, second, 1) ** 1.5), 0.0)


def _sorted_quantile(ordered: Floats, quantile: Floats, counts: Floats) -> Floats:
    """Interpolate each column of (R, …) sorted draws, of which the first ``counts`` are numbers."""
    place = np.nan_to_num(quantile) * np.maximum(counts - 1, 0)
    before = np.floor(place).astype(int)
    after = np.minimum(before + 1, np.maximum(counts - 1, 0))
    lower = np.take_along_axis(ordered, before[None], axis=0)[0]
    upper = np.take_along_axis(ordered, after[None].astype(int), axis=0)[0]
    part = place - before
    found: Floats = np.where(part == 0, lower, lower + part * (upper - lower))
    return found
