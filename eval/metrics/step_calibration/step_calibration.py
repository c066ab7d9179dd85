"""Calibration of step probabilities: are steps that score 0.8 right in 80 % of cases?

An `evaluate` module over ``calibration_error`` and ``brier`` of ``prm.eval.steps``. Left out:
intervals by task and baselines; ``prm eval steps`` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from prm.eval.estimate import json_number
from prm.eval.steps import brier, calibration_error, known

CITATION = """\
@inproceedings{guo2017calibration,
  title={On Calibration of Modern Neural Networks},
  author={Chuan Guo and Geoff Pleiss and Yu Sun and Kilian Q. Weinberger},
  booktitle={International Conference on Machine Learning},
  year={2017}
}
"""


class StepCalibration(evaluate.Metric):
    """Expected calibration error over 10 equal-width bins, and Brier score, of step probabilities.

    One row is one step; the order does not matter.

    Args:
        predictions: probability in [0, 1] that the step is right; None = not scored.
        references: 1 = the step is right, 0 = it is wrong; None = not labelled.

    Returns:
        calibration_error: in [0, 1], lower is better. This and the following are None without a
            labelled, scored step.
        brier: mean squared difference, in [0, 1], lower is better.
        base_rate: share of right steps. Predicting it for every step has a calibration error of 0
            and a Brier score of base_rate * (1 - base_rate).
        n: steps in the means.
        n_skipped: steps left out because label or score is missing.

    Raises:
        PRMError: a prediction outside [0, 1], or a label that is neither 0 nor 1.
        ValueError: inputs of different lengths.

    >>> import evaluate
    >>> metric = evaluate.load("eval/metrics/step_calibration")
    >>> found = metric.compute(predictions=[0.8, 0.8, 0.8, 0.2, 0.9], references=[1, 0, 1, 1, None])
    >>> {name: round(value, 3) for name, value in found.items()}
    {'calibration_error': 0.3, 'brier': 0.34, 'base_rate': 0.75, 'n': 4, 'n_skipped': 1}
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=str(__doc__),
            citation=CITATION,
            inputs_description=str(type(self).__doc__),
            features=datasets.Features(
                {
                    "predictions": datasets.Value("float64"),
                    "references": datasets.Value("float64"),
                }
            ),
            reference_urls=["https://arxiv.org/abs/1706.04599"],
            license="Apache-2.0",
        )

    def _compute(
        self, predictions: Sequence[float | None], references: Sequence[float | None]
    ) -> dict[str, Any]:
        score, label = np.array(predictions, dtype=float), np.array(references, dtype=float)
        used = known(score, label)
        score, label = score[used], label[used]
        values = {
            "calibration_error": calibration_error(label, score),
            "brier": brier(label, score),
            "base_rate": float(label.mean()) if len(label) else np.nan,
        }
        return {
            **{name: json_number(value) for name, value in values.items()},
            "n": len(label),
            "n_skipped": int((~used).sum()),
        }
