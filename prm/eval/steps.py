"""Step metrics: pure functions of arrays, with NaN for "not defined" and never a guess.

Axes: M steps or R ranked items (flat, in any order), B traces. ``positive`` is 1.0 or 0.0,
``score`` is higher for better steps, and ``weight`` (None = 1 each) counts an item as often as a
repetition would, exactly. Missing items (NaN) are taken out by :func:`known` beforehand, so that
whoever does it can count them; a NaN that gets this far is an error.

Names say the direction: ``brier`` and ``calibration_error`` are better when lower, all others when
higher. First errors and the choice among samples are in ``prm.eval.traces``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prm.errors import PRMError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

N_BINS = 10
"""Equal-width bins of the calibration error, as Guo et al. (2017) use on small test sets."""


def known(*columns: Floats) -> NDArray[np.bool_]:
    """(M,) True where no column is NaN; ``(~known(…)).sum()`` is the number skipped."""
    mask: NDArray[np.bool_] = np.all([~np.isnan(column) for column in columns], axis=0)
    return mask


def is_probability(values: Floats) -> bool:
    """Whether every value is in [0, 1]."""
    return bool(((values >= 0) & (values <= 1)).all())


def auroc(positive: Floats, score: Floats, weight: Floats | None = None) -> float:
    """Area under the ROC curve: P(a positive outscores a negative), ties count half. In [0, 1].

    NaN when only one class has weight. Fawcett (2006), algorithm 3; equals
    ``sklearn.metrics.roc_auc_score``, and is its own function because a bootstrap calls it
    thousands of times and rows that are already in order cost no sorting here.

    >>> auroc(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.1, 0.4, 0.35, 0.8]))
    0.75
    """
    hits, misses = _cumulative(positive, score, weight)
    if hits[-1] == 0 or misses[-1] == 0:
        return np.nan
    width = np.diff(misses, prepend=0.0)
    height = (hits + np.concatenate(([0.0], hits[:-1]))) / 2
    return float(width @ height / (hits[-1] * misses[-1]))


def average_precision(positive: Floats, score: Floats, weight: Floats | None = None) -> float:
    """Precision at each threshold, weighted by the recall it adds. In [0, 1], chance = base rate.

    NaN when no positive has weight. Equals ``sklearn.metrics.average_precision_score`` (no
    interpolation).

    >>> round(average_precision(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.1, 0.4, 0.35, 0.8])), 4)
    0.8333
    """
    hits, misses = _cumulative(positive, score, weight)
    if hits[-1] == 0:
        return np.nan
    gained = np.diff(hits, prepend=0.0)
    # A first group of weight 0 has no precision (0/0), and gains nothing either.
    precision = np.divide(hits, hits + misses, out=np.zeros_like(hits), where=hits + misses > 0)
    return float(gained @ precision / hits[-1])


def brier(label: Floats, score: Floats, weight: Floats | None = None) -> float:
    """Mean squared difference of probability and label, both in [0, 1]. Lower is better.

    Labels may be soft: the mean is then lowest for the label's own expectation. NaN when nothing
    has weight. Brier (1950), in the one-column form of ``sklearn.metrics.brier_score_loss``.

    >>> brier(np.array([1.0, 0.0]), np.array([0.8, 0.4]))
    0.1
    """
    _check_unit("label", label)
    _check_unit("score", score)
    return _mean((score - label) ** 2, weight)


def calibration_error(positive: Floats, score: Floats, weight: Floats | None = None) -> float:
    """Expected calibration error over 10 equal-width bins of the score. In [0, 1], lower is better.

    Mean over bins of |mean label − mean score|, weighted by the bins' weights; bin m holds scores
    in ((m−1)/10, m/10], and 0 is in the first (Guo et al. 2017, equation 3, for one probability
    instead of the top class). Biased upwards on few steps; compare only on the same steps. With a
    base rate far from 1/2 most steps fall in few bins. NaN when nothing has weight.

    >>> round(calibration_error(np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.8, 0.8, 0.8, 0.2])), 4)
    0.3
    """
    _check_classes("label", positive)
    _check_unit("score", score)
    weight = np.ones(len(score)) if weight is None else weight
    edges = np.linspace(0, 1, N_BINS + 1)[1:-1]
    gap = np.bincount(
        np.searchsorted(edges, score, side="left"), weight * (positive - score), minlength=N_BINS
    )
    return float(np.abs(gap).sum() / weight.sum()) if weight.sum() > 0 else np.nan


def accuracy(label: Floats, predicted: Floats, weight: Floats | None = None) -> float:
    """Share of steps whose class is predicted exactly: StepAcc of AgentProcessBench. In [0, 1].

    Steps are pooled over traces; classes are any numbers, {−1, 0, 1} there. A prediction that is
    NaN is wrong, as in the benchmark's ``compare.py``. NaN when nothing has weight.

    >>> accuracy(np.array([1.0, 0.0, -1.0, -1.0]), np.array([1.0, 1.0, -1.0, np.nan]))
    0.5
    """
    _check_known("label", label)
    return _mean((label == predicted).astype(np.float64), weight)


def prm_score(positive: Floats, predicted: Floats, weight: Floats | None = None) -> float:
    """PRMScore of PRMBench: mean of the F1 of correct steps and the F1 of wrong steps. In [0, 1].

    ``positive`` and ``predicted`` are 1.0 (correct) or 0.0; counts are pooled over all steps. NaN
    when either F1 is 0/0 (a class that is neither there nor predicted). Song et al. (2025),
    arXiv 2501.03124, equation 5: 0.5 · F1 + 0.5 · F1_neg.

    >>> round(prm_score(np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.0])), 4)
    0.7333
    """
    _check_classes("label", positive)
    _check_classes("prediction", predicted)
    weight = np.ones(len(positive)) if weight is None else weight
    right = float(weight @ (positive * predicted))
    right_negative = float(weight @ ((1 - positive) * (1 - predicted)))
    wrong = float(weight @ (positive != predicted))
    if right + wrong == 0 or right_negative + wrong == 0:
        return np.nan
    return right / (2 * right + wrong) + right_negative / (2 * right_negative + wrong)


def spearman(label: Floats, score: Floats, weight: Floats | None = None) -> float:
    """Spearman's rank correlation with mid-ranks for ties. In [−1, 1].

    The metric for soft labels whose scale is not the score's. NaN when a column is constant.

    >>> round(spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 30.0, 20.0, 40.0])), 4)
    0.8
    """
    return spearman_of_groups(tied_groups(label), tied_groups(score), weight)


def tied_groups(values: Floats) -> Ints:
    """(M,) the number of each value among the distinct ones, ascending: all that ranks need.

    Weights change ranks but not groups, so a bootstrap finds the groups once.
    """
    _check_known("label and score", values)
    groups: Ints = np.unique(values, return_inverse=True)[1]
    return groups


def spearman_of_groups(a: Ints, b: Ints, weight: Floats | None = None) -> float:
    """:func:`spearman` from two columns of :func:`tied_groups`."""
    weight = np.ones(len(a)) if weight is None else weight
    if weight.sum() == 0:
        return np.nan
    x, y = _centred_ranks(a, weight), _centred_ranks(b, weight)
    norm = np.sqrt((weight @ x**2) * (weight @ y**2))
    # Ranks are multiples of 1/2 about their mean: a spread below rounding error is none.
    return float(weight @ (x * y) / norm) if norm > 1e-9 * weight.sum() else np.nan


class Metric(NamedTuple):
    """What a report and the tests need to know about a metric of flat items."""

    function: Callable[[Floats, Floats, Floats | None], float]
    """(label, score, weight) -> value."""
    higher_is_better: bool
    needs: Literal["ranking", "probability", "class", "soft"]
    """What ``score`` must be, or "soft": any numbers in both columns."""


STEP_METRICS = {
    "auroc": Metric(auroc, True, "ranking"),
    "average_precision": Metric(average_precision, True, "ranking"),
    "brier": Metric(brier, False, "probability"),
    "ece": Metric(calibration_error, False, "probability"),
    "step_accuracy": Metric(accuracy, True, "class"),
    "prm_score": Metric(prm_score, True, "class"),
    "spearman": Metric(spearman, True, "soft"),
}


def _cumulative(positive: Floats, score: Floats, weight: Floats | None) -> tuple[Floats, Floats]:
    """Weights of positives and negatives at or above each distinct score, highest score first."""
    _check_classes("label", positive)
    _check_known("score", score)
    if len(score) == 0:
        return np.zeros(1), np.zeros(1)
    order = np.argsort(-score, kind="stable")
    weight = np.ones(len(score)) if weight is None else weight[order]
    ranked, hit = score[order], positive[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    return np.cumsum(weight * hit)[last], np.cumsum(weight * (1 - hit))[last]


def _centred_ranks(group: Ints, weight: Floats) -> Floats:
    """Mid-ranks under repetition by weight, minus their weighted mean."""
    size = np.bincount(group, weight)
    rank = (np.cumsum(size) - size / 2)[group]
    centred: Floats = rank - weight @ rank / weight.sum()
    return centred


def _mean(values: Floats, weight: Floats | None) -> float:
    total = float(len(values)) if weight is None else float(weight.sum())
    if total == 0:
        return np.nan
    return float((values.sum() if weight is None else weight @ values) / total)


def _check_known(name: str, values: Floats) -> None:
    if np.isnan(values).any():
        raise PRMError(f"expected every {name} to be known; leave out and count what is NaN first")


def _check_classes(name: str, values: Floats) -> None:
    _check_known(name, values)
    if not ((values == 0) | (values == 1)).all():
        raise PRMError(f"expected every {name} to be 0 or 1, because it is a class")


def _check_unit(name: str, values: Floats) -> None:
    _check_known(name, values)
    if not is_probability(values):
        raise PRMError(
            f"expected every {name} in [0, 1], because it is read as a probability, found "
            f"{values.min():g} to {values.max():g}"
        )
