"""First errors and best-of-n, against the benchmarks' own formulas and cases done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prm.eval.traces import AGGREGATES, aggregate, best_of_n, first_error, first_errors

NAN = math.nan


def test_first_errors_do_not_depend_on_the_order_of_rows() -> None:
    error = np.array([0.0, 1.0, 1.0, 0.0, 0.0, NAN, 1.0, 1.0, NAN, 0.0, NAN])
    trace = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    step = np.array([0, 1, 2, 0, 1, 0, 1, 0, 1, 0, 1])
    # In turn: found, none, hidden by a gap before it, found before a gap, perhaps in the gap; and
    # a trace without steps.
    expected = [1, -1, NAN, 0, NAN, NAN]
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(error))
        found = first_errors(error[order], trace[order], step[order], 6)
        np.testing.assert_array_equal(found, expected)


def process_bench(labels: list[int], predictions: list[int]) -> tuple[float, float, float]:
    """The lines of ProcessBench's ``code/run_eval.py`` that compute its table, in per cent."""
    data = [
        {"label": label, "match": label == prediction}
        for label, prediction in zip(labels, predictions, strict=True)
    ]
    acc1 = np.mean([e["match"] for e in data if e["label"] != -1]) * 100
    acc2 = np.mean([e["match"] for e in data if e["label"] == -1]) * 100
    return acc1, acc2, 2 * acc1 * acc2 / (acc1 + acc2)


def test_first_error_is_process_benchs() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(-1, 4, 300)
    predicted = np.where(rng.random(300) < 0.5, truth, rng.integers(-1, 4, 300))
    ours = first_error(truth.astype(float), predicted.astype(float))
    theirs = process_bench(truth.tolist(), predicted.tolist())
    assert 100 * np.array(ours[1:]) == pytest.approx(theirs)
    assert ours.accuracy == pytest.approx(np.mean(truth == predicted))


def test_first_error_extremes() -> None:
    truth = np.array([0.0, 2.0, -1.0])
    assert first_error(truth, truth) == (1.0, 1.0, 1.0, 1.0)
    # Claiming no error anywhere, or the wrong one everywhere: the harmonic mean forgives neither.
    assert first_error(truth, np.full(3, -1.0)) == (pytest.approx(1 / 3), 0.0, 1.0, 0.0)
    assert first_error(truth, np.full(3, 3.0)) == (0.0, 0.0, 0.0, 0.0)
    assert first_error(truth, np.full(3, NAN)).accuracy == 0.0
    only_wrong = first_error(truth[:2], truth[:2])
    assert only_wrong.accuracy == 1.0
    assert math.isnan(only_wrong.accuracy_correct)
    assert math.isnan(only_wrong.f1)


def test_a_weight_is_a_repetition_of_a_trace() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(-1, 2, 50) * 1.0, rng.integers(-1, 2, 50) * 1.0
    times = rng.integers(0, 3, 50)
    repeated = first_error(np.repeat(truth, times), np.repeat(predicted, times))
    assert first_error(truth, predicted, times * 1.0) == pytest.approx(repeated)


def test_first_error_of_claiming_none_on_agent_process_bench() -> None:
    # 250 traces a subset, 104, 183, 184 and 143 with an error: "no error" scores 38.6 on average.
    truth = np.concatenate([np.repeat([0.0, -1.0], [k, 250 - k]) for k in (104, 183, 184, 143)])
    assert 100 * first_error(truth, np.full(1000, -1.0)).accuracy == pytest.approx(38.6, abs=0.05)


def test_aggregates_by_hand() -> None:
    score = np.array([0.9, 0.5, 0.8, 0.6, NAN])
    trace, step = np.array([0, 0, 0, 1, 2]), np.array([0, 1, 2, 0, 0])
    expected = {"min": [0.5, 0.6], "mean": [2.2 / 3, 0.6], "last": [0.8, 0.6], "prod": [0.36, 0.6]}
    order = np.array([2, 4, 0, 3, 1])
    for how in AGGREGATES:
        found = aggregate(score[order], trace[order], step[order], 4, how)
        np.testing.assert_allclose(found, [*expected[how], NAN, NAN])


def test_best_of_n_lies_between_the_worst_choice_and_the_oracle() -> None:
    rng = np.random.default_rng(0)
    task, outcome = rng.integers(0, 20, 100), rng.integers(0, 2, 100) * 1.0
    blind = best_of_n(np.zeros(100), outcome, task, 20)
    np.testing.assert_allclose(blind.chosen, blind.random)  # all tie: a random choice
    np.testing.assert_allclose(best_of_n(outcome, outcome, task, 20).chosen, blind.oracle)
    inverted = best_of_n(-outcome, outcome, task, 20).chosen
    np.testing.assert_allclose(inverted, 1 - best_of_n(1 - outcome, 1 - outcome, task, 20).chosen)
    order = rng.permutation(100)
    value = rng.random(100)
    np.testing.assert_allclose(
        best_of_n(value[order], outcome[order], task[order], 20),
        best_of_n(value, outcome, task, 20),
    )


def test_best_of_n_leaves_out_what_offers_no_choice() -> None:
    value = np.array([0.9, 0.1, 0.5, 0.4, NAN, 0.3])
    outcome = np.array([0.0, 1.0, 1.0, NAN, 1.0, 1.0])
    task = np.array([0, 0, 1, 1, 2, 2])
    picked = best_of_n(value, outcome, task, 4)
    np.testing.assert_array_equal(picked.chosen, [0.0, NAN, NAN, NAN])
    np.testing.assert_array_equal(picked.random, [0.5, NAN, NAN, NAN])
    np.testing.assert_array_equal(picked.oracle, [1.0, NAN, NAN, NAN])
