"""The task bootstrap: seeds, pairing, clustering, and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prm.errors import PRMError
from prm.eval.bootstrap import bootstrap
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
