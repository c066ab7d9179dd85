"""Summaries over budgets: closed forms, limits, and regret without the luck of the choice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm.eval import robustness

GRID = (1, 2, 3, 5, 8, 13)
CURVES = st.lists(st.floats(0, 1), min_size=len(GRID), max_size=len(GRID)).map(np.array)


def test_area_of_a_curve_that_is_linear_in_the_logarithm() -> None:
    """Whatever the grid, it is the mean of the two ends; in units of turns or of ten turns."""
    log = np.log(GRID) / np.log(GRID[-1])
    assert robustness.area(0.2 + 0.5 * log, GRID) == pytest.approx(0.45)
    assert robustness.area(np.full(len(GRID), 0.3), GRID) == pytest.approx(0.3)
    bent = np.array([0.1, 0.4, 0.2, 0.9, 0.3, 0.5])
    tens = [10 * budget for budget in GRID]
    assert robustness.area(bent, tens) == pytest.approx(float(robustness.area(bent, GRID)))


def test_a_doubling_weighs_alike_at_every_budget() -> None:
    early = robustness.area(np.array([1.0, 1, 0, 0]), (1, 2, 4, 8))
    late = robustness.area(np.array([0.0, 0, 1, 1]), (1, 2, 4, 8))
    assert early == pytest.approx(float(late)) == pytest.approx(0.5)


@given(CURVES)
def test_area_on_a_finer_grid_of_the_same_curve(p: np.ndarray) -> None:
    finer = sorted({*GRID, 4, 7, 11})
    interpolated = np.interp(np.log(finer), np.log(GRID), p)
    assert robustness.area(interpolated, finer) == pytest.approx(float(robustness.area(p, GRID)))


@given(CURVES)
def test_slope_is_the_least_squares_line(p: np.ndarray) -> None:
    expected = np.polyfit(np.log2(GRID), p, 1)[0]
    assert robustness.slope(p, GRID) == pytest.approx(expected, abs=1e-12)
    assert robustness.slope(p + 7, GRID) == pytest.approx(expected, abs=1e-12)


def test_one_budget_has_no_area_and_no_slope() -> None:
    one = np.array([[0.3], [0.4]])
    assert np.isnan(robustness.area(one, [5])).tolist() == [True, True]
    assert np.isnan(robustness.slope(one, [5])).tolist() == [True, True]
    assert robustness.drop_ratio(one).tolist() == [1, 1]


@given(CURVES)
def test_the_worst_share_goes_from_the_worst_to_the_mean(p: np.ndarray) -> None:
    assert robustness.worst_share(p, 1.0) == pytest.approx(p.mean())
    assert robustness.worst_share(p, 1e-6) == robustness.worst(p) == p.min()
    shares = [float(robustness.worst_share(p, alpha)) for alpha in np.linspace(0.01, 1, 50)]
    assert (np.diff(shares) >= -1e-12).all()
    assert robustness.worst_share(p[::-1], 0.5) == pytest.approx(
        float(robustness.worst_share(p, 0.5))
    )


@pytest.mark.parametrize(("m", "alpha", "count"), [(25, 0.28, 7), (7, 0.25, 2), (4, 0.25, 1)])
def test_the_worst_share_rounds_up_and_not_by_accident(m: int, alpha: float, count: int) -> None:
    """0.28 of 25 budgets are 7, though 0.28 * 25 > 7 in floating point."""
    assert robustness.worst_share(np.arange(m) / m, alpha) == pytest.approx((count - 1) / 2 / m)


def test_a_budget_that_is_not_known_may_be_the_worst() -> None:
    p = np.array([[0.5, np.nan, 0.4, 0.6]])
    assert np.isnan(robustness.worst(p))
    assert np.isnan(robustness.worst_share(p, 0.25))


def test_drop_ratio() -> None:
    p = np.array([[0.2, 0.9, 0.4], [0.0, 0.0, 0.0], [0.0, 0.1, 0.4]])
    np.testing.assert_array_equal(robustness.drop_ratio(p), [0.5, np.nan, 0])


def test_turns_to_reach_on_curves_that_rise_and_fall() -> None:
    p = np.array([[0.1, 0.6, 0.2, 0.9], [0.5, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]])
    assert robustness.turns_to_reach(p, [1, 2, 4, 8], 0.5).tolist() == [2, 1, math.inf]
    assert robustness.turns_to_reach(np.array([np.nextafter(0.3, 0)]), [7], 0.3) == 7


def test_turns_to_reach_is_not_known_where_the_curve_is_not() -> None:
    p = np.array([[np.nan, np.nan], [0.1, np.nan], [0.6, np.nan]])
    np.testing.assert_array_equal(robustness.turns_to_reach(p, [1, 2], 0.5), [np.nan, np.nan, 1])


@pytest.mark.parametrize("q", [0.05, 0.5, 1.0])
def test_steps_per_success_of_a_coin_thrown_each_turn(q: float) -> None:
    """Wald: with success of probability q at each turn, 1 / q turns are paid at every budget."""
    t = np.array(GRID)
    p = 1 - (1 - q) ** t
    turns = np.array([((1 - q) ** np.arange(budget)).sum() for budget in GRID])
    assert robustness.steps_per_success(turns, p) == pytest.approx(np.full(len(GRID), 1 / q))


def test_steps_per_success_of_nothing_and_of_the_unknown() -> None:
    found = robustness.steps_per_success(np.array([3.0, 3.0, np.nan]), np.array([0, np.nan, 0.5]))
    np.testing.assert_array_equal(found, [math.inf, np.nan, np.nan])


@pytest.mark.parametrize(
    "summary",
    [
        lambda p: robustness.area(p, GRID),
        robustness.worst,
        robustness.worst_share,
        lambda p: robustness.slope(p, GRID),
        robustness.drop_ratio,
        lambda p: robustness.turns_to_reach(p, GRID, 0.5),
    ],
)
def test_one_call_serves_any_leading_axes(summary) -> None:  # type: ignore[no-untyped-def]
    p = np.random.default_rng(0).random((3, 4, len(GRID)))
    together = summary(p)
    assert together.shape == (3, 4)
    for row in np.ndindex(3, 4):
        assert together[row] == pytest.approx(float(summary(p[row])))


class TestSpecialist:
    def test_one_policy_is_its_own_specialist(self) -> None:
        halves = np.random.default_rng(0).random((5, 2, 1, 4))
        np.testing.assert_allclose(robustness.specialist(halves), halves.mean(axis=(1, 2)))

    def test_the_best_at_each_budget_has_no_regret(self) -> None:
        """Best on both halves at every budget: the specialist is worth what it is worth."""
        rng = np.random.default_rng(0)
        others = rng.random((2, 3, 6)) / 2
        best = 0.5 + rng.random((2, 1, 6)) / 2
        halves = np.concatenate([others[:, :2], best, others[:, 2:]], axis=1)
        np.testing.assert_allclose(robustness.specialist(halves), best[:, 0].mean(axis=0))

    def test_each_budget_has_its_own(self) -> None:
        halves = np.array([[[0.9, 0.1], [0.2, 0.8]]] * 2)
        assert robustness.specialist(halves) == pytest.approx([0.9, 0.8])

    def test_luck_in_the_choice_is_not_counted(self) -> None:
        """Policies that differ by noise alone: their common mean, where the maximum is above."""
        rng = np.random.default_rng(0)
        halves = rng.binomial(50, 0.4, size=(20_000, 2, 8, 1)) / 50
        crossed = robustness.specialist(halves).mean()
        assert crossed == pytest.approx(0.4, abs=4 * 0.05 / math.sqrt(20_000))
        assert halves.mean(axis=1).max(axis=1).mean() > 0.45

    def test_swapping_the_halves_changes_nothing(self) -> None:
        halves = np.random.default_rng(0).random((9, 2, 4, 3))
        swapped = robustness.specialist(halves[:, ::-1])
        np.testing.assert_allclose(swapped, robustness.specialist(halves))

    def test_nor_does_the_order_of_the_policies_when_they_tie(self) -> None:
        """Rates of few tasks tie often; a name early in the alphabet is no reason to choose."""
        halves = np.random.default_rng(0).integers(0, 4, size=(200, 2, 3, 1)) / 4
        turned = robustness.specialist(halves[:, :, ::-1])
        np.testing.assert_allclose(turned, robustness.specialist(halves))

    @pytest.mark.parametrize("policy", [0, 1])
    def test_a_policy_that_is_not_known_on_a_half(self, policy: int) -> None:
        halves = np.array([[[0.3], [0.5]], [[0.2], [0.5]]])
        halves[0, policy] = np.nan
        assert np.isnan(robustness.specialist(halves)).all()
