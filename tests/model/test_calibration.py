"""Calibrated scores mean what they say, and keep the order of the raw ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from prm.model.calibration import calibrate, fit_calibrator


def overconfident(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose logits are three times too large, with their outcomes."""
    rng = np.random.default_rng(0)
    logit = rng.normal(size=size)
    outcome = rng.random(size) < 1 / (1 + np.exp(-logit))
    return 1 / (1 + np.exp(-3 * logit)), outcome.astype(float)


def test_platt_finds_the_temperature() -> None:
    scores, outcomes = overconfident(40_000)
    fitted = fit_calibrator(scores, outcomes, "platt")
    assert fitted["slope"] == pytest.approx(1 / 3, abs=0.02)
    assert fitted["intercept"] == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_calibration_mends_the_brier_score_and_keeps_the_order(method: str) -> None:
    scores, outcomes = overconfident(20_000)
    fitted = fit_calibrator(scores[:10_000], outcomes[:10_000], method)
    fresh = calibrate(scores[10_000:], fitted)
    before = np.mean((scores[10_000:] - outcomes[10_000:]) ** 2)
    assert np.mean((fresh - outcomes[10_000:]) ** 2) < before - 0.01
    assert (np.diff(fresh[np.argsort(scores[10_000:])]) >= 0).all()
    assert abs(fresh.mean() - outcomes[10_000:].mean()) < 0.02


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_a_soft_label_counts_as_its_parts(method: str) -> None:
    scores = np.linspace(0.05, 0.95, 20_000)
    soft = fit_calibrator(scores, np.full(20_000, 0.25), method)
    np.testing.assert_allclose(calibrate(scores, soft), 0.25, atol=2e-4)


def test_platt_keeps_the_order_of_the_most_extreme_scores() -> None:
    scores, outcomes = overconfident(2_000)
    fitted = fit_calibrator(scores, outcomes, "platt")
    extreme = np.array([1e-11, 1e-9, 1e-7, 1 - 1e-7, 1 - 1e-9, 1 - 1e-11])
    assert (np.diff(calibrate(extreme, fitted)) > 0).all()


@pytest.mark.parametrize("method", ["isotonic", "platt", "none"])
def test_a_calibrator_is_json_and_passes_nan(method: str) -> None:
    scores, outcomes = overconfident(500)
    fitted = fit_calibrator(scores, outcomes, method)
    again = json.loads(json.dumps(fitted))
    np.testing.assert_array_equal(calibrate(scores, again), calibrate(scores, fitted))
    assert np.isnan(calibrate(np.array([np.nan, 0.5]), fitted)).tolist() == [True, False]


@pytest.mark.parametrize(
    "labels", [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]], ids=["good", "bad", "parted"]
)
def test_platt_is_finite_and_modest_on_three_labels(labels: list[float]) -> None:
    """Neither certain after three examples, nor broken by labels of one class or perfect order."""
    fitted = fit_calibrator(np.array([0.2, 0.4, 0.9]), np.array(labels), "platt")
    calibrated = calibrate(np.array([0.2, 0.4, 0.9]), fitted)
    assert ((calibrated > 0.05) & (calibrated < 0.95)).all()
    assert abs(calibrated.mean() - np.mean(labels)) < 0.25
