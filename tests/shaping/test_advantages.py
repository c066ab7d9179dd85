"""Returns, turn-level GAE and group advantages: closed forms, identities, invariances, refusals."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prm.errors import PRMError
from prm.shaping.advantages import (
    Estimator,
    group_advantages,
    returns_to_go,
    shaped_advantages,
    turn_gae,
)
from prm.shaping.config import Mode, ShapingConfig

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
MODES: tuple[Mode, ...] = get_args(Mode)
CRITIC_BY_GROUP = ("critic", "group")
"""Refused."""
SCALES: tuple[Any, ...] = ("none", "std")
Floats = np.ndarray[Any, np.dtype[np.float64]]

seeds = st.integers(0, 2**32 - 1)
gammas = st.sampled_from([0.0, 0.5, 0.9, 1.0])


few = settings(max_examples=20)


class Batch(NamedTuple):
    """Three groups of traces of different lengths, shuffled, padded with what must not matter."""

    rewards: Any
    values: Any
    action_scores: Any
    terminal_reward: Any
    terminated: Any
    step_mask: Any
    group: Any
    anchor: Any

    @property
    def steps(self) -> Any:
        """(B,) lengths."""
        return self.step_mask.sum(-1)

    def pick(self, rows: Any) -> Batch:
        return Batch(*(array[rows] for array in self))

    def of(self, config: ShapingConfig, **changed: Any) -> Any:
        """The advantages of the batch under ``config``."""
        arguments = {
            "action_scores": self.action_scores,
            "state_scores": self.values,
            "terminal_reward": self.terminal_reward,
            "terminated": self.terminated,
            "step_mask": self.step_mask,
            "group": self.group,
        }
        return shaped_advantages(config, **(arguments | changed))

    def compared(self, estimator: Estimator, rewards: Any = None, **options: Any) -> Any:
        """Group advantages of the batch."""
        anchor = self.anchor if estimator == "gigpo" else None
        rewards = self.rewards if rewards is None else rewards
        return group_advantages(
            rewards, self.step_mask, self.group, estimator=estimator, anchor=anchor, **options
        )


def batch(seed: int, n_steps: int = 5) -> Batch:
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat([3, -1, 40], [4, 2, 5]))
    n = rng.integers(1, n_steps + 1, len(group))
    step_mask = np.arange(n_steps) < n[:, None]
    state_mask = np.arange(n_steps + 1) <= n[:, None]
    shape = step_mask.shape
    values = rng.random((len(group), n_steps + 1))
    values[:, 0] = rng.random(41)[group]  # traces of a task begin in the same state
    return Batch(
        rewards=np.where(step_mask, rng.normal(size=shape), np.nan),
        values=np.where(state_mask, values, np.nan),
        action_scores=np.where(step_mask, rng.random(shape), np.nan),
        terminal_reward=rng.integers(0, 2, len(group)).astype(float),
        terminated=rng.random(len(group)) < 0.5,
        step_mask=step_mask,
        group=group,
        anchor=rng.integers(0, 3, shape),
    )


def as_torch(data: Batch) -> Batch:
    return Batch(*(torch.from_numpy(array) for array in data))


class TestReturnsToGo:
    @few
    @given(seeds, gammas)
    def test_is_the_polynomial_in_gamma(self, seed: int, gamma: float) -> None:
        data = batch(seed)
        found = returns_to_go(data.rewards, data.step_mask, gamma)
        for row, n in enumerate(data.steps):
            for i in range(n):
                value = np.polyval(data.rewards[row, i:n][::-1], gamma)
                assert found[row, i] == pytest.approx(value, abs=1e-12)
        assert (found[~data.step_mask] == 0).all()

    def test_an_outcome_reaches_all_steps(self) -> None:
        rewards = np.array([0.0, 0.0, 0.0, 1.0])
        assert returns_to_go(rewards).tolist() == [1, 1, 1, 1]
        assert returns_to_go(rewards, gamma=0.5).tolist() == [0.125, 0.25, 0.5, 1]
        assert returns_to_go(rewards, gamma=0).tolist() == [0, 0, 0, 1]

    def test_any_leading_axes_and_one_step(self) -> None:
        rewards = np.arange(24.0).reshape(2, 3, 4)
        found = returns_to_go(rewards, gamma=0.9)
        np.testing.assert_array_equal(found[1, 2], returns_to_go(rewards[1, 2], gamma=0.9))
        assert returns_to_go(np.array([3])).tolist() == [3]

    def test_refusals(self) -> None:
        with pytest.raises(PRMError, match="gamma 1.01: expected .* the return diverges"):
            returns_to_go(np.ones(3), gamma=1.01)
        with pytest.raises(PRMError, match="rewards: found NaN"):
            returns_to_go(np.array([1.0, np.nan]))
        with pytest.raises(PRMError, match="step 2 is there and step 1 is not"):
            returns_to_go(np.ones(3), np.array([True, False, True]))


class TestTurnGae:
    @few
    @given(seeds, gammas, st.sampled_from([0.0, 0.3, 0.95, 1.0]))
    def test_is_the_double_sum(self, seed: int, gamma: float, lam: float) -> None:
        data = batch(seed)
        found = turn_gae(
            data.rewards,
            data.values,
            data.step_mask,
            terminated=data.terminated,
            gamma=gamma,
            lam=lam,
        )
        for row, n in enumerate(data.steps):
            v = data.values[row, : n + 1].copy()
            v[n] *= not data.terminated[row]
            error = [data.rewards[row, k] + gamma * v[k + 1] - v[k] for k in range(n)]
            for i in range(n):
                total = sum((gamma * lam) ** (k - i) * error[k] for k in range(i, n))
                assert found[row, i] == pytest.approx(total, abs=1e-12)
        assert (found[~data.step_mask] == 0).all()

    @few
    @given(seeds, gammas)
    def test_closed_forms(self, seed: int, gamma: float) -> None:
        """λ = 1: return, with the value at a cut, minus value. λ = 0: the error of one turn."""
        data = batch(seed)
        arguments = data.rewards, data.values, data.step_mask
        one, zero = (
            turn_gae(*arguments, terminated=data.terminated, gamma=gamma, lam=lam)
            for lam in (1.0, 0.0)
        )
        rows = np.arange(len(data.group))
        rest = np.where(data.terminated, 0.0, data.values[rows, data.steps])
        left = data.steps[:, None] - np.arange(data.step_mask.shape[1])
        returns = returns_to_go(data.rewards, data.step_mask, gamma)
        returns = returns + rest[:, None] * gamma ** np.maximum(left, 0)
        there = data.step_mask
        np.testing.assert_allclose(one[there], (returns - data.values[:, :-1])[there], atol=1e-12)
        rest_at = np.where(left == 1, rest[:, None], data.values[:, 1:])
        error = data.rewards + gamma * rest_at - data.values[:, :-1]
        np.testing.assert_allclose(zero[there], error[there], atol=1e-12)

    @pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
    def test_true_value_of_a_sure_outcome_leaves_nothing(self, lam: float) -> None:
        rewards, values = np.array([0.0, 0.0, 1.0]), np.array([0.81, 0.9, 1.0, 7.0])
        found = turn_gae(rewards, values, terminated=True, gamma=0.9, lam=lam)
        np.testing.assert_allclose(found, 0, atol=1e-15)

    def test_refusals(self) -> None:
        rewards, values = np.zeros(2), np.zeros(3)
        with pytest.raises(PRMError, match="lam -0.1: expected"):
            turn_gae(rewards, values, terminated=True, lam=-0.1)
        with pytest.raises(PRMError, match="the return diverges"):
            turn_gae(rewards, values, terminated=True, gamma=2)
        with pytest.raises(PRMError, match=r"values: expected \(…, S\+1\).* found shape \(2,\)"):
            turn_gae(rewards, values[:2], terminated=True)
        with pytest.raises(PRMError, match="values: found NaN"):
            turn_gae(rewards, np.array([0.0, np.nan, 0.0]), terminated=True)
        with pytest.raises(PRMError, match="values: found NaN"):
            turn_gae(rewards, np.array([0.0, 0.0, np.nan]), terminated=False)
        turn_gae(rewards, np.array([0.0, 0.0, np.nan]), terminated=True)  # not read at a true end


class TestEstimators:
    @few
    @given(seeds, gammas)
    def test_alive_mean_sums_to_zero_at_each_index_of_a_group(
        self, seed: int, gamma: float
    ) -> None:
        data = batch(seed)
        found = data.compared("alive_mean", gamma=gamma)
        for task in np.unique(data.group):
            np.testing.assert_allclose(found[data.group == task].sum(axis=0), 0, atol=1e-12)
        together = found[0] - found  # differences within a group are those of the returns
        returns = returns_to_go(data.rewards, data.step_mask, gamma)
        both = data.step_mask & data.step_mask[0] & (data.group == data.group[0])[:, None]
        np.testing.assert_allclose(together[both], (returns[0] - returns)[both], atol=1e-12)

    def test_outcome_is_grpo(self) -> None:
        """Worked by hand: outcomes 1, 0, 0, 1 have mean 0.5 and deviation 0.5."""
        rewards = np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
        mask = np.array([[True, True]] * 3 + [[True, False]])
        group = np.zeros(4, int)
        plain = group_advantages(rewards, mask, group, estimator="outcome")
        assert plain.tolist() == [[0.5, 0.5], [-0.5, -0.5], [-0.5, -0.5], [0.5, 0.0]]
        scaled = group_advantages(rewards, mask, group, estimator="outcome", scale="std")
        np.testing.assert_allclose(scaled, 2 * plain)

    def test_step_norm_by_hand(self) -> None:
        """Steps 1, 0, 5 of two traces have mean 2."""
        rewards = np.array([[1.0, 0.0], [5.0, 0.0]])
        mask = np.array([[True, True], [True, False]])
        found = group_advantages(rewards, mask, np.zeros(2, int), estimator="step_norm")
        assert found.tolist() == [[-3.0, -2.0], [3.0, 0.0]]

    def test_mt_grpo_by_hand(self) -> None:
        """Outcomes 1 and 0; turn rewards 0.5 and 0.1, then 0.2 where the other has ended."""
        rewards = np.array([[0.5, 0.2, 1.0], [0.1, 0.0, 0.0]])
        mask = np.array([[True, True, True], [True, True, False]])
        found = group_advantages(rewards, mask, np.zeros(2, int), estimator="mt_grpo", omega=2.0)
        np.testing.assert_allclose(found, [[0.5 + 0.4, 0.5 + 0.2, 0.5], [-0.5 - 0.4, -0.5, 0]])

    @few
    @given(seeds)
    def test_same_when_all_traces_have_one_length(self, seed: int) -> None:
        """Centring rewards at each index is then centring returns at each index."""
        data = batch(seed)
        rewards = np.nan_to_num(data.rewards)
        found = [
            group_advantages(rewards, None, data.group, estimator=estimator, gamma=0.9)
            for estimator in ("alive_mean", "index_mean")
        ]
        np.testing.assert_allclose(found[0], found[1], atol=1e-12)

    @few
    @given(seeds)
    def test_gigpo_between_its_extremes(self, seed: int) -> None:
        """Anchors that never return add nothing; the index as anchor adds the alive mean."""
        data = batch(seed)
        shape = data.step_mask.shape
        once = data._replace(anchor=np.arange(data.step_mask.size).reshape(shape))
        outcome, alive = data.compared("outcome"), data.compared("alive_mean")
        np.testing.assert_allclose(once.compared("gigpo", omega=3.0), outcome, atol=1e-12)
        index = data._replace(anchor=np.broadcast_to(np.arange(shape[1]), shape))
        total = outcome + 0.5 * alive
        np.testing.assert_allclose(index.compared("gigpo", omega=0.5), total, atol=1e-12)

    @few
    @given(seeds)
    def test_gigpo_compares_steps_at_one_anchor(self, seed: int) -> None:
        data = batch(seed)
        step_part = data.compared("gigpo") - data.compared("outcome")
        cells = [
            (data.group == task)[:, None] & (data.anchor == anchor) & data.step_mask
            for task in np.unique(data.group)
            for anchor in range(3)
        ]
        for cell in cells:
            assert step_part[cell].sum() == pytest.approx(0, abs=1e-12)

    def test_mt_grpo_without_turn_rewards_is_outcome(self) -> None:
        data = batch(0)
        last = np.arange(data.step_mask.shape[1]) == data.steps[:, None] - 1
        rewards = np.where(last, data.terminal_reward[:, None], 0.0)
        found, outcome = (data.compared(name, rewards) for name in ("mt_grpo", "outcome"))
        np.testing.assert_allclose(found, outcome, atol=1e-12)

    @pytest.mark.parametrize("estimator", ["alive_mean", "outcome", "gigpo", "mt_grpo"])
    def test_a_better_task_for_all_changes_nothing(self, estimator: Estimator) -> None:
        data = batch(1)
        last = np.arange(data.step_mask.shape[1]) == data.steps[:, None] - 1
        found = data.compared(estimator, data.rewards + 5.0 * last)
        np.testing.assert_allclose(found, data.compared(estimator), atol=1e-12)

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    @pytest.mark.parametrize("scale", SCALES)
    @settings(max_examples=15)
    @given(seed=seeds)
    def test_groups_order_labels_and_padding_do_not_matter(
        self, estimator: Estimator, scale: Any, seed: int
    ) -> None:
        data = batch(seed)
        found = data.compared(estimator, scale=scale)
        order = np.random.default_rng(seed).permutation(len(data.group))
        shuffled = data.pick(order)._replace(group=7 - data.group[order])
        np.testing.assert_allclose(
            shuffled.compared(estimator, scale=scale), found[order], atol=1e-12
        )
        for task in np.unique(data.group):
            rows = data.group == task
            alone = data.pick(rows).compared(estimator, scale=scale)
            np.testing.assert_allclose(alone, found[rows], atol=1e-12)
        wider = Batch(*(np.pad(a, ((0, 0), (0, 2))) if a.ndim == 2 else a for a in data))
        padded = wider.compared(estimator, scale=scale)
        np.testing.assert_allclose(padded[:, : found.shape[1]], found, atol=1e-12)
        assert (found[~data.step_mask] == 0).all()
        assert (padded[:, found.shape[1] :] == 0).all()

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    @pytest.mark.parametrize("scale", SCALES)
    def test_torch_is_numpy_and_one_by_one_is_the_batch(
        self, estimator: Estimator, scale: Any
    ) -> None:
        data = batch(2)
        found = data.compared(estimator, scale=scale, gamma=0.9)
        tensors = as_torch(data).compared(estimator, scale=scale, gamma=0.9)
        assert isinstance(found, np.ndarray)
        assert isinstance(tensors, torch.Tensor)
        np.testing.assert_allclose(tensors.numpy(), found, atol=1e-12)
        single = as_torch(data)._replace(rewards=torch.from_numpy(data.rewards).float())
        assert single.compared(estimator, scale=scale).dtype == torch.float64

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    @pytest.mark.parametrize("scale", SCALES)
    def test_gradients_flow(self, estimator: Estimator, scale: Any) -> None:
        data = as_torch(batch(3))
        rewards = torch.nan_to_num(data.rewards).requires_grad_()

        def function(rewards: torch.Tensor) -> Any:
            return data.compared(estimator, rewards, scale=scale, gamma=0.9)

        assert torch.autograd.gradcheck(function, rewards)


class TestScale:
    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_units_of_the_reward_drop_out(self, estimator: Estimator) -> None:
        data = batch(4)
        found = data.compared(estimator, 1000 * data.rewards, scale="std")
        np.testing.assert_allclose(found, data.compared(estimator, scale="std"), atol=1e-9)
        plain = data.compared(estimator, 1000 * data.rewards)
        np.testing.assert_allclose(plain, 1000 * data.compared(estimator), atol=1e-9)

    def test_alive_mean_keeps_proportions_within_a_group(self) -> None:
        data = batch(5)
        plain, scaled = data.compared("alive_mean"), data.compared("alive_mean", scale="std")
        for task in np.unique(data.group):
            rows = (data.group == task)[:, None] & data.step_mask
            assert (scaled[rows] ** 2).mean() == pytest.approx(1)
            used = rows & (abs(plain) > 1e-9)
            assert np.ptp(scaled[used] / plain[used]) == pytest.approx(0, abs=1e-9)

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    @pytest.mark.parametrize("reward", [0.0, 0.1, 1e6 / 3])
    def test_where_nothing_differs_there_is_no_advantage(
        self, estimator: Estimator, reward: float
    ) -> None:
        """Rounding in a mean of equal numbers must not become an advantage of 1."""
        rewards = torch.full((3, 1), reward, dtype=torch.float64, requires_grad=True)
        mask = torch.ones((3, 1), dtype=torch.bool)
        anchor = torch.zeros((3, 1), dtype=torch.int64) if estimator == "gigpo" else None
        found = group_advantages(
            rewards,
            mask,
            torch.zeros(3, dtype=torch.int64),
            estimator=estimator,
            scale="std",
            anchor=anchor,
        )
        assert found.tolist() == [[0.0]] * 3
        found.sum().backward()
        assert rewards.grad is not None
        assert torch.isfinite(rewards.grad).all()


class TestShapedAdvantages:
    @few
    @given(seeds, gammas, st.sampled_from([0.1, 1.0, 5.0]))
    def test_potential_baseline_and_critic_where_all_traces_end(
        self, seed: int, gamma: float, weight: float
    ) -> None:
        data = batch(seed)
        data = data._replace(terminated=np.ones_like(data.terminated))
        potential, baseline, critic = (
            data.of(ShapingConfig(mode=mode, process_weight=weight, gamma=gamma))
            for mode in ("potential", "baseline", "critic")
        )
        np.testing.assert_allclose(potential, baseline, atol=1e-12)
        for task in np.unique(data.group):
            rows = data.group == task
            for i in range(data.step_mask.shape[1]):
                alive = rows & data.step_mask[:, i]
                if alive.any():
                    centred = critic[alive, i] - critic[alive, i].mean()
                    np.testing.assert_allclose(centred, baseline[alive, i], atol=1e-12)

    @few
    @given(seeds, gammas)
    def test_at_a_cut_potential_is_critic_and_not_baseline(self, seed: int, gamma: float) -> None:
        """The difference is the potential of the last state, seen from each step."""
        data = batch(seed)
        data = data._replace(terminated=np.zeros_like(data.terminated))
        potential, baseline, critic = (
            data.of(ShapingConfig(mode=mode, process_weight=0.5, gamma=gamma))
            for mode in ("potential", "baseline", "critic")
        )
        at_cut = np.where(
            np.arange(data.step_mask.shape[1]) == data.steps[:, None] - 1, data.values[:, 1:], 0.0
        )
        worth = data.compared("alive_mean", 0.5 * gamma * at_cut, gamma=gamma)
        np.testing.assert_allclose(potential - baseline, worth, atol=1e-12)
        difference = critic - potential  # the same for all traces of a group at a step
        for task in np.unique(data.group):
            for i in range(data.step_mask.shape[1]):
                alive = (data.group == task) & data.step_mask[:, i]
                if alive.any():
                    assert np.ptp(difference[alive, i]) == pytest.approx(0, abs=1e-12)

    @few
    @given(seeds, gammas)
    def test_potential_cancels_under_trajectory_level_centring(
        self, seed: int, gamma: float
    ) -> None:
        data = batch(seed)
        data = data._replace(terminated=np.ones_like(data.terminated))
        shaped, outcome = (
            data.of(ShapingConfig(mode=mode, gamma=gamma), estimator="outcome")
            for mode in ("potential", "terminal")
        )
        np.testing.assert_allclose(shaped, outcome, atol=1e-12)

    @pytest.mark.parametrize(("reward", "worst"), [(0.0, 0), (1.0, 5)])
    def test_a_critic_that_is_too_high_makes_early_ends_look_bad(
        self, reward: float, worst: int
    ) -> None:
        """Traces of 1 to 6 steps with one reward at the end and one potential everywhere: their
        first step has lam^(S - 1) (R - c), whatever they did."""
        lengths, lam, c = np.arange(1, 7), 0.8, 0.4
        first = shaped_advantages(
            ShapingConfig(mode="critic", lam=lam),
            state_scores=np.full((6, 7), c),
            terminal_reward=np.full(6, reward),
            terminated=np.ones(6, dtype=np.bool_),
            step_mask=np.arange(6) < lengths[:, None],
            group=np.zeros(6, dtype=np.int64),
        )[:, 0]
        np.testing.assert_allclose(first, lam ** (lengths - 1) * (reward - c))
        # Where the policy gets less than the critic says, the longest trace looks best.
        assert first.argmin() == worst

    @few
    @given(seeds)
    def test_critic_is_turn_gae_of_the_outcome(self, seed: int) -> None:
        data = batch(seed)
        config = ShapingConfig(
            mode="critic", process_weight=0.5, terminal_weight=2.0, gamma=0.9, lam=0.7
        )
        last = np.arange(data.step_mask.shape[1]) == data.steps[:, None] - 1
        gae = turn_gae(
            2.0 * last * data.terminal_reward[:, None],
            0.5 * data.values,
            data.step_mask,
            terminated=data.terminated,
            gamma=0.9,
            lam=0.7,
        )
        np.testing.assert_allclose(data.of(config), gae, atol=1e-12)
        alone = data.pick(slice(1))  # a critic needs no group
        np.testing.assert_allclose(alone.of(config), gae[:1], atol=1e-12)

    @pytest.mark.parametrize("mode", ["potential", "baseline", "critic"])
    def test_null_states_carry_the_last_known_potential(self, mode: Mode) -> None:
        data = batch(6)
        known, unknown = data.values.copy(), data.values.copy()
        unknown[:, 1] = np.nan
        known[:, 1] = known[:, 0]
        config = ShapingConfig(mode=mode)
        np.testing.assert_array_equal(
            data.of(config, state_scores=known), data.of(config, state_scores=unknown)
        )
        unknown[:, 0] = np.nan
        known[:, :2] = -0.25
        config = ShapingConfig(mode=mode, score_range=(-0.25, 1.0))
        np.testing.assert_array_equal(
            data.of(config, state_scores=known), data.of(config, state_scores=unknown)
        )

    @pytest.mark.parametrize(
        ("mode", "normalise"),
        [(mode, by) for mode in MODES for by in ("none", "group") if (mode, by) != CRITIC_BY_GROUP],
    )
    def test_torch_is_numpy_groups_are_apart_and_gradients_flow(
        self, mode: Mode, normalise: Any
    ) -> None:
        config = ShapingConfig(
            mode=mode, process_weight=0.7, terminal_weight=1.3, gamma=0.9, normalise=normalise
        )
        data = batch(7)
        found = data.of(config)
        for task in np.unique(data.group):
            rows = data.group == task
            np.testing.assert_allclose(data.pick(rows).of(config), found[rows], atol=1e-12)
        tensors = as_torch(data)
        for scores in (tensors.values, tensors.action_scores):
            scores.requires_grad_()
        shaped = tensors.of(config)
        np.testing.assert_allclose(shaped.detach().numpy(), found, atol=1e-12)
        if mode != "terminal":
            (shaped**2).sum().backward()
            slopes = [tensors.values.grad, tensors.action_scores.grad]
            read = [slope for slope in slopes if slope is not None]
            assert len(read) == 1
            assert torch.isfinite(read[0]).all()
            assert (read[0] != 0).any()

    def test_weights_follow_the_schedule(self) -> None:
        data = batch(8)
        config = ShapingConfig(mode="sum", process_weight=1.0, schedule="linear")
        half = data.of(ShapingConfig(mode="sum", process_weight=0.5))
        np.testing.assert_allclose(data.of(config, progress=0.5), half, atol=1e-12)
        outcome = data.of(ShapingConfig(mode="terminal"))
        np.testing.assert_allclose(data.of(config, progress=1.0), outcome, atol=1e-12)


class TestNormalise:
    def test_streams_are_scaled_apart_then_weighted(self) -> None:
        data = batch(9)
        parts = [
            data.of(ShapingConfig("sum", process_weight=w, terminal_weight=t, normalise="group"))
            for w, t in ((1.0, 0.0), (0.0, 1.0), (0.3, 2.0))
        ]
        np.testing.assert_allclose(parts[2], 0.3 * parts[0] + 2.0 * parts[1], atol=1e-12)
        np.testing.assert_allclose(
            parts[1],
            data.of(ShapingConfig("terminal", normalise="group")),
            atol=1e-12,
        )

    @pytest.mark.parametrize("mode", ["potential", "baseline"])
    def test_unit_of_the_scores_drops_out(self, mode: Mode) -> None:
        data = batch(10)
        config = ShapingConfig(mode, normalise="group", score_range=(0.0, 50.0))
        found = data.of(config, state_scores=50 * data.values)
        np.testing.assert_allclose(found, data.of(config), atol=1e-9)

    def test_group_of_equal_outcomes_has_the_process_part_alone(self) -> None:
        data = batch(11)
        config = ShapingConfig("sum", normalise="group")
        found = data.of(config, terminal_reward=np.full(len(data.group), 0.1))
        process = data.of(ShapingConfig("sum", terminal_weight=0.0, normalise="group"))
        np.testing.assert_allclose(found, process, atol=1e-9)


class TestRefusals:
    def test_group_with_one_trace(self) -> None:
        with pytest.raises(PRMError, match="group 7: one trace only: an advantage is what a trace"):
            group_advantages(np.ones((3, 2)), None, np.array([5, 7, 5]))
        data = batch(0).pick(slice(1))
        with pytest.raises(PRMError, match="one trace only"):
            data.of(ShapingConfig(mode="baseline"))

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_anchor_missing_or_unread(self, estimator: Estimator) -> None:
        anchor = None if estimator == "gigpo" else np.zeros((2, 2), int)
        word = "missing" if estimator == "gigpo" else "given"
        with pytest.raises(PRMError, match=f"estimator '{estimator}', anchor {word}"):
            group_advantages(
                np.ones((2, 2)), None, np.zeros(2, int), estimator=estimator, anchor=anchor
            )

    def test_nothing_there(self) -> None:
        with pytest.raises(PRMError, match="at least one step"):
            returns_to_go(np.ones((2, 0)))
        with pytest.raises(PRMError, match="at least one trace"):
            group_advantages(np.ones((0, 2)), None, np.zeros(0, int))

    def test_shapes_and_names(self) -> None:
        group = np.zeros(2, int)
        with pytest.raises(PRMError, match=r"rewards: expected \(B, S\) .* found shape \(2,\)"):
            group_advantages(np.ones(2), None, group)
        with pytest.raises(PRMError, match=r"one integer for each of 2 traces.* shape \(3,\)"):
            group_advantages(np.ones((2, 2)), None, np.zeros(3, int))
        with pytest.raises(PRMError, match="one integer for each of 2 traces, found float64"):
            group_advantages(np.ones((2, 2)), None, np.zeros(2))
        with pytest.raises(PRMError, match="anchor: expected one for each step"):
            group_advantages(np.ones((2, 2)), None, group, estimator="gigpo", anchor=group)
        with pytest.raises(PRMError, match="found 'grpo' and 'none'"):
            group_advantages(np.ones((2, 2)), None, group, estimator="grpo")  # type: ignore[arg-type]
        mask = np.array([[True, True], [False, False]])
        with pytest.raises(PRMError, match="a step in every trace"):
            group_advantages(np.ones((2, 2)), mask, group)
        with pytest.raises(PRMError, match="the return diverges"):
            group_advantages(np.ones((2, 2)), None, group, gamma=1.5)

    @pytest.mark.parametrize("mode", ["baseline", "critic"])
    def test_mode_with_an_advantage_of_its_own(self, mode: Mode) -> None:
        with pytest.raises(PRMError, match=f"mode '{mode}' has an advantage of its own"):
            batch(0).of(ShapingConfig(mode=mode), estimator="outcome")

    def test_critic_by_group(self) -> None:
        with pytest.raises(PRMError, match="must be on one scale"):
            batch(0).of(ShapingConfig(mode="critic", normalise="group"))

    @pytest.mark.parametrize("mode", ["baseline", "critic", "potential"])
    def test_scores_missing_or_out_of_range(self, mode: Mode) -> None:
        data = batch(0)
        with pytest.raises(PRMError, match=f"mode '{mode}' needs state scores, found none"):
            data.of(ShapingConfig(mode=mode), state_scores=None)
        values = data.values.copy()
        values[2, 0] = 1.5
        with pytest.raises(PRMError, match="state score 0 of trace 2 is 1.5: expected score_range"):
            data.of(ShapingConfig(mode=mode), state_scores=values)

    def test_outcome_that_says_nothing(self) -> None:
        data = batch(0)
        reward = data.terminal_reward.copy()
        reward[3] = np.nan
        with pytest.raises(PRMError, match="terminal_reward of trace 3 is nan"):
            data.of(ShapingConfig(mode="baseline"), terminal_reward=reward)
