"""Task bootstrap: intervals that respect that the traces of one task are not independent.

Tasks are drawn with replacement and all rows of a task go together (cluster bootstrap; Davison and
Hinkley 1997, section 3.8). A draw is a vector of multiplicities, so a statistic is a function of
task weights, and one draw serves every statistic: the difference of two columns of the samples is
a paired difference. Intervals are percentiles (Efron 1981).

Left out: BCa and exact intervals for few tasks, resampling of training seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prm.errors import PRMError

Floats = NDArray[np.float64]

MIN_RESAMPLES = 20
"""Below, the ends of a 95 % interval would be the extremes of the resamples."""
MAX_UNDEFINED = 0.05
"""Share of undefined resamples above which there is no interval."""


class Bootstrap(NamedTuple):
    """Statistics of any shape on the data and on R resamples of its tasks."""

    value: Floats
    """(…) on the tasks as they are."""
    samples: Floats
    """(R, …), one row a resample; NaN where the statistic is not defined on it."""


def bootstrap(
    statistic: Callable[[Floats], Floats],
    n_tasks: int,
    *,
    resamples: int,
    rng: np.random.Generator,
) -> Bootstrap:
    """Evaluate ``statistic`` on all N tasks and on R = ``resamples`` draws of N tasks.

    ``statistic`` maps task weights (N,), multiplicities that sum to N, to an array. One task says
    nothing about others: with N = 1 all samples are NaN. Raises :class:`PRMError` without a task
    or for 1 to 19 ``resamples``, which are too few for an interval; 0 are for none.

    >>> x = np.array([1.0, 2.0, 3.0, 4.0])
    >>> mean = lambda w: np.array([np.average(x, weights=w)])
    >>> drawn = bootstrap(mean, 4, resamples=1000, rng=np.random.default_rng(0))
    >>> float(drawn.value[0]), interval(drawn.samples[:, 0])
    (2.5, (1.5, 3.5))
    """
    if n_tasks < 1:
        raise PRMError(f"expected at least 1 task to resample, found {n_tasks}")
    if resamples != 0 and resamples < MIN_RESAMPLES:
        raise PRMError(
            f"--bootstrap: expected 0 resamples (no intervals) or at least {MIN_RESAMPLES}, "
            f"found {resamples}"
        )
    value = statistic(np.ones(n_tasks))
    samples = np.full((resamples, *value.shape), np.nan)
    for row in range(resamples if n_tasks > 1 else 0):
        drawn = rng.integers(n_tasks, size=n_tasks)
        samples[row] = statistic(np.bincount(drawn, minlength=n_tasks).astype(np.float64))
    return Bootstrap(value, samples)


def interval(samples: Floats, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval (low, high) of resampled values (R,) at ``level`` in (0, 1).

    Resamples on which the statistic is not defined (one class only, say) cannot take part. They
    are few where the interval means anything: with more than 5 % of them, or with no resample at
    all, it is (NaN, NaN).
    """
    if len(samples) == 0 or np.isnan(samples).mean() > MAX_UNDEFINED:
        return (np.nan, np.nan)
    low, high = np.nanquantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
