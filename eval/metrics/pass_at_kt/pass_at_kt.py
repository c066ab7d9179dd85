"""Pass@(K,T): how likely at least one of K trajectories succeeds within T turns.

An `evaluate` module over ``prm.eval.pass_at_kt``. Left out: intervals, comparisons and trajectories
sampled anew at each budget; ``prm eval budget`` has them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from prm.data.trace import Outcome, Step, Trace
from prm.errors import PRMError
from prm.eval.pass_at_kt import cut_counts, pass_at_kt

CITATION = """\
@article{chen2021evaluating,
  title={Evaluating Large Language Models Trained on Code},
  author={Mark Chen and others},
  journal={arXiv preprint arXiv:2107.03374},
  year={2021}
}
"""


class PassAtKT(evaluate.Metric):
    """Mean over tasks of 1 - C(n - c, K) / C(n, K), where c of the n trajectories of a task
    succeed within T turns.

    One row is one trajectory. All were sampled at one generous budget; they are cut at each T.

    Args:
        predictions: success, 1 or 0; None = not known.
        references: id of the task, a string.
        turns: number of turns of the whole trajectory; None = not known.
        k: numbers of trajectories K, each at least 1.
        t: budgets T in turns, each at least 1. None = Fibonacci numbers up to ``max_turns``, and
            ``max_turns``.
        max_turns: the budget that the trajectories were sampled at. None = that of the longest,
            and no T is checked against it.

    Returns:
        pass_at_kt: a list for each K of a value for each T, in [0, 1], higher is better; None
            where no task has K trajectories.
        k, t: the two axes, T ascending.
        n_tasks, n_tasks_skipped: for each K, tasks in the mean, and tasks left out because they
            have fewer than K trajectories.
        n_trajectories, n_trajectories_skipped: rows counted, and rows left out because success or
            turns are not known.

    Raises:
        PRMError: a value that is none of the above; no trajectory with known success; a
            trajectory longer than ``max_turns``; a T above it, because what the trajectory would
            have done with more turns cannot be known.
        ValueError: inputs of different lengths, or a K below 1.

    >>> import evaluate
    >>> metric = evaluate.load("eval/metrics/pass_at_kt")
    >>> found = metric.compute(
    ...     predictions=[1, 1, 0, 0], references=["a"] * 4, turns=[2, 6, 8, 8], k=[1, 2], t=[2, 8]
    ... )
    >>> [[round(value, 3) for value in row] for row in found["pass_at_kt"]]
    [[0.25, 0.5], [0.5, 0.833]]
    >>> found["n_tasks"], found["n_tasks_skipped"]
    ([1, 1], [0, 0])
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=str(__doc__),
            citation=CITATION,
            inputs_description=str(type(self).__doc__),
            # Numbers are floats because the conversion to an integer would cut off a fraction.
            features=datasets.Features(
                {
                    "predictions": datasets.Value("float64"),
                    "references": datasets.Value("string"),
                    "turns": datasets.Value("float64"),
                }
            ),
            reference_urls=["https://arxiv.org/abs/2107.03374"],
            license="Apache-2.0",
        )

    def _compute(
        self,
        predictions: Sequence[float | None],
        references: Sequence[str | None],
        turns: Sequence[float | None],
        k: Sequence[int] = (1,),
        t: Sequence[int] | None = None,
        max_turns: int | None = None,
    ) -> dict[str, Any]:
        budgets = None if t is None else [operator.index(budget) for budget in t]
        sizes = [operator.index(size) for size in k]
        if max_turns is not None and operator.index(max_turns) < 1:
            raise PRMError(f"max_turns: expected 1 or more, found {max_turns}")
        # By way of arrays, None is NaN.
        success, length = (np.array(x, dtype=float).tolist() for x in (predictions, turns))
        rows = zip(references, success, length, strict=True)
        runs = [_run(place, *row, max_turns) for place, row in enumerate(rows)]
        counts = cut_counts("predictions", runs, budgets)
        values = np.ma.masked_invalid(pass_at_kt(counts.successes, counts.samples, sizes))
        n_tasks = values.count(axis=0)[:, 0]  # the same at every T, because trajectories are cut
        return {
            "pass_at_kt": values.mean(axis=0).tolist(),  # masked is None
            "k": sizes,
            "t": list(counts.t),
            "n_tasks": n_tasks.tolist(),
            "n_tasks_skipped": (len(set(references)) - n_tasks).tolist(),
            "n_trajectories": len(runs) - counts.n_skipped,
            "n_trajectories_skipped": counts.n_skipped,
        }


def _run(
    place: int, task: str | None, success: float, turns: float, max_turns: int | None
) -> Trace:
    """What counting needs of a trace: task, number of steps, outcome. NaN = not known."""
    if task is None:
        raise PRMError(f"references[{place}]: expected the id of a task, found None")
    if not math.isnan(success) and success not in (0, 1):
        raise PRMError(
            f"predictions[{place}]: expected success as 1 or 0, or None if not known, "
            f"found {success:g}"
        )
    if not math.isnan(turns) and not (turns >= 1 and turns.is_integer()):
        raise PRMError(
            f"turns[{place}]: expected a whole number of turns from 1, or None if not known, "
            f"found {turns:g}"
        )
    if max_turns is not None and turns > max_turns:
        raise PRMError(f"turns[{place}]: expected at most max_turns = {max_turns}, found {turns:g}")
    known = not (math.isnan(success) or math.isnan(turns))
    return Trace(
        id=f"row {place}",
        task_id=task,
        messages=[],
        steps=[Step(at=0)] * int(turns) if known else [],
        outcome=Outcome(success=bool(success) if known else None, max_turns=max_turns),
    )
