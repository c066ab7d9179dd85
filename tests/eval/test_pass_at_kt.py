"""Pass@(K,T) and pass^K against enumeration, exact arithmetic and their expectation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm.data.trace import Outcome, Trace
from prm.errors import PRMError
from prm.eval.pass_at_kt import (
    CutCounts,
    RerunCounts,
    cut_counts,
    default_grid,
    pass_at_kt,
    pass_hat_kt,
    rerun_counts,
)
from prm.eval.steps import Floats, Ints
from tests.conftest import MakeTrace

COUNTS = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


def both(c: int, n: int, k: int) -> tuple[float, float]:
    """Pass@K and pass^K of one task."""
    cell = np.array([[c]]), np.array([n]), [k]
    return float(pass_at_kt(*cell)[0, 0, 0]), float(pass_hat_kt(*cell)[0, 0, 0])


@pytest.mark.parametrize("n", range(1, 8))
def test_it_is_the_share_of_subsets_that_hold_a_success(n: int) -> None:
    for c in range(n + 1):
        runs = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            subsets = list(combinations(runs, k))
            at, hat = both(c, n, k)
            assert at == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)
            assert hat == pytest.approx(sum(map(all, subsets)) / len(subsets), abs=1e-14)


@given(COUNTS, st.integers(1, 40))
def test_exact_arithmetic_agrees(counts: tuple[int, int], k: int) -> None:
    n, c = counts
    at, hat = both(c, n, k)
    if k > n:
        assert math.isnan(at)
        assert math.isnan(hat)
        return
    ways = math.comb(n, k)
    assert at == pytest.approx(float(1 - Fraction(math.comb(n - c, k), ways)), abs=1e-13)
    assert hat == pytest.approx(float(Fraction(math.comb(c, k), ways)), abs=1e-13)


@pytest.mark.parametrize(("c", "k"), [(1, 1), (1, 5000), (37, 64), (5000, 3), (9999, 9000)])
def test_ten_thousand_samples_do_not_overflow(c: int, k: int) -> None:
    n = 10_000
    expected = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert both(c, n, k)[0] == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("p", [0.03, 0.5, 0.9])
def test_the_expectation_over_samples_is_what_it_estimates(p: float) -> None:
    """Unbiased for 1 - (1 - p)^K and p^K."""
    n, k = 8, [1, 2, 5, 8]
    c = np.arange(n + 1)
    chance = np.array([math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in c])
    at = pass_at_kt(c[:, None], np.full(n + 1, n), k)[..., 0]
    hat = pass_hat_kt(c[:, None], np.full(n + 1, n), k)[..., 0]
    assert chance @ at == pytest.approx([1 - (1 - p) ** size for size in k])
    assert chance @ hat == pytest.approx([p**size for size in k])


def random_counts(seed: int = 0) -> tuple[Ints, Ints]:
    """(N, T) successes that grow with T, and (N,) samples of 0 to 30."""
    rng = np.random.default_rng(seed)
    samples = rng.integers(0, 31, size=50)
    successes = np.sort(rng.integers(0, samples[:, None] + 1, size=(50, 6)), axis=1)
    return successes, samples


def test_solving_none_is_the_dual_of_failing_all() -> None:
    successes, samples = random_counts()
    k = [1, 2, 3, 10, 30]
    failures = samples[:, None] - successes
    np.testing.assert_allclose(
        pass_hat_kt(successes, samples, k), 1 - pass_at_kt(failures, samples, k), atol=1e-15
    )


def test_more_samples_more_turns_and_more_successes_never_hurt() -> None:
    successes, samples = random_counts()
    k = list(range(1, 31))
    at, hat = pass_at_kt(successes, samples, k), pass_hat_kt(successes, samples, k)

    def steps(table: Floats, axis: int) -> Floats:
        difference = np.diff(table, axis=axis)
        return np.asarray(difference[~np.isnan(difference)])

    assert (steps(at, 1) >= 0).all()
    assert (steps(hat, 1) <= 0).all()
    assert (steps(at, 2) >= 0).all()
    assert (steps(hat, 2) >= 0).all()
    # With one trajectory there is nothing to choose; with all of them, nothing to chance.
    np.testing.assert_allclose(at[:, 0], hat[:, 0], atol=1e-13)
    np.testing.assert_allclose(
        at[samples > 0, 0], (successes / np.maximum(samples, 1)[:, None])[samples > 0], atol=1e-13
    )
    at_all = pass_at_kt(np.array([[0, 1, 7]]), np.array([7]), [7])
    assert at_all.tolist() == [[[0.0, 1.0, 1.0]]]


def test_tasks_may_have_different_numbers_of_samples_at_each_budget() -> None:
    successes = np.array([[1, 2], [0, 3]])
    samples = np.array([[2, 4], [0, 3]])
    table = pass_at_kt(successes, samples, [1, 3])
    for task in range(2):
        for budget in range(2):
            for place, k in enumerate([1, 3]):
                alone = both(int(successes[task, budget]), int(samples[task, budget]), k)[0]
                assert table[task, place, budget] == pytest.approx(alone, nan_ok=True)
    assert np.isnan(table).tolist() == [[[False, False], [True, False]], [[True, False]] * 2]


@pytest.mark.parametrize(
    ("successes", "samples", "k", "message"),
    [
        ([[-1]], [3], [1], "0 <= successes <= samples"),
        ([[4]], [3], [1], "0 <= successes <= samples"),
        ([[1]], [3], [1, 0], "K of 1 or more"),
        ([[1]], [3], [], "K of 1 or more"),
        ([[1]], [3], [1.5], "K of 1 or more"),
    ],
)
def test_impossible_counts(
    successes: list[list[int]], samples: list[int], k: list[Any], message: str
) -> None:
    for estimator in (pass_at_kt, pass_hat_kt):
        with pytest.raises(ValueError, match=message):
            estimator(np.array(successes), np.array(samples), k)


def run(
    make_trace: MakeTrace, task: str, n_steps: int, success: bool | None, **fields: Any
) -> Trace:
    """A trace of ``n_steps`` on ``task``; ``fields`` are those of its outcome."""
    return make_trace(n_steps, task_id=task, outcome=Outcome(success=success, **fields))


class TestCut:
    def traces(self, make_trace: MakeTrace) -> Sequence[Trace]:
        return [
            run(make_trace, "b", 3, True, max_turns=8),
            run(make_trace, "b", 1, True, max_turns=8),
            run(make_trace, "a", 8, False, max_turns=8),
            run(make_trace, "a", 8, True, max_turns=8),
            run(make_trace, "a", 2, None, max_turns=8),
            run(make_trace, "c", 2, None, max_turns=8),
            run(make_trace, "b", 2, True, max_turns=8, valid=False),
        ]

    def test_a_success_counts_from_the_turn_that_it_took(self, make_trace: MakeTrace) -> None:
        counts = cut_counts("p", self.traces(make_trace), [8, 2, 3, 7, 2])
        assert isinstance(counts, CutCounts)
        assert counts.t == (2, 3, 7, 8)
        assert counts.tasks == ("a", "b")
        assert counts.samples.tolist() == [[2] * 4] * 2
        assert counts.successes.tolist() == [[0, 0, 0, 1], [1, 2, 2, 2]]
        assert counts.turns.tolist() == [[2, 3, 7, 8], [1.5, 2, 2, 2]]
        assert counts.n_skipped == 3

    def test_order_of_the_traces_does_not_matter(self, make_trace: MakeTrace) -> None:
        forward = cut_counts("p", self.traces(make_trace))
        backward = cut_counts("p", self.traces(make_trace)[::-1])
        assert forward.t == backward.t == (1, 2, 3, 5, 8)
        assert forward.tasks == backward.tasks
        assert (forward.successes == backward.successes).all()
        assert (forward.turns == backward.turns).all()

    def test_what_lies_beyond_the_budget_is_not_known(self, make_trace: MakeTrace) -> None:
        with pytest.raises(PRMError, match="T = 9 is above the 8 turns that run .* was allowed"):
            cut_counts("p", self.traces(make_trace), [2, 9])

    def test_the_tightest_budget_is_that_of_all_runs(self, make_trace: MakeTrace) -> None:
        traces = [*self.traces(make_trace), run(make_trace, "d", 1, False, max_turns=5)]
        assert cut_counts("p", traces).t == (1, 2, 3, 5)
        with pytest.raises(PRMError, match="T = 6 is above the 5 turns"):
            cut_counts("p", traces, [6])

    def test_a_run_stopped_by_its_limit_tells_the_limit(self, make_trace: MakeTrace) -> None:
        """tau-bench's files do not name the limit, but their longest runs were stopped by it."""
        stopped = [run(make_trace, "a", 5, False, status="out_of_turns")]
        assert cut_counts("p", stopped, [5]).successes.tolist() == [[0]]
        with pytest.raises(PRMError, match="T = 6 is above the 5 turns"):
            cut_counts("p", stopped, [6])

    def test_runs_that_ended_by_themselves_bound_nothing(self, make_trace: MakeTrace) -> None:
        ended = [run(make_trace, "a", 5, True, status="completed")]
        assert cut_counts("p", ended, [4, 50]).successes.tolist() == [[0, 1]]

    def test_no_success_information(self, make_trace: MakeTrace) -> None:
        with pytest.raises(PRMError, match="none of the 1 run of policy 'p' says whether"):
            cut_counts("p", [run(make_trace, "a", 5, None)])


class TestRerun:
    def traces(self, make_trace: MakeTrace) -> Sequence[Trace]:
        return [
            run(make_trace, "a", 2, True, max_turns=2),
            run(make_trace, "a", 4, False, max_turns=4),
            run(make_trace, "a", 3, False, max_turns=4),
            run(make_trace, "b", 1, True, max_turns=4),
            run(make_trace, "b", 1, None, max_turns=4),
        ]

    def test_each_budget_has_samples_of_its_own(self, make_trace: MakeTrace) -> None:
        counts = rerun_counts("p", self.traces(make_trace))
        assert isinstance(counts, RerunCounts)
        assert not isinstance(counts, CutCounts)
        assert (counts.t, counts.tasks) == ((2, 4), ("a", "b"))
        assert counts.samples.tolist() == [[1, 2], [0, 1]]
        # Not monotone: the policy may do otherwise when it is told of more turns.
        assert counts.successes.tolist() == [[1, 0], [0, 1]]
        np.testing.assert_array_equal(counts.turns, [[2, 3.5], [np.nan, 1]])
        assert counts.n_skipped == 1

    def test_only_budgets_that_were_run(self, make_trace: MakeTrace) -> None:
        assert rerun_counts("p", self.traces(make_trace), [4]).samples.tolist() == [[2], [1]]
        with pytest.raises(PRMError, match="no run at T = 3; it was run at 2, 4"):
            rerun_counts("p", self.traces(make_trace), [2, 3])

    def test_a_success_beyond_the_budget_is_none(self, make_trace: MakeTrace) -> None:
        late = [run(make_trace, "a", 5, True, max_turns=4)]
        assert rerun_counts("p", late).successes.tolist() == [[0]]

    def test_a_run_without_a_budget(self, make_trace: MakeTrace) -> None:
        with pytest.raises(PRMError, match="has no outcome.max_turns"):
            rerun_counts("p", [run(make_trace, "a", 2, True)])


@given(st.integers(1, 500))
def test_the_default_grid_is_even_on_a_log_scale(budget: int) -> None:
    grid = default_grid(budget)
    assert grid[0] == 1
    assert grid[-1] == budget
    assert all(a < b <= 2 * a for a, b in pairwise(grid))
    assert len(grid) < 2 + 1.5 * math.log2(budget + 1)


@pytest.mark.parametrize("t", [[], [0, 3], [-1]])
def test_a_grid_of_nothing(make_trace: MakeTrace, t: list[int]) -> None:
    for count in (cut_counts, rerun_counts):
        with pytest.raises(PRMError, match="expected turn budgets T of 1"):
            count("p", [run(make_trace, "a", 2, True, max_turns=3)], t)
