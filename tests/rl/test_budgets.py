"""Budgets: shares within binomial bounds, published schedules, determinism, refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from prm.errors import PRMError
from prm.rl.budgets import (
    BudgetCurriculum,
    BudgetMix,
    BudgetSampler,
    FixedBudget,
    turns_of,
)
from prm.rl.desk.world import DeskConfig, budgets, shortest


def draw(sampler: BudgetSampler, n: int = 4, *, step: int = 0, seed: int = 0) -> list[int]:
    rng = np.random.default_rng(seed)
    turns: list[int] = sampler.sample(n, step=step, progress=0.0, rng=rng).tolist()
    return turns


SAMPLERS: list[Callable[[], BudgetSampler]] = [
    lambda: FixedBudget(7),
    lambda: BudgetMix([5, 10, 20], [1, 2, 3]),
    lambda: BudgetMix([5, 10, 20], adapt=0.5),
    lambda: BudgetCurriculum([5, 10, 20], every=3),
]


@pytest.mark.parametrize("weights", [[1, 1, 1], [0.2, 0.5, 0.3], [6, 0, 2]])
def test_a_mix_draws_each_budget_as_often_as_its_weight_says(weights: list[float]) -> None:
    n, levels = 20_000, [4, 9, 16]
    turns = np.array(draw(BudgetMix(levels, weights), n))
    for level, weight in zip(levels, weights, strict=True):
        low, high = binom.interval(1 - 1e-6, n, weight / sum(weights))
        assert low <= (turns == level).sum() <= high
    assert set(turns) == {lv for lv, w in zip(levels, weights, strict=True) if w}


@pytest.mark.parametrize("build", SAMPLERS)
def test_the_same_seed_draws_the_same_budgets_and_is_counted(
    build: Callable[[], BudgetSampler],
) -> None:
    first, second = build(), build()
    assert draw(first, 50, seed=3) == draw(second, 50, seed=3)
    assert first.describe() == second.describe()
    turns = draw(first, 20, seed=4)
    described = first.describe()
    assert json.loads(json.dumps(described)) == described
    assert sum(described["drawn"].values()) == 70
    assert {str(turn) for turn in turns} <= set(described["drawn"])


def test_another_seed_draws_other_budgets_and_a_group_does_not_see_its_neighbours() -> None:
    mix = BudgetMix([5, 10, 20])
    assert draw(mix, 50, seed=0) != draw(mix, 50, seed=1)
    assert draw(mix, 50, seed=0)[:20] == draw(mix, 20, seed=0)


def test_every_sampler_takes_as_much_from_the_generator() -> None:
    states = []
    for build in SAMPLERS:
        rng = np.random.default_rng(0)
        build().sample(5, step=0, progress=0.0, rng=rng)
        states.append(rng.integers(2**60))
    assert len(set(states)) == 1


def test_scaling_inter_rl_steps_to_the_next_cap_every_s_updates() -> None:
    textcraft = BudgetCurriculum([10, 20, 30], every=100)
    steps = [0, 99, 100, 199, 200, 299, 300, 5000]
    caps = [10, 10, 20, 20, 30, 30, 30, 30]
    assert [draw(textcraft, 2, step=step) for step in steps] == [[cap, cap] for cap in caps]


def test_the_schedules_of_tti() -> None:
    multiplicative = BudgetCurriculum.multiplicative(10, 30, every=1)
    assert [draw(multiplicative, 1, step=i)[0] for i in range(6)] == [10, 20, 30, 30, 30, 30]
    clipped = BudgetCurriculum.multiplicative(10, 25, every=2)
    assert [draw(clipped, 1, step=i)[0] for i in range(7)] == [10, 10, 20, 20, 25, 25, 25]
    additive = BudgetCurriculum.additive(10, 13, every=1)
    assert [draw(additive, 1, step=i)[0] for i in range(6)] == [10, 11, 12, 13, 13, 13]


def test_a_curriculum_without_steps_divides_training_equally() -> None:
    curriculum, rng = BudgetCurriculum([4, 8]), np.random.default_rng(0)
    at = [0.0, 0.49, 0.5, 0.99, 1.0]
    found = [curriculum.sample(1, step=0, progress=p, rng=rng).item() for p in at]
    assert found == [4, 4, 8, 8, 8]


def test_multiples_of_the_shortest_episode_are_the_grid_of_desk() -> None:
    config = DeskConfig()
    for hops in config.hops:
        lengths = np.full(len(config.budget_ratios), shortest(hops))
        assert tuple(turns_of(config.budget_ratios, lengths)) == budgets(config, hops)
    mix, rng = BudgetMix(config.budget_ratios, unit="shortest"), np.random.default_rng(0)
    lengths = np.repeat([5, 6, 7], 200)
    turns = mix.sample(600, step=0, progress=0.0, rng=rng, shortest=lengths)
    for hops, length in ((2, 5), (3, 6), (4, 7)):
        assert set(turns[lengths == length]) == set(budgets(config, hops))


def test_rounding_errors_never_add_a_turn() -> None:
    for tenths in range(10, 60):
        lengths = np.arange(1, 41)
        exact = [-(-tenths * length // 10) for length in lengths.tolist()]
        assert turns_of(tenths / 10, lengths).tolist() == exact


def test_an_adapting_mix_follows_success_up_and_down_and_starves_no_budget() -> None:
    for slope in (0.04, -0.04):
        mix, rng = BudgetMix([5, 10], adapt=0.8), np.random.default_rng(0)
        for update in range(12):
            turns = mix.sample(64, step=update, progress=0.0, rng=rng)
            mix.observe(np.where(turns == 10, 0.5 + slope * update, 0.3))
        np.testing.assert_allclose(mix.shares(step=0, progress=0.0), [0.1, 0.9])
    resting = BudgetMix([5, 10], [1, 3], adapt=0.8)
    for update in range(5):
        resting.sample(8, step=update, progress=0.0, rng=rng)
        resting.observe(np.full(8, 0.5))
    np.testing.assert_allclose(resting.shares(step=0, progress=0.0), [0.25, 0.75])


def test_what_is_unknown_moves_nothing_and_without_adapt_the_weights_stay() -> None:
    for adapt, success in ((0.5, [math.nan] * 16), (0.0, [0.0, 1.0] * 8)):
        mix, rng = BudgetMix([5, 10], [1, 4], adapt=adapt), np.random.default_rng(0)
        for update in range(4):
            mix.sample(16, step=update, progress=0.0, rng=rng)
            mix.observe(success)
        np.testing.assert_allclose(mix.shares(step=0, progress=0.0), [0.2, 0.8])


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: FixedBudget(0), "budget 0: expected at least 1"),
        (lambda: FixedBudget(0.9, unit="shortest"), "budget 0.9: expected at least 1"),
        (lambda: FixedBudget(7.5), "whole number of turns"),
        (lambda: FixedBudget(math.nan), "budget nan: expected at least 1"),
        (lambda: FixedBudget(5, unit="tokens"), "unit 'tokens': expected one of turns, shortest"),  # type: ignore[arg-type]
        (lambda: BudgetMix([]), "expected at least one, found none"),
        (lambda: BudgetMix([5, 5]), "budgets 5, 5: expected different ones"),
        (lambda: BudgetMix([5, 9], [1]), "one for each of the 2 budgets, found 1"),
        (lambda: BudgetMix([5, 9], [1, -1]), "weights 1, -1: expected finite numbers"),
        (lambda: BudgetMix([5, 9], [1, math.nan]), "weights 1, nan: expected finite numbers"),
        (lambda: BudgetMix([5, 9], [0, 0]), "one of them above"),
        (lambda: BudgetMix([5, 9], adapt=1.0), "adapt 1: expected a share in [0, 1)"),
        (lambda: BudgetMix([5, 9], rate=0.0), "rate 0: expected a number in (0, 1]"),
        (lambda: BudgetCurriculum([10, 10], 5), "caps 10, 10: expected each above"),
        (lambda: BudgetCurriculum([10, 20], 0), "every 0: expected at least 1 update"),
        (lambda: BudgetCurriculum.multiplicative(0, 9, every=1), "expected 1 <= lowest < highest"),
        (lambda: BudgetCurriculum.additive(9, 9, every=1), "expected 1 <= lowest < highest"),
    ],
)
def test_bad_settings_are_refused_at_construction(
    build: Callable[[], BudgetSampler], sentence: str
) -> None:
    with pytest.raises(PRMError) as caught:
        build()
    assert sentence in str(caught.value)


def test_bad_draws_and_observations_are_refused_and_not_counted() -> None:
    rng = np.random.default_rng(0)
    ratios = BudgetMix([1.0, 2.0], unit="shortest")
    with pytest.raises(PRMError, match="expected the shortest episode of each task"):
        ratios.sample(2, step=0, progress=0.0, rng=rng)
    for lengths in ([5], [5, 0], [5, math.inf]):
        with pytest.raises(PRMError, match="expected 2 finite numbers of at least 1"):
            ratios.sample(2, step=0, progress=0.0, rng=rng, shortest=lengths)
    for n, step, progress in ((0, 0, 0.0), (1, -1, 0.0), (1, 0, 1.5)):
        with pytest.raises(PRMError, match="expected"):
            ratios.sample(n, step=step, progress=progress, rng=rng, shortest=[5] * n)
    assert ratios.drawn.sum() == 0
    mix = BudgetMix([5, 10], adapt=0.5)
    with pytest.raises(PRMError, match="call sample first"):
        mix.observe([0.5])
    mix.sample(2, step=0, progress=0.0, rng=rng)
    with pytest.raises(PRMError, match="each of the 2 groups"):
        mix.observe([0.5])
    with pytest.raises(PRMError, match="expected rates in"):
        mix.observe([0.5, 1.5])
