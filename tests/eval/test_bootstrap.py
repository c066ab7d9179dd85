"""The task bootstrap: randomness, pairing, clustering, training seeds, and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prm.errors import PRMError
from prm.eval.bootstrap import Resampled, bootstrap, combined, resample_means
from prm.eval.intervals import interval
from prm.eval.steps import Floats


def means(values: Floats, seed: int, resamples: int = 200) -> Floats:
    """Resampled means of one value a task."""
    return bootstrap(
        lambda weight: np.array([weight @ values / weight.sum()]),
        len(values),
        resamples=resamples,
        rng=np.random.default_rng(seed),
    ).samples[:, 0]


def test_same_seed_same_bytes_other_seed_other_bytes() -> None:
    values = np.random.default_rng(0).random(30)
    assert means(values, 1).tobytes() == means(values, 1).tobytes()
    assert means(values, 1).tobytes() != means(values, 2).tobytes()


def test_every_resample_draws_as_many_tasks_as_there_are() -> None:
    drawn = bootstrap(lambda w: w, 7, resamples=50, rng=np.random.default_rng(0))
    assert drawn.samples.shape == (50, 7)
    assert (drawn.samples.sum(axis=1) == 7).all()
    assert (drawn.value == 1).all()


def test_standard_error_of_a_mean_is_the_textbook_one() -> None:
    values = np.random.default_rng(0).normal(size=100)
    expected = values.std() / math.sqrt(100)
    assert means(values, 0, resamples=4000).std() == pytest.approx(expected, rel=0.05)


def test_rows_of_one_task_are_no_extra_evidence() -> None:
    """Copying every row of a task changes no interval, where a row bootstrap would shrink it."""
    values = np.random.default_rng(0).random(30)

    def spread(rows_a_task: int) -> tuple[float, float]:
        task = np.repeat(np.arange(30), rows_a_task)
        drawn = bootstrap(
            lambda w: np.array([np.average(values[task], weights=w[task])]),
            30,
            resamples=200,
            rng=np.random.default_rng(0),
        )
        return interval(drawn.samples[:, 0])

    assert spread(10) == pytest.approx(spread(1))


def test_a_paired_difference_cancels_what_tasks_have_in_common() -> None:
    values = np.random.default_rng(0).normal(size=50)
    both = np.stack([values, values + 0.1], axis=1)
    drawn = bootstrap(lambda w: w @ both / w.sum(), 50, resamples=200, rng=np.random.default_rng(0))
    low, high = interval(drawn.samples[:, 1] - drawn.samples[:, 0])
    assert (low, high) == pytest.approx((0.1, 0.1))
    assert np.ptp(interval(drawn.samples[:, 0])) > 0.3


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    covered = []
    for seed in range(200):
        low, high = interval(means(rng.random(40), seed))
        covered.append(low <= 0.5 <= high)
    assert 0.89 <= np.mean(covered) <= 0.98


def test_no_interval_where_resamples_are_undefined_or_tasks_too_few() -> None:
    samples = np.arange(100.0)
    samples[:5] = np.nan
    assert not math.isnan(interval(samples)[0])
    samples[5] = np.nan
    assert math.isnan(interval(samples)[0])
    assert math.isnan(interval(samples[:0])[1])
    assert np.isnan(means(np.array([1.0]), 0)).all()
    with pytest.raises(PRMError, match="at least 1 task"):
        means(np.array([]), 0)


class TestResampleMeans:
    """Means of many cells at once, against plain arithmetic on the same draws."""

    resamples = 600
    """More than one chunk of draws."""

    def sample(self, n_seeds: int, *, missing: bool, seed: int = 0) -> Floats:
        """(S, N, F) = (S, 12, 3)"""
        rng = np.random.default_rng(seed)
        values = rng.random((n_seeds, 12, 3))
        if missing:
            values[rng.random(values.shape) < 0.3] = np.nan
        return values

    def resample(self, *arrays: Floats, seed: int = 0) -> list[Resampled]:
        rng = np.random.default_rng(seed)
        return resample_means(arrays, resamples=self.resamples, rng=rng)

    def drawn_tasks(self, n_tasks: int, seed: int = 0) -> Floats:
        """(R, N) how often each task is drawn, read off means of indicators."""
        indicators = np.eye(n_tasks)[None]
        (found,) = self.resample(indicators, seed=seed)
        return found.samples * n_tasks

    @pytest.mark.parametrize("n_seeds", [1, 2])
    @pytest.mark.parametrize("missing", [False, True])
    def test_against_a_loop_over_the_same_draws(self, n_seeds: int, missing: bool) -> None:
        values = self.sample(n_seeds, missing=missing)
        (found,) = self.resample(values)
        times = np.rint(self.drawn_tasks(12)).astype(int)
        assert (times.sum(axis=1) == 12).all()
        for row in (0, 1, 511, 512, 599):
            tasks = np.repeat(np.arange(12), times[row])
            expected = np.nanmean(values[:, tasks].reshape(-1, 3), axis=0)
            np.testing.assert_allclose(found.samples[row], expected)
        np.testing.assert_allclose(found.value, np.nanmean(values, axis=(0, 1)))

    def test_means_with_one_task_or_one_seed_left_out(self) -> None:
        values = self.sample(3, missing=True)
        (found,) = self.resample(values)
        tasks, seeds = found.left_out
        for task in range(12):
            expected = np.nanmean(np.delete(values, task, axis=1), axis=(0, 1))
            np.testing.assert_allclose(tasks[task], expected)
        for seed in range(3):
            expected = np.nanmean(np.delete(values, seed, axis=0), axis=(0, 1))
            np.testing.assert_allclose(seeds[seed], expected)
        assert len(self.resample(self.sample(2, missing=False))[0].left_out) == 1

    def test_a_policy_differs_from_itself_by_exactly_nothing(self) -> None:
        values = self.sample(1, missing=True)
        left, right, better = self.resample(values, values, values + 0.1)
        assert (left.samples == right.samples).all()
        np.testing.assert_allclose(better.samples - left.samples, 0.1)
        # The other way about: what is not paired has two policies' worth of noise.
        (other,) = self.resample(values, seed=1)
        assert (other.samples - left.samples).std() > left.samples.std()

    def test_tasks_drawn_depend_on_no_other_policy_and_on_no_number_of_seeds(self) -> None:
        one, many = self.sample(1, missing=False), self.sample(5, missing=False, seed=1)
        (alone,) = self.resample(one)
        for others in ([one], [many], [many, many]):
            assert (self.resample(one, *others)[0].samples == alone.samples).all()

    def test_seeds_are_drawn_only_where_there_are_three(self) -> None:
        """Seeds that differ and tasks that do not: all variance is that of the seeds."""
        for n_seeds in (1, 2, 3, 4, 8):
            levels = np.arange(n_seeds, dtype=float)
            values = np.tile(levels[:, None, None], (1, 12, 1))
            (found,) = self.resample(values)
            if n_seeds < 3:
                np.testing.assert_allclose(found.samples, levels.mean())
            else:
                expected = levels.std() / math.sqrt(n_seeds)
                assert found.samples.std() == pytest.approx(expected, rel=0.1)

    def test_each_policy_draws_seeds_of_its_own(self) -> None:
        levels = np.tile(np.arange(6.0)[:, None, None], (1, 12, 1))
        left, right = self.resample(levels, levels)
        correlation = np.corrcoef(left.samples[:, 0], right.samples[:, 0])[0, 1]
        assert abs(correlation) < 4 / math.sqrt(self.resamples)

    def test_same_seed_same_bytes_other_seed_other_bytes(self) -> None:
        values = self.sample(4, missing=True)
        first, again, other = (self.resample(values, seed=seed)[0] for seed in (1, 1, 2))
        assert first.samples.tobytes() == again.samples.tobytes()
        assert first.samples.tobytes() != other.samples.tobytes()

    def test_a_column_that_nobody_observed_is_no_number(self) -> None:
        values = self.sample(3, missing=False)
        values[:, :, 1] = np.nan
        values[:, 1:, 2] = np.nan
        (found,) = self.resample(values)
        assert np.isnan(found.samples[:, 1]).all()
        assert np.isnan(found.value[1])
        # Of one task: known when it is drawn, which is so in 1 - (1 - 1/12)^12 of the draws.
        missing = np.isnan(found.samples[:, 2]).mean()
        assert missing == pytest.approx((11 / 12) ** 12, abs=0.06)
        assert not np.isnan(found.samples[:, 0]).any()

    def test_one_task_gives_a_value_and_no_draw(self) -> None:
        (found,) = self.resample(self.sample(4, missing=False)[:, :1])
        assert not np.isnan(found.value).any()
        assert found.samples.shape == (self.resamples, 3)
        assert np.isnan(found.samples).all()

    def test_no_resamples_and_too_few(self) -> None:
        values = self.sample(1, missing=False)
        rng = np.random.default_rng(0)
        (found,) = resample_means([values], resamples=0, rng=rng)
        assert found.samples.shape == (0, 3)
        np.testing.assert_allclose(found.value, values.mean(axis=(0, 1)))
        for resamples in (-1, 1, 19):
            with pytest.raises(PRMError, match=f"20 to 1,000,000, found {resamples}"):
                resample_means([values], resamples=resamples, rng=rng)
        with pytest.raises(PRMError, match="at least 1 task"):
            resample_means([values[:, :0]], resamples=20, rng=rng)


class TestCombined:
    def test_a_function_of_means_is_that_function_of_every_draw(self) -> None:
        rng = np.random.default_rng(0)
        arrays = [rng.random((n_seeds, 9, 2)) for n_seeds in (1, 3, 4)]
        parts = resample_means(arrays, resamples=50, rng=rng)

        def function(a: Floats, b: Floats, c: Floats) -> Floats:
            return np.asarray((a * b / c).max(axis=-1))

        found = combined(function, *parts)
        means = [array.mean(axis=(0, 1)) for array in arrays]
        assert found.value == pytest.approx(function(*means))
        for row in range(50):
            assert found.samples[row] == pytest.approx(function(*(p.samples[row] for p in parts)))
        # Without each task, then without each seed of the second policy, then of the third.
        assert [len(group) for group in found.left_out] == [9, 3, 4]
        without = [np.delete(array, 5, axis=1).mean(axis=(0, 1)) for array in arrays]
        assert found.left_out[0][5] == pytest.approx(function(*without))
        for policy, place in ((1, 1), (2, 2)):
            seedless = list(means)
            seedless[policy] = np.delete(arrays[policy], 2, axis=0).mean(axis=(0, 1))
            assert found.left_out[place][2] == pytest.approx(function(*seedless))

    def test_it_nests(self) -> None:
        values = np.random.default_rng(0).random((3, 9, 4))
        (means,) = resample_means([values], resamples=50, rng=np.random.default_rng(0))
        nested = combined(np.exp, combined(lambda p: p.min(axis=-1), means))
        at_once = combined(lambda p: np.exp(p.min(axis=-1)), means)
        assert nested.value == at_once.value
        assert (nested.samples == at_once.samples).all()
        for left, right in zip(nested.left_out, at_once.left_out, strict=True):
            assert (left == right).all()
