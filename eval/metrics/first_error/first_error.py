"""First-error accuracy: is the first wrong step of a trace found exactly?

An `evaluate` module over ``prm.eval.traces.first_error``. Left out: intervals and baselines;
``prm eval steps`` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from prm.errors import PRMError
from prm.eval.estimate import json_number
from prm.eval.steps import Floats, known
from prm.eval.traces import NO_ERROR, first_error

CITATION = """\
@article{zheng2024processbench,
  title={ProcessBench: Identifying Process Errors in Mathematical Reasoning},
  author={Chujie Zheng and others},
  journal={arXiv preprint arXiv:2412.06559},
  year={2024}
}
"""


class FirstError(evaluate.Metric):
    """Share of traces whose first wrong step is predicted exactly, and its F1 over the traces with
    and without an error, as ProcessBench defines it.

    One row is one trace. ``prm.eval.traces.first_errors`` makes both columns from step labels.

    Args:
        predictions: place of the first wrong step, 0-based; -1 = no step is wrong; None = no
            answer, which is a miss.
        references: the true place, likewise; None = not known, and the row is left out.

    Returns:
        accuracy: over all traces (FirstErrAcc of AgentProcessBench). This and the following are in
            [0, 1], higher is better, and None where there is no such trace.
        accuracy_erroneous: over the traces with an error.
        accuracy_correct: over the traces without one.
        f1: harmonic mean of the two.
        n, n_erroneous, n_correct: traces in the means.
        n_skipped: traces whose true first error is not known.

    Raises:
        PRMError: a place that is no whole number of -1 or more.
        ValueError: inputs of different lengths.

    >>> import evaluate
    >>> metric = evaluate.load("eval/metrics/first_error")
    >>> found = metric.compute(predictions=[1, -1, -1, -1, 0], references=[1, 2, -1, -1, None])
    >>> {name: round(value, 3) for name, value in found.items() if not name.startswith("n")}
    {'accuracy': 0.75, 'accuracy_erroneous': 0.5, 'accuracy_correct': 1.0, 'f1': 0.667}
    >>> found["n"], found["n_skipped"]
    (4, 1)
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=str(__doc__),
            citation=CITATION,
            inputs_description=str(type(self).__doc__),
            # Floats because the conversion to an integer would cut off a fraction.
            features=datasets.Features(
                {
                    "predictions": datasets.Value("float64"),
                    "references": datasets.Value("float64"),
                }
            ),
            reference_urls=["https://arxiv.org/abs/2412.06559"],
            license="Apache-2.0",
        )

    def _compute(
        self, predictions: Sequence[float | None], references: Sequence[float | None]
    ) -> dict[str, Any]:
        predicted = _places("predictions", predictions)
        truth = _places("references", references)
        used = known(truth)
        n_correct = int((truth == NO_ERROR).sum())
        measured = first_error(truth[used], predicted[used])
        return {
            **{name: json_number(value) for name, value in measured._asdict().items()},
            "n": int(used.sum()),
            "n_erroneous": int(used.sum()) - n_correct,
            "n_correct": n_correct,
            "n_skipped": int((~used).sum()),
        }


def _places(name: str, column: Sequence[float | None]) -> Floats:
    """(B,) places of first errors, NaN for None."""
    places = np.array(column, dtype=np.float64)
    whole = (places >= NO_ERROR) & (places == np.rint(places)) & ~np.isinf(places)
    wrong = known(places) & ~whole
    if wrong.any():
        row = wrong.argmax()
        raise PRMError(
            f"{name}[{row}]: expected the place of a step (0 or more), -1 for no error or None, "
            f"found {places[row]:g}"
        )
    return places
