"""Metrics whose unit is the trace or the task: first errors, and the choice among samples.

Axes: M steps (flat), B traces, N tasks. ``trace`` is (M,) the number 0 … B−1 of a step's trace,
``step`` its place in it, so the steps may come in any order.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from prm.eval.steps import Floats, Ints, accuracy

Aggregate = Literal["min", "mean", "last", "prod"]
AGGREGATES: tuple[Aggregate, ...] = ("min", "mean", "last", "prod")
NO_ERROR = -1.0


def first_errors(error: Floats, trace: Ints, step: Ints, n_traces: int) -> Floats:
    """(B,) the place of each trace's first error; −1 for none; NaN where that is not known.

    ``error`` is (M,) 1.0, 0.0 or NaN. It is not known when a NaN stands before the first error, or
    when there is no error but a NaN: the missing step could be the first. Nor is anything known
    of a trace without steps.

    >>> error = np.array([0.0, 1.0, 1.0, 0.0, np.nan, 1.0])
    >>> first_errors(error, np.array([0, 0, 0, 1, 2, 2]), np.array([0, 1, 2, 0, 0, 1]), 3)
    array([ 1., -1., nan])
    """
    first = np.full(n_traces, np.inf)
    np.minimum.at(first, trace, np.where(error == 1, step, np.inf))
    missing = np.full(n_traces, np.inf)
    np.minimum.at(missing, trace, np.where(np.isnan(error), step, np.inf))
    missing[np.bincount(trace, minlength=n_traces) == 0] = 0
    places = np.where(np.isinf(first), NO_ERROR, first)
    return np.where(missing < first, np.nan, places)


class FirstError(NamedTuple):
    """First-error metrics, all in [0, 1], higher is better; NaN where the class is empty."""

    accuracy: float
    """All traces: FirstErrAcc of AgentProcessBench."""
    accuracy_erroneous: float
    """Traces with an error: is exactly its first one found? (acc1 of ProcessBench)"""
    accuracy_correct: float
    """Traces without an error: is none claimed? (acc2)"""
    f1: float
    """Harmonic mean of the two. 0 if both are 0, where ProcessBench's own script divides 0/0."""


def first_error(truth: Floats, predicted: Floats, weight: Floats | None = None) -> FirstError:
    """Compare first errors (B,) from :func:`first_errors`; a NaN prediction is a miss.

    ``truth`` holds no NaN: traces where it is not known are for the caller to leave out and count.
    Zheng et al. (2024), arXiv 2412.06559, ``code/run_eval.py``; the plain accuracy is that of
    AgentProcessBench, ``compare.py``.

    >>> first_error(np.array([1.0, 2.0, -1.0, -1.0]), np.array([1.0, -1.0, -1.0, -1.0]))
    FirstError(accuracy=0.75, accuracy_erroneous=0.5, accuracy_correct=1.0, f1=0.6666666666666666)
    """
    weight = np.ones(len(truth)) if weight is None else weight
    wrong = truth != NO_ERROR
    erroneous = accuracy(truth[wrong], predicted[wrong], weight[wrong])
    correct = accuracy(truth[~wrong], predicted[~wrong], weight[~wrong])
    both = erroneous + correct
    f1 = 0.0 if both == 0 else 2 * erroneous * correct / both
    return FirstError(accuracy(truth, predicted, weight), erroneous, correct, f1)


def aggregate(score: Floats, trace: Ints, step: Ints, n_traces: int, how: Aggregate) -> Floats:
    """(B,) one number a trace from its step scores; NaN with a missing score or without steps.

    ``min`` and ``prod`` (meant for probabilities) are compared by Lightman et al. (2023),
    arXiv 2305.20050, appendix E; ``last`` is the score of the last step.

    >>> score, trace, step = np.array([0.5, 0.8, 0.9]), np.array([0, 0, 1]), np.array([0, 1, 0])
    >>> aggregate(score, trace, step, 2, "prod")
    array([0.4, 0.9])
    """
    n_steps = np.bincount(trace, minlength=n_traces)
    incomplete = (n_steps == 0) | (np.bincount(trace, np.isnan(score), minlength=n_traces) > 0)
    score = np.nan_to_num(score)  # whatever it is replaced by, its trace is NaN below
    if how == "min":
        values = np.full(n_traces, np.inf)
        np.minimum.at(values, trace, score)
    elif how == "prod":
        values = np.ones(n_traces)
        np.multiply.at(values, trace, score)
    elif how == "mean":
        values = np.bincount(trace, score, minlength=n_traces) / np.maximum(n_steps, 1)
    else:
        last = step == n_steps[trace] - 1
        values = np.bincount(trace[last], score[last], minlength=n_traces)
    return np.where(incomplete, np.nan, values)


class BestOfN(NamedTuple):
    """Per task (N,): expected outcome of a way to pick one of its traces; NaN = not counted."""

    chosen: Floats
    """The trace with the highest aggregate; traces that tie share the pick."""
    random: Floats
    """Any trace of the task."""
    oracle: Floats
    """The best trace of the task: pass@n where the outcome is success."""


def best_of_n(value: Floats, outcome: Floats, task: Ints, n_tasks: int) -> BestOfN:
    """Choose one trace of each task by ``value`` (B,), against chance and the best possible.

    ``outcome`` is (B,), success as 1.0 or 0.0, or a reward. Traces with a NaN in either take no
    part, in any of the three; a task with fewer than 2 traces left offers no choice and is NaN.

    >>> value, outcome = np.array([0.9, 0.2, 0.5]), np.array([1.0, 0.0, 0.0])
    >>> best_of_n(value, outcome, np.array([0, 0, 0]), 1).random.round(3)
    array([0.333])
    """
    used = ~np.isnan(value) & ~np.isnan(outcome)
    value, outcome, task = value[used], outcome[used], task[used]
    count = np.bincount(task, minlength=n_tasks)
    top = np.full(n_tasks, -np.inf)
    np.maximum.at(top, task, value)
    best = np.full(n_tasks, -np.inf)
    np.maximum.at(best, task, outcome)
    picked = (value == top[task]).astype(np.float64)

    def expected(share: Floats) -> Floats:
        total = np.bincount(task, share * outcome, minlength=n_tasks)
        weight = np.bincount(task, share, minlength=n_tasks)
        return np.where(count > 1, total / np.maximum(weight, 1), np.nan)

    return BestOfN(
        expected(picked), expected(np.ones(len(task))), np.where(count > 1, best, np.nan)
    )
