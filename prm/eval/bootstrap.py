"""Task bootstrap: what a statistic would be on other tasks.

Trajectories of one task are not independent, so tasks are drawn with replacement and all rows of a
task go together (cluster bootstrap; Davison and Hinkley 1997, section 3.8). A draw is a vector of
multiplicities, and one draw serves every policy, cell and statistic: the difference of two samples
is a paired difference.

* :func:`bootstrap` evaluates any function of task weights, one draw at a time.
* :func:`resample_means` is for means over tasks: matrix products, no loop over draws or tasks.
  Training seeds, where a policy has three or more, are drawn on top, for each policy on its own.
  :func:`combined` computes on resampled means: areas, slopes, differences, regrets.

Intervals from the draws are in ``prm.eval.intervals``.

Axes: P policies, S seeds, N tasks, F columns, R draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from prm.errors import PRMError
from prm.eval.steps import Floats

MIN_RESAMPLES = 20
"""Below, the ends of a 95 % interval would be the extremes of the resamples."""
MAX_RESAMPLES = 1_000_000
"""More would move no end of an interval by what anybody prints, and fill the memory."""
CHUNK = 512
"""Draws at a time: bounds the memory at a few MB for a thousand tasks."""
MIN_SEEDS = 3
"""Fewer training seeds give no interval over seeds, and are not drawn."""


def draw(n: int, rows: int, rng: np.random.Generator) -> Floats:
    """(rows, n) how often each of n units is drawn in n draws with replacement.

    >>> drawn = draw(5, 3, np.random.default_rng(0))
    >>> drawn.shape, drawn.sum(axis=1).tolist()
    ((3, 5), [5.0, 5.0, 5.0])
    """
    picked = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(picked.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


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
    >>> float(drawn.value[0]), drawn.samples.shape
    (2.5, (1000, 1))
    """
    _check(n_tasks, resamples)
    value = statistic(np.ones(n_tasks))
    samples = np.full((resamples, *value.shape), np.nan)
    for row in range(resamples if n_tasks > 1 else 0):
        samples[row] = statistic(draw(n_tasks, 1, rng)[0])
    return Bootstrap(value, samples)


class Resampled(NamedTuple):
    """Statistics on the data, on R draws, and with one unit left out; (…) is their shape."""

    value: Floats
    """(…)"""
    samples: Floats
    """(R, …)"""
    left_out: tuple[Floats, ...]
    """(N, …) without each task, then, if seeds were drawn, (S, …) without each seed."""


def resample_means(
    arrays: Sequence[Floats], *, resamples: int, rng: np.random.Generator
) -> list[Resampled]:
    """Means over tasks of one array for each policy, all on the same drawn tasks.

    Args:
        arrays: P arrays (S, N, F) with the same N; NaN = not observed, left out of the mean. A
            mean is that of all observed (seed, task) pairs.
        resamples: R draws.
        rng: source of the draws.

    Returns:
        P :class:`Resampled` of shape (F,). A mean without any task is NaN. One task says nothing
        about others: with N = 1 all samples are NaN.

    Raises:
        PRMError: as :func:`bootstrap`.
    """
    n_tasks = arrays[0].shape[1]
    _check(n_tasks, resamples)
    sums = [_Sums(array) for array in arrays]
    samples = [np.full((resamples, array.shape[2]), np.nan) for array in arrays]
    # Streams of their own: the tasks drawn do not depend on how many seeds a policy has.
    task_rng, *seed_rngs = rng.spawn(1 + len(arrays))
    for start in range(0, resamples if n_tasks > 1 else 0, CHUNK):
        rows = slice(start, min(start + CHUNK, resamples))
        n_rows = rows.stop - rows.start
        tasks = draw(n_tasks, n_rows, task_rng)
        for one, table, seed_rng in zip(samples, sums, seed_rngs, strict=True):
            n_seeds = len(table.filled)
            seeds = draw(n_seeds, n_rows, seed_rng) if n_seeds >= MIN_SEEDS else None
            one[rows] = table.means(tasks, seeds)
    return [
        Resampled(table.means(np.ones((1, n_tasks)), None)[0], one, table.left_out())
        for one, table in zip(samples, sums, strict=True)
    ]


class _Sums:
    """One policy's values, ready for weighted means."""

    def __init__(self, values: Floats) -> None:
        self.observed = ~np.isnan(values)
        self.complete = bool(self.observed.all())
        self.filled = np.nan_to_num(values)
        self.counted = self.observed.astype(np.float64)

    def means(self, tasks: Floats, seeds: Floats | None) -> Floats:
        """(rows, F) means with tasks (rows, N) and seeds (rows, S) weighted; None = 1 each."""
        total, count = 0.0, 0.0
        for seed, (filled, counted) in enumerate(zip(self.filled, self.counted, strict=True)):
            weight = 1.0 if seeds is None else seeds[:, seed, None]
            total = total + weight * (tasks @ filled)
            observed = tasks.sum(axis=1, keepdims=True) if self.complete else tasks @ counted
            count = count + weight * observed
        return _ratio(np.asarray(total), np.asarray(count))

    def left_out(self) -> tuple[Floats, ...]:
        """Means without each task (N, F), and without each seed (S, F) where seeds are drawn."""
        total, count = self.filled.sum(axis=(0, 1)), self.counted.sum(axis=(0, 1))
        groups = [_ratio(total - self.filled.sum(axis=0), count - self.counted.sum(axis=0))]
        if len(self.filled) >= MIN_SEEDS:
            groups.append(_ratio(total - self.filled.sum(1), count - self.counted.sum(1)))
        return tuple(groups)


def _ratio(total: Floats, count: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, total / count, np.nan)


def combined(function: Callable[..., Floats], *inputs: Resampled) -> Resampled:
    """``function`` of resampled statistics, itself resampled.

    ``function`` takes one array (…, F) for each input and works on leading axes of any number. The
    tasks of all inputs are the same; the seeds of each are its own.
    """
    values = [one.value for one in inputs]
    left_out = [function(*(one.left_out[0] for one in inputs))]
    for place, one in enumerate(inputs):
        for group in one.left_out[1:]:
            others = [np.broadcast_to(v, (len(group), *v.shape)) for v in values]
            left_out.append(function(*others[:place], group, *others[place + 1 :]))
    return Resampled(
        np.asarray(function(*values)),
        function(*(one.samples for one in inputs)),
        tuple(left_out),
    )


def _check(n_tasks: int, resamples: int) -> None:
    if n_tasks < 1:
        raise PRMError(f"expected at least 1 task to resample, found {n_tasks}")
    if resamples != 0 and not MIN_RESAMPLES <= resamples <= MAX_RESAMPLES:
        raise PRMError(
            f"--bootstrap: expected 0 resamples (no intervals) or {MIN_RESAMPLES} to "
            f"{MAX_RESAMPLES:,}, found {resamples}"
        )
