"""pass^K: how likely K trajectories of a task all succeed.

An `evaluate` module over ``prm.eval.pass_at_kt.pass_hat_kt``. Left out: intervals and comparisons;
``prm eval budget`` has them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from prm.errors import PRMError
from prm.eval.pass_at_kt import pass_hat_kt
from prm.eval.rows import numbered
from prm.eval.steps import known

CITATION = """\
@article{yao2024tau,
  title={tau-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains},
  author={Shunyu Yao and Noah Shinn and Pedram Razavi and Karthik Narasimhan},
  journal={arXiv preprint arXiv:2406.12045},
  year={2024}
}
"""


class PassHatK(evaluate.Metric):
    """Mean over tasks of C(c, K) / C(n, K), where c of the n trajectories of a task succeed.

    One row is one trajectory.

    Args:
        predictions: success, 1 or 0; None = not known.
        references: id of the task, a string.
        k: numbers of trajectories K, each at least 1.

    Returns:
        pass_hat_k: a value for each K, in [0, 1], higher is better; None where no task has K
            trajectories.
        k: the axis.
        n_tasks, n_tasks_skipped: for each K, tasks in the mean, and tasks left out because they
            have fewer than K trajectories.
        n_trajectories, n_trajectories_skipped: rows counted, and rows left out because success is
            not known.

    Raises:
        PRMError: a value that is none of the above, or no trajectory with known success.
        ValueError: inputs of different lengths, or a K below 1.

    >>> import evaluate
    >>> metric = evaluate.load("eval/metrics/pass_hat_k")
    >>> found = metric.compute(
    ...     predictions=[1, 1, 0, 1, 1, 1], references=["a"] * 3 + ["b"] * 3, k=[1, 2, 3]
    ... )
    >>> [round(value, 3) for value in found["pass_hat_k"]]
    [0.833, 0.667, 0.5]
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=str(__doc__),
            citation=CITATION,
            inputs_description=str(type(self).__doc__),
            # A float because the conversion to an integer would cut off a fraction.
            features=datasets.Features(
                {
                    "predictions": datasets.Value("float64"),
                    "references": datasets.Value("string"),
                }
            ),
            reference_urls=["https://arxiv.org/abs/2406.12045"],
            license="Apache-2.0",
        )

    def _compute(
        self,
        predictions: Sequence[float | None],
        references: Sequence[str | None],
        k: Sequence[int] = (1,),
    ) -> dict[str, Any]:
        sizes = [operator.index(size) for size in k]
        if None in references:
            raise PRMError(
                f"references[{references.index(None)}]: expected the id of a task, found None"
            )
        success = np.array(predictions, dtype=float)  # None is NaN
        used = known(success)
        if not used.any():
            raise PRMError(f"none of the {len(success)} predictions says whether it is a success")
        wrong = used & ~np.isin(success, (0, 1))
        if wrong.any():
            place = int(wrong.argmax())
            raise PRMError(
                f"predictions[{place}]: expected success as 1 or 0, or None if not known, "
                f"found {success[place]:g}"
            )
        tasks, task = numbered(references)
        samples = np.bincount(task[used], minlength=len(tasks))
        successes = np.bincount(task[success == 1], minlength=len(tasks))
        values = np.ma.masked_invalid(pass_hat_kt(successes[:, None], samples, sizes)[:, :, 0])
        n_tasks = values.count(axis=0)
        return {
            "pass_hat_k": values.mean(axis=0).tolist(),  # masked is None
            "k": sizes,
            "n_tasks": n_tasks.tolist(),
            "n_tasks_skipped": (len(tasks) - n_tasks).tolist(),
            "n_trajectories": int(used.sum()),
            "n_trajectories_skipped": int((~used).sum()),
        }
