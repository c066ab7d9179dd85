"""Step metrics: generic properties of all of them, then reference implementations and papers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, brier_score_loss, f1_score, roc_auc_score

from prm.errors import PRMError
from prm.eval.steps import (
    STEP_METRICS,
    Floats,
    Metric,
    accuracy,
    auroc,
    average_precision,
    brier,
    calibration_error,
    known,
    prm_score,
    spearman,
)

BASE_RATE = 0.4
# Labels 1, 0, 0, 1, 0: all scores inverted, and the same score for every step (the base rate, or
# the positive class). With inverted scores the two positives tie below three negatives.
INVERTED = {
    "auroc": 0.0,
    "average_precision": BASE_RATE,
    "brier": 1.0,
    "ece": 1.0,
    "step_accuracy": 0.0,
    "prm_score": 0.0,
    "spearman": -1.0,
}
CONSTANT = {
    "auroc": 0.5,
    "average_precision": BASE_RATE,
    "brier": BASE_RATE * (1 - BASE_RATE),
    "ece": 0.0,
    "step_accuracy": BASE_RATE,
    "prm_score": BASE_RATE / (1 + BASE_RATE),  # F1 is 2p / (1 + p), negative F1 is 0
    "spearman": math.nan,
}
LABELS = np.array([1.0, 0.0, 0.0, 1.0, 0.0])

every_metric = pytest.mark.parametrize("name", STEP_METRICS)


def items(metric: Metric, size: int = 200) -> tuple[Floats, Floats]:
    """Labels and scores that a metric takes, with many ties."""
    rng = np.random.default_rng(0)
    score = rng.integers(0, 9, size) / 8
    label = (rng.random(size) < 0.2 + 0.5 * score).astype(np.float64)
    if metric.needs == "class":
        return label, (score > 0.5).astype(np.float64)
    return (label + score.round(1) if metric.needs == "soft" else label), score


@every_metric
def test_the_order_of_steps_does_not_matter(name: str) -> None:
    metric = STEP_METRICS[name]
    label, score = items(metric)
    rng = np.random.default_rng(1)
    weight, order = rng.random(len(label)), rng.permutation(len(label))
    shuffled = metric.function(label[order], score[order], weight[order])
    assert shuffled == pytest.approx(metric.function(label, score, weight), abs=1e-12)


@every_metric
def test_a_weight_is_a_repetition(name: str) -> None:
    metric = STEP_METRICS[name]
    label, score = items(metric)
    times = np.random.default_rng(1).integers(0, 4, len(label))
    repeated = metric.function(np.repeat(label, times), np.repeat(score, times), None)
    weighted = metric.function(label, score, times.astype(np.float64))
    assert weighted == pytest.approx(repeated, abs=1e-12)
    assert weighted != metric.function(label, score, None)


@every_metric
def test_extremes(name: str) -> None:
    metric = STEP_METRICS[name]
    same = np.full(5, 1.0 if metric.needs == "class" else BASE_RATE)
    perfect = metric.function(LABELS, LABELS, None)
    assert perfect == pytest.approx(1.0 if metric.higher_is_better else 0.0, abs=1e-12)
    assert metric.function(LABELS, 1 - LABELS, None) == pytest.approx(INVERTED[name], abs=1e-12)
    constant = metric.function(LABELS, same, None)
    assert constant == pytest.approx(CONSTANT[name], abs=1e-12, nan_ok=True)


@every_metric
def test_nothing_to_measure_is_nan_and_missing_values_are_an_error(name: str) -> None:
    metric = STEP_METRICS[name]
    label, score = items(metric)
    assert math.isnan(metric.function(label, score, np.zeros(len(label))))
    assert math.isnan(metric.function(label[:0], score[:0], None))
    label[3] = np.nan
    with pytest.raises(PRMError, match="label"):
        metric.function(label, score, None)
    mask = known(label, score)
    assert (~mask).sum() == 1
    assert math.isfinite(metric.function(label[mask], score[mask], None))


def test_one_class_has_no_ranking() -> None:
    score = np.array([0.1, 0.7])
    assert math.isnan(auroc(np.ones(2), score))
    assert math.isnan(auroc(np.zeros(2), score))
    assert math.isnan(average_precision(np.zeros(2), score))
    assert math.isnan(prm_score(np.ones(2), np.ones(2)))


def test_scikit_learn_and_scipy_agree() -> None:
    rng = np.random.default_rng(5)
    label, score = items(STEP_METRICS["auroc"])
    weight = rng.random(len(label))
    assert auroc(label, score, weight) == pytest.approx(
        roc_auc_score(label, score, sample_weight=weight)
    )
    assert average_precision(label, score, weight) == pytest.approx(
        average_precision_score(label, score, sample_weight=weight)
    )
    assert brier(label, score, weight) == pytest.approx(
        brier_score_loss(label, score, sample_weight=weight)
    )
    soft = label + rng.integers(0, 3, len(label))
    assert spearman(soft, score) == pytest.approx(spearmanr(soft, score).statistic)
    predicted = (score > 0.5).astype(np.float64)
    assert prm_score(label, predicted) == pytest.approx(f1_score(label, predicted, average="macro"))


def test_brier_of_a_soft_label_is_lowest_at_the_label() -> None:
    label = np.array([0.25])
    errors = [brier(label, np.array([guess])) for guess in (0.0, 0.2, 0.25, 0.3, 1.0)]
    assert errors[2] == 0.0
    assert errors == pytest.approx([0.0625, 0.0025, 0.0, 0.0025, 0.5625])


def test_calibration_bins_are_closed_above() -> None:
    # 0.3 belongs to (0.2, 0.3] with 0.21; 0.31 does not. Gaps by bin: |(0.3 − 0) + (0.21 − 1)| and
    # |0.31 − 1|, over three steps.
    error = calibration_error(np.array([0.0, 1.0, 1.0]), np.array([0.3, 0.21, 0.31]))
    assert error == pytest.approx((0.49 + 0.69) / 3)
    assert calibration_error(np.array([0.0, 1.0]), np.array([0.0, 1.0])) == 0.0


@pytest.mark.parametrize("metric", [brier, calibration_error])
def test_a_logit_is_no_probability(metric: object) -> None:
    with pytest.raises(PRMError, match=r"every score in \[0, 1\].*found -2 to 0.5"):
        metric(np.array([0.0, 1.0]), np.array([-2.0, 0.5]))  # type: ignore[operator]


def test_step_accuracy_of_the_constant_on_agent_process_bench() -> None:
    # 8,509 human labels: 5,347 good, 452 neutral, 2,710 bad. "Always good" scores 62.8.
    label = np.repeat([1.0, 0.0, -1.0], [5347, 452, 2710])
    assert 100 * accuracy(label, np.ones(len(label))) == pytest.approx(62.8, abs=0.05)
    assert accuracy(label, np.full(len(label), np.nan)) == 0.0


def test_prm_score_counts_both_kinds_of_mistake() -> None:
    # PRMBench by hand: TP 6, FP 2, FN 1, TN 3. F1 = 12/15, negative F1 = 6/9.
    label = np.repeat([1.0, 0.0, 1.0, 0.0], [6, 2, 1, 3])
    predicted = np.repeat([1.0, 1.0, 0.0, 0.0], [6, 2, 1, 3])
    assert prm_score(label, predicted) == pytest.approx((12 / 15 + 6 / 9) / 2)
