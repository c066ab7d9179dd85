"""From metrics to intervals: named statistics of task weights, resampled together.

A :class:`Measure` knows its items and how to value them when each task counts ``weight`` times;
:func:`measure_all` bootstraps many of them on the same resampled tasks, so that any two can be
compared as a pair. Rows are sorted by score once, here, which makes the rank metrics cheap in
every resample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from prm.eval.bootstrap import bootstrap
from prm.eval.estimate import Estimate
from prm.eval.intervals import interval
from prm.eval.steps import (
    STEP_METRICS,
    Floats,
    Ints,
    is_probability,
    spearman_of_groups,
    tied_groups,
)
from prm.eval.traces import NO_ERROR, FirstError, first_error

Estimates = dict[str, Estimate]


class Measure(NamedTuple):
    """Q named metrics of one scorer."""

    counts: dict[str, tuple[int, int]]
    """Metric -> (n, n_skipped), in the order of the values."""
    evaluate: Callable[[Floats], Sequence[float]]
    """Task weights (N,) -> Q values."""


class Measured(NamedTuple):
    """Measures of several scorers on the same resampled tasks."""

    counts: dict[str, tuple[int, int]]
    value: dict[str, Floats]
    """Scorer -> (Q,)."""
    samples: dict[str, Floats]
    """Scorer -> (resamples, Q)."""

    def estimates(self, scorer: str) -> Estimates:
        """Metric -> value with interval."""
        return self._with_intervals(self.value[scorer], self.samples[scorer])

    def difference(self, scorer: str, other: str) -> Estimates:
        """Metric -> scorer − other, paired by resample."""
        return self._with_intervals(
            self.value[scorer] - self.value[other], self.samples[scorer] - self.samples[other]
        )

    def _with_intervals(self, value: Floats, samples: Floats) -> Estimates:
        return {
            metric: Estimate(float(value[q]), *interval(samples[:, q]), n, n_skipped)
            for q, (metric, (n, n_skipped)) in enumerate(self.counts.items())
        }


def measure_all(
    measures: Mapping[str, Measure], n_tasks: int, *, resamples: int, seed: int
) -> Measured:
    """Bootstrap the measures of all scorers, which have the same metrics, over the same tasks.

    Calls with the same ``n_tasks``, ``resamples`` and ``seed`` resample the same tasks.
    """
    drawn = bootstrap(
        lambda weight: np.array([measure.evaluate(weight) for measure in measures.values()]),
        n_tasks,
        resamples=resamples,
        rng=np.random.default_rng(seed),
    )
    counts = next((measure.counts for measure in measures.values()), {})
    return Measured(
        counts,
        dict(zip(measures, drawn.value, strict=True)),
        dict(zip(measures, drawn.samples.swapaxes(0, 1), strict=True)),
    )


def joined(*measures: Measure) -> Measure:
    """The measures of one scorer as one."""
    counts = {name: count for measure in measures for name, count in measure.counts.items()}
    return Measure(
        counts, lambda weight: [v for measure in measures for v in measure.evaluate(weight)]
    )


def step_measure(
    label: Floats,
    score: Floats,
    task: Ints,
    n_skipped: int,
    *,
    positive_at: float,
    threshold: float,
    soft_brier: bool,
) -> Measure:
    """The step metrics of M labelled, scored steps.

    Brier and calibration error are NaN when a score is no probability.
    """
    order = np.argsort(-score, kind="stable")
    label, score, task = label[order], score[order], task[order]
    positive = (label >= positive_at).astype(np.float64)
    predicted = (score >= threshold).astype(np.float64)
    as_probability = is_probability(score)
    inputs = {
        "ranking": (positive, score),
        "probability": (positive, score),
        "class": (positive, predicted),
    }
    metrics = {name: metric for name, metric in STEP_METRICS.items() if metric.needs in inputs}

    def evaluate(task_weight: Floats) -> list[float]:
        weight = task_weight[task]
        values = []
        for name, metric in metrics.items():
            target, given = inputs[metric.needs]
            if name == "brier" and soft_brier:
                target = label
            defined = as_probability or metric.needs != "probability"
            values.append(metric.function(target, given, weight) if defined else np.nan)
        return values

    return Measure(dict.fromkeys(metrics, (len(score), n_skipped)), evaluate)


def rank_measure(label: Floats, score: Floats, task: Ints, n_skipped: int) -> Measure:
    """Rank correlation of scores with soft labels."""
    a, b = tied_groups(label), tied_groups(score)
    return Measure(
        {"spearman": (len(label), n_skipped)},
        lambda weight: [spearman_of_groups(a, b, weight[task])],
    )


def first_error_measure(
    truth: Floats, predicted: Floats, trace_task: Ints, n_skipped: int
) -> Measure:
    """First-error metrics of B traces whose first error is known."""
    n_erroneous = int((truth != NO_ERROR).sum())
    n = FirstError(len(truth), n_erroneous, len(truth) - n_erroneous, len(truth))
    return Measure(
        {f"first_error.{name}": (int(count), n_skipped) for name, count in n._asdict().items()},
        lambda weight: first_error(truth, predicted, weight[trace_task]),
    )


def mean_measure(name: str, value: Floats, task: Ints, n_skipped: int) -> Measure:
    """The mean of a value of R items (steps, traces or tasks), each of a task."""

    def evaluate(task_weight: Floats) -> list[float]:
        weight = task_weight[task]
        return [float(weight @ value / weight.sum()) if weight.sum() > 0 else np.nan]

    return Measure({name: (len(value), n_skipped)}, evaluate)
