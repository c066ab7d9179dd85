"""BCa against scipy on the same draws, exact bounds, and bands that hold all cells at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prm.eval.bootstrap import Resampled, combined, draw, resample_means
from prm.eval.intervals import bca, bias_of, exact_where_all_agree, interval, max_t_band
from prm.eval.steps import Floats

RESAMPLES = 2000


def means_of(values: Floats, seed: int = 0, resamples: int = RESAMPLES) -> Resampled:
    """Resampled means of (N, F) values."""
    rng = np.random.default_rng(seed)
    (found,) = resample_means([values[None]], resamples=resamples, rng=rng)
    return found


def skewed(n: int = 30, columns: int = 1, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).exponential(size=(n, columns)) ** 1.5


class TestBCa:
    def resampled(self, statistic: Callable[..., Floats], *data: Floats) -> Resampled:
        """A statistic of one or two independent samples, each with draws of its own."""
        rng = np.random.default_rng(0)
        drawn = []
        for x in data:
            times = draw(len(x), RESAMPLES, rng).astype(int)
            drawn.append(np.stack([np.repeat(x, row) for row in times]))
        left_out = []
        for place, x in enumerate(data):
            without = np.stack([np.delete(x, i) for i in range(len(x))])
            left_out.append(statistic(*data[:place], without, *data[place + 1 :], axis=-1))
        value = np.asarray(statistic(*data, axis=-1))
        return Resampled(value, statistic(*drawn, axis=-1), tuple(left_out))

    def assert_like_scipy(self, statistic: Callable[..., Floats], *data: Floats) -> None:
        ours = self.resampled(statistic, *data)
        for level in (0.5, 0.95):
            theirs = stats.bootstrap(
                data,
                statistic,
                n_resamples=0,
                bootstrap_result=SimpleNamespace(bootstrap_distribution=ours.samples),
                confidence_level=level,
                method="BCa",
            ).confidence_interval
            assert bca(ours, level) == pytest.approx((theirs.low, theirs.high), rel=1e-9)

    @pytest.mark.parametrize("statistic", [np.mean, np.std, np.median, np.min])
    def test_it_is_scipys_on_the_same_draws(self, statistic: Callable[..., Floats]) -> None:
        self.assert_like_scipy(statistic, skewed()[:, 0])

    def test_it_is_scipys_where_draws_tie(self) -> None:
        """Means of 0/1 values: a tenth of the draws are equal to the value."""
        self.assert_like_scipy(np.mean, np.repeat([1.0, 0.0], [4, 26]))

    def test_it_is_scipys_for_two_samples(self) -> None:
        """As for tasks and training seeds: the accelerations add up."""

        def ratio(x: Floats, y: Floats, axis: int) -> Floats:
            return np.asarray(x.mean(axis=axis) / y.mean(axis=axis))

        self.assert_like_scipy(ratio, skewed(12)[:, 0], skewed(40, seed=1)[:, 0])

    def test_it_moves_stretches_and_flips_with_the_statistic(self) -> None:
        means = means_of(skewed(columns=3))
        low, high = bca(means)
        for factor, shift in ((1, 5), (3, -1), (0.2, 0)):
            moved = bca(combined(lambda x, f=factor, s=shift: f * x + s, means))
            np.testing.assert_allclose(moved, (factor * low + shift, factor * high + shift))
        np.testing.assert_allclose(bca(combined(np.negative, means)), (-high, -low))

    @pytest.mark.parametrize("transform", [np.exp, np.sqrt, np.log])
    def test_it_respects_transformations(self, transform: Callable[[Floats], Floats]) -> None:
        """The interval of g(mean) is g of the interval of the mean."""
        means = means_of(1 + np.random.default_rng(0).beta(1, 4, size=(200, 1)))
        expected = [transform(end)[0] for end in bca(means)]
        found = [end[0] for end in bca(combined(transform, means))]
        assert found == pytest.approx(expected, abs=0.02 * (expected[1] - expected[0]))

    def test_each_cell_by_itself(self) -> None:
        values = skewed(columns=6)
        low, high = bca(means_of(values))
        for column in range(6):
            alone = bca(means_of(values[:, [column]]))
            np.testing.assert_allclose(alone, ([low[column]], [high[column]]))
        table = bca(combined(lambda x: x.reshape(*x.shape[:-1], 2, 3), means_of(values)))
        np.testing.assert_array_equal(table, (low.reshape(2, 3), high.reshape(2, 3)))

    def test_skewed_data_have_skewed_intervals(self) -> None:
        means = means_of(skewed(n=60))
        low, high = bca(means)
        percentile = interval(means.samples[:, 0])
        assert high[0] - means.value[0] > 1.2 * (means.value[0] - low[0])
        assert low[0] > percentile[0]
        assert high[0] > percentile[1]

    def test_levels_are_nested(self) -> None:
        means = means_of(skewed())
        ends = [bca(means, level) for level in (0.5, 0.8, 0.95, 0.99)]
        lows, highs = np.array(ends)[:, :, 0].T
        assert (np.diff(lows) < 0).all()
        assert (np.diff(highs) > 0).all()

    @given(st.lists(st.integers(0, 4), min_size=2, max_size=12), st.booleans())
    def test_ends_are_in_order_and_among_the_draws(self, counts: list[int], least: bool) -> None:
        values = np.array(counts)[:, None] / np.array([4, 5])
        values[:, 1] = values[::-1, 1]
        means = means_of(values, resamples=200)
        cells = combined(lambda x: x.min(axis=-1) if least else x.max(axis=-1), means)
        low, high = bca(cells)
        assert cells.samples.min() <= low <= high <= cells.samples.max()

    def test_a_value_beyond_all_draws(self) -> None:
        drawn = Resampled(
            np.array([2.0, -2.0]),
            np.linspace(-1, 1, 1000)[:, None] * np.ones(2),
            (np.random.default_rng(0).normal(size=(20, 2)),),
        )
        low, high = bca(drawn)
        assert (low <= high).all()
        # The draws are all too low, or all too high: the interval is at their other end.
        assert low[0] > 0.9
        assert high[1] < -0.9

    def test_few_undefined_draws_are_left_out_and_many_leave_no_interval(self) -> None:
        means = means_of(skewed(), resamples=1000)
        holes = means.samples.copy()
        holes[:50] = np.nan
        found = bca(means._replace(samples=holes))
        np.testing.assert_allclose(found, bca(means._replace(samples=means.samples[50:])))
        holes[50] = np.nan
        assert np.isnan(bca(means._replace(samples=holes))).all()

    def test_one_task_or_no_draw_gives_no_interval(self) -> None:
        for values, resamples in ((skewed(1), 100), (skewed(10), 0)):
            drawn = means_of(values, resamples=resamples)
            assert np.isnan(bca(drawn)).all()
            assert np.isnan(max_t_band(drawn)).all()
            assert np.isnan(exact_where_all_agree(*bca(drawn), drawn.value, np.array([1]))).all()


class TestExactWhereAllAgree:
    @pytest.mark.parametrize("n", [2, 10, 50, 1034])
    def test_it_is_clopper_and_pearsons_for_zeros_and_ones(self, n: int) -> None:
        for value in (0.0, 1.0):
            drawn = means_of(np.full((n, 1), value), resamples=20)
            found = exact_where_all_agree(*bca(drawn), drawn.value, np.array([n]))
            exact = stats.binomtest(int(value * n), n).proportion_ci(0.95, "exact")
            assert [float(end[0]) for end in found] == pytest.approx([exact.low, exact.high])

    def test_it_holds_for_any_values_between_zero_and_one(self) -> None:
        """At a mean above the end, all n values are 0 in at most 2.5 % of samples."""
        zero, n = np.zeros(1), 12
        _, high = exact_where_all_agree(zero, zero, zero, np.array([n]))
        for size in (1.0, 0.5, 0.3):  # the value is this with the probability that makes the mean
            assert (1 - min(1, high[0] / size)) ** n <= 0.025 + 1e-12
        assert (1 - high[0]) ** n == pytest.approx(0.025)

    def test_everything_else_stays(self) -> None:
        low = np.array([0.0, 0.5, np.nan, 0.0, 0.9])
        high = np.array([0.1, 0.5, np.nan, 0.0, 1.0])
        value = np.array([0.0, 0.5, 0.0, 0.0, 1.0])
        n = np.array([9, 9, 9, 0, 9])
        found = exact_where_all_agree(low, high, value, n)
        np.testing.assert_array_equal(found, (low, high))


class TestBand:
    def normal(self, n_cells: int, correlation: float = 0.0, resamples: int = 20_000) -> Resampled:
        """Draws of cells with errors of 1, 2, 3, …, around values of 0, from many tasks."""
        rng = np.random.default_rng(0)
        common = rng.normal(size=(resamples, 1))
        own = rng.normal(size=(resamples, n_cells))
        draws = math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own
        return Resampled(
            np.zeros(n_cells), draws * (1 + np.arange(n_cells)), (np.zeros((5000, n_cells)),)
        )

    @pytest.mark.parametrize("n_cells", [1, 6, 40])
    def test_independent_cells_get_sidaks_reach(self, n_cells: int) -> None:
        reach = stats.norm.ppf((1 + 0.95 ** (1 / n_cells)) / 2)
        band = max_t_band(self.normal(n_cells))
        assert band.high / (1 + np.arange(n_cells)) == pytest.approx(reach, rel=0.03)
        assert (band.low == -band.high).all()

    def test_cells_that_say_the_same_cost_nothing(self) -> None:
        band = max_t_band(self.normal(6, correlation=1))
        assert band.high / (1 + np.arange(6)) == pytest.approx(1.96, rel=0.03)

    @pytest.mark.parametrize("n_tasks", [8, 50])
    def test_the_band_of_one_mean_is_students_interval(self, n_tasks: int) -> None:
        values = np.random.default_rng(0).normal(0.2, 1, size=n_tasks)
        band = max_t_band(means_of(values[:, None], resamples=20_000))
        expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert band.high[0] - band.low[0] == pytest.approx(expected.high - expected.low, rel=0.04)
        assert band.high[0] + band.low[0] == pytest.approx(expected.high + expected.low)

    def test_it_holds_what_each_cell_holds_by_itself(self) -> None:
        means = means_of(skewed(columns=5))
        band = max_t_band(means)
        for cell in range(5):
            alone = max_t_band(combined(lambda x, c=cell: x[..., c], means))
            assert band.low[cell] <= alone.low
            assert alone.high <= band.high[cell]
            assert band.p[cell] >= alone.p

    def test_all_cells_are_inside_in_95_percent_of_the_draws(self) -> None:
        means = means_of(skewed(n=2000, columns=5))
        band = max_t_band(means)
        inside = (means.samples >= band.low) & (means.samples <= band.high)
        assert inside.all(axis=1).mean() == pytest.approx(0.95, abs=2e-3)
        assert inside.mean() > 0.96

    def test_p_is_small_exactly_where_the_band_excludes_zero(self) -> None:
        differences = np.random.default_rng(0).normal(size=(40, 60)) + np.linspace(-1, 1, 60)
        means = means_of(differences)
        band = max_t_band(means)
        excluded = (band.low > 0) | (band.high < 0)
        assert 0 < excluded.sum() < 60
        assert (band.p <= 0.05).tolist() == excluded.tolist()
        assert band.p.min() >= 1 / (RESAMPLES + 1)
        flipped = max_t_band(combined(np.negative, means))
        np.testing.assert_allclose(flipped.p, band.p)

    def test_cells_without_an_error_take_no_part(self) -> None:
        values = skewed(columns=4)
        values[:, 1] = 0.7
        means = means_of(values)
        means.samples[:, 2] = np.nan
        found = max_t_band(means)
        rest = max_t_band(combined(lambda x: x[..., [0, 3]], means))
        for whole, part in zip(found, rest, strict=True):
            assert np.isnan(whole).tolist() == [False, True, True, False]
            np.testing.assert_allclose(whole[[0, 3]], part)
        nothing = max_t_band(combined(lambda x: x[..., [1, 2]], means))
        assert np.isnan(nothing).all()

    def test_it_covers_all_cells_at_once_and_single_intervals_do_not(self) -> None:
        rng = np.random.default_rng(0)
        together, singly = [], []
        for seed in range(250):
            # Tasks differ, and cells of one task resemble each other.
            values = rng.normal(size=(50, 1)) + rng.normal(size=(50, 8))
            means = means_of(values, seed=seed, resamples=300)
            band = max_t_band(means)
            low, high = bca(means)
            together.append(((band.low <= 0) & (band.high >= 0)).all())
            singly.append(((low <= 0) & (high >= 0)).all())
        assert 0.90 <= np.mean(together) <= 0.98
        assert np.mean(singly) < 0.88


class TestBias:
    def test_a_mean_has_none(self) -> None:
        means = means_of(skewed(columns=3), resamples=10_000)
        assert (np.abs(bias_of(means)) < 4 * means.samples.std(axis=0) / 100).all()

    def test_the_larger_of_two_equal_cells_is_above_them(self) -> None:
        """E max(X, Y) = sigma / sqrt(pi) for independent normals with the same mean."""
        draws = np.random.default_rng(0).normal(0.4, 0.1, size=(20_000, 2))
        cells = Resampled(np.full(2, 0.4), draws, (np.full((10, 2), 0.4),))
        highest = combined(lambda x: x.max(axis=-1), cells)
        lowest = combined(lambda x: x.min(axis=-1), cells)
        assert bias_of(highest) == pytest.approx(0.1 / math.sqrt(math.pi), rel=0.05)
        assert bias_of(lowest) == pytest.approx(-0.1 / math.sqrt(math.pi), rel=0.05)

    def test_undefined_draws_are_left_out(self) -> None:
        drawn = Resampled(np.array([1.0, 1.0]), np.array([[2.0, np.nan], [np.nan, np.nan]]), ())
        np.testing.assert_array_equal(bias_of(drawn), [1, np.nan])
