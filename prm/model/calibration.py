"""Calibration: maps from raw scores to scores that mean what they say, as plain numbers.

Fitted by scikit-learn on held-out tasks, applied with NumPy, stored in the model's config as JSON.
``platt`` (Platt 1999) is a logistic function of the logit of the score and keeps its order;
its slope alone is temperature scaling (Guo et al. 2017). ``isotonic`` (Zadrozny & Elkan 2002) fits
any rising steps, and so makes ties: with few positive labels on held-out tasks it costs ranking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from prm.errors import PRMError

Calibration = Literal["isotonic", "platt", "none"]
_EDGE = 1e-12


def fit_calibrator(
    scores: NDArray[np.float64], labels: NDArray[np.float64], method: Calibration
) -> dict[str, Any]:
    """Fit a calibrator.

    Args:
        scores: (R,) raw scores in [0, 1].
        labels: (R,) hard or soft labels in [0, 1].
        method: for ``platt`` positive labels count as (P + 1) / (P + 2) and negative ones as
            1 / (N + 2), with P and N the sums of both (Platt 1999, equation 1): a few labels that
            the scores part perfectly, or labels of one class, still have a finite fit.

    Returns:
        JSON numbers for :func:`calibrate`.
    """
    if method == "none":
        return {"method": "none"}
    if method == "isotonic":
        from sklearn.isotonic import IsotonicRegression

        fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, labels)
        return {
            "method": "isotonic",
            "x": fitted.X_thresholds_.tolist(),
            "y": fitted.y_thresholds_.tolist(),
        }
    from sklearn.linear_model import LogisticRegression

    positive, negative = labels.sum(), (1 - labels).sum()
    targets = labels * (positive + 1) / (positive + 2) + (1 - labels) / (negative + 2)
    # A soft target y is y of a positive and 1 - y of a negative example.
    logits = np.concatenate([_logit(scores), _logit(scores)])[:, None]
    classes = np.repeat([1, 0], len(labels))
    weights = np.concatenate([targets, 1 - targets])
    fitted = LogisticRegression(C=np.inf, max_iter=1000).fit(logits, classes, sample_weight=weights)
    return {
        "method": "platt",
        "slope": float(fitted.coef_[0, 0]),
        "intercept": float(fitted.intercept_[0]),
    }


def calibrate(
    scores: NDArray[np.float64], calibrator: Mapping[str, Any] | None
) -> NDArray[np.float64]:
    """(R,) raw scores -> (R,) calibrated scores. NaN stays NaN.

    >>> calibrate(np.array([0.1, 0.5]), {"method": "isotonic", "x": [0.0, 1.0], "y": [0.0, 0.5]})
    array([0.05, 0.25])
    """
    if calibrator is None or calibrator["method"] == "none":
        return scores
    if calibrator["method"] not in ("isotonic", "platt"):
        raise PRMError(f"unknown calibration method {calibrator['method']!r}")
    if calibrator["method"] == "isotonic":
        return np.asarray(np.interp(scores, calibrator["x"], calibrator["y"]), dtype=np.float64)
    z = calibrator["slope"] * _logit(scores) + calibrator["intercept"]
    return np.asarray(1 / (1 + np.exp(-z)))


def _logit(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    clipped = np.clip(probs, _EDGE, 1 - _EDGE)
    return np.asarray(np.log(clipped / (1 - clipped)))
