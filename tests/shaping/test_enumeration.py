"""The expected policy gradient of a small agent, exactly: what modes and estimators leave of it.

The agent, and the trick that makes a finite group an infinite one, are in
``eval/bench/shaping_gradient.py``.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prm.shaping.config import ShapingConfig

BENCH = Path(__file__).parents[2] / "eval" / "bench"
SEEDS = range(12)
WEIGHTS = ("w = 0.1", "w = 1", "w = 5")


def script(name: str) -> Any:
    return SimpleNamespace(**runpy.run_path(str(BENCH / f"{name}.py")))


@pytest.fixture(scope="module")
def toy() -> Any:
    return script("shaping_gradient")


@pytest.fixture(scope="module")
def found(toy: Any) -> list[Any]:
    """The tables of some random agents."""
    return [toy.cosines(seed) for seed in SEEDS]


def column(found: list[Any], table: str, row: str, name: str) -> Any:
    """(agents,) one cell."""
    return np.array([tables[table][row][name] for tables in found])


def mean_gradient(
    toy: Any, agent: Any, traces: Any, config: ShapingConfig, **options: Any
) -> np.ndarray[Any, Any]:
    advantages = toy.shaped(agent, traces, config, **options)
    return np.asarray(toy.gradients(agent, traces, advantages, config.gamma).mean(axis=0))


class TestTheToyItself:
    @pytest.mark.parametrize(("turn_reward", "gamma"), [(0.0, 1.0), (0.5, 1.0), (0.3, 0.8)])
    def test_true_gradient_is_that_of_finite_differences(
        self, toy: Any, turn_reward: float, gamma: float
    ) -> None:
        """The expected return summed over the possible traces, with the logits moved a little."""
        agent = toy.agent_of(0)
        ends = agent.histories[len(agent.policy) :]
        places = {history: place for place, history in enumerate(agent.histories)}

        def expected(logits: Any) -> float:
            policy = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            total = 0.0
            for end in ends:
                prob = np.prod([policy[places[end[:i]], a] for i, a in enumerate(end)])
                paid = sum(turn_reward * gamma**i for i, a in enumerate(end) if a != toy.STOP)
                total += prob * (paid + gamma ** (len(end) - 1) * agent.reward[places[end]])
            return float(total)

        logits = np.log(agent.policy)
        slopes = np.zeros_like(logits)
        for cell in np.ndindex(*logits.shape):
            step = np.zeros_like(logits)
            step[cell] = 1e-5
            slopes[cell] = (expected(logits + step) - expected(logits - step)) / 2e-5
        truth = toy.true_gradient(agent, turn_reward, gamma)
        np.testing.assert_allclose(slopes, truth, atol=1e-9)

    def test_group_holds_each_trace_as_often_as_it_is_likely(self, toy: Any) -> None:
        agent = toy.agent_of(1)
        traces = toy.traces_of(agent)
        assert len(traces.last) == 1000
        assert len(set(traces.last)) == 15
        _, value = toy.values_of(agent)
        assert agent.reward[traces.last].mean() == pytest.approx(value[0], abs=1e-12)
        for history in range(len(agent.policy)):
            here = (traces.state[:, :-1] == history) & traces.step_mask
            taken = np.bincount(traces.action[here], minlength=3) / here.sum()
            np.testing.assert_allclose(taken, agent.policy[history], atol=1e-12)

    def test_same_seed_same_agent(self, toy: Any) -> None:
        assert toy.cosines(3) == toy.cosines(3) != toy.cosines(4)


class TestWhatKeepsTheGradient:
    @pytest.mark.parametrize("mode", ["terminal", "potential", "baseline", "critic"])
    @pytest.mark.parametrize("weight", [0.1, 1.0, 5.0])
    @pytest.mark.parametrize("gamma", [1.0, 0.9])
    def test_gradient_itself_for_any_potential(
        self, toy: Any, mode: Any, weight: float, gamma: float
    ) -> None:
        for seed in SEEDS:
            agent = toy.agent_of(seed)
            config = ShapingConfig(mode=mode, process_weight=weight, gamma=gamma)
            gradient = mean_gradient(toy, agent, toy.traces_of(agent), config)
            truth = toy.true_gradient(agent, gamma=gamma)
            np.testing.assert_allclose(gradient, truth, atol=1e-12)

    @pytest.mark.parametrize("mode", ["potential", "baseline", "critic"])
    def test_also_with_states_that_were_not_scored(self, toy: Any, mode: Any) -> None:
        agent = toy.agent_of(0)
        for unknown in ([0], [1, 2], [0, 1, 4], range(len(agent.histories))):
            potential = agent.potential.copy()
            potential[list(unknown)] = np.nan
            gradient = mean_gradient(
                toy, agent, toy.traces_of(agent), ShapingConfig(mode=mode), potential=potential
            )
            np.testing.assert_allclose(gradient, toy.true_gradient(agent), atol=1e-12)

    def test_cosines_of_the_table(self, toy: Any, found: list[Any]) -> None:
        for row in (*toy.KEEPING, "potential, normalised by group"):
            for weight in WEIGHTS:
                np.testing.assert_allclose(column(found, toy.OVER_WEIGHT, row, weight), 1)

    def test_critic_trusts_the_scores_below_lambda_1(self, toy: Any, found: list[Any]) -> None:
        names = [f"λ = {lam:g}" for lam in toy.LAMBDAS]
        for name in names:
            np.testing.assert_allclose(column(found, toy.OVER_LAMBDA, "true value", name), 1)
        wrong = [column(found, toy.OVER_LAMBDA, "arbitrary value", name) for name in names]
        np.testing.assert_allclose(wrong[0], 1)
        assert (np.array(wrong[1:]) < 1 - 1e-5).all()
        assert (np.diff(np.median(wrong, axis=1)) < 0).all()


class TestWhatChangesIt:
    @pytest.mark.parametrize("weight", WEIGHTS)
    def test_other_modes(self, toy: Any, found: list[Any], weight: str) -> None:
        for mode in toy.CHANGING:
            assert (column(found, toy.OVER_WEIGHT, mode, weight) < 1 - 1e-6).all()
            assert np.median(column(found, toy.OVER_WEIGHT, mode, "w = 5")) < 0.9

    @pytest.mark.parametrize("row", ["no end zeroed", "the turn limit taken for a cut"])
    def test_potential_at_a_true_end(self, toy: Any, found: list[Any], row: str) -> None:
        for weight in WEIGHTS:
            assert (column(found, toy.OVER_WEIGHT, f"potential, {row}", weight) < 1 - 1e-5).all()

    def test_potential_kept_at_an_end_is_paid(self, toy: Any) -> None:
        """What is not zeroed is added to the outcome: the gradient is that of the sum."""
        agent = toy.agent_of(0)
        traces = toy.traces_of(agent)
        gradient = mean_gradient(
            toy, agent, traces, ShapingConfig(), terminated=np.zeros(len(traces.last), bool)
        )
        other_task = agent._replace(reward=agent.reward + agent.potential)
        np.testing.assert_allclose(gradient, toy.true_gradient(other_task), atol=1e-12)


class TestEstimators:
    @pytest.mark.parametrize("rewards", ["0.5 a turn", "potential, w = 1"])
    def test_centring_returns_keeps_the_gradient(
        self, toy: Any, found: list[Any], rewards: str
    ) -> None:
        for name in ("alive_mean", "outcome", "gigpo"):
            np.testing.assert_allclose(column(found, toy.OVER_ESTIMATOR, name, rewards), 1)

    @pytest.mark.parametrize("rewards", ["0.5 a turn", "potential, w = 1"])
    def test_centring_rewards_does_not(self, toy: Any, found: list[Any], rewards: str) -> None:
        for name in ("step_norm", "index_mean", "mt_grpo"):
            assert (column(found, toy.OVER_ESTIMATOR, name, rewards) < 1 - 1e-5).all()

    @pytest.mark.parametrize("estimator", ["step_norm", "index_mean"])
    def test_centred_rewards_pay_for_stopping(self, toy: Any, estimator: Any) -> None:
        """Every turn is paid, yet stopping at once looks better than it is."""
        for seed in SEEDS:
            agent = toy.agent_of(seed)
            traces = toy.traces_of(agent)
            advantages = toy.rewarded(agent, traces, estimator)
            gradient = toy.gradients(agent, traces, advantages).mean(axis=0)
            truth = toy.true_gradient(agent, toy.TURN_REWARD)
            assert gradient[0, toy.STOP] > truth[0, toy.STOP]


class TestCuts:
    @pytest.mark.parametrize("mode", ["potential", "critic"])
    def test_a_true_potential_at_the_cut_gives_the_uncut_gradient(
        self, toy: Any, found: list[Any], mode: str
    ) -> None:
        for weight in WEIGHTS:
            cosines = column(found, toy.OVER_CUT, f"{mode}, w Φ true at the cut", weight)
            np.testing.assert_allclose(cosines, 1)

    @pytest.mark.parametrize("row", ["arbitrary at the cut", "the cut zeroed"])
    def test_anything_else_there_does_not(self, toy: Any, found: list[Any], row: str) -> None:
        for weight in WEIGHTS:
            assert (column(found, toy.OVER_CUT, f"potential, {row}", weight) < 1 - 1e-4).all()

    @pytest.mark.parametrize("mode", ["potential", "baseline", "critic"])
    def test_what_a_cut_trace_is_worth(self, toy: Any, mode: Any) -> None:
        """w Φ of its last state; under ``baseline`` its reward and nothing else."""
        for seed in SEEDS:
            agent = toy.cut(toy.agent_of(seed))
            traces = toy.traces_of(agent)
            was_cut = np.array([h[-1:] != (toy.STOP,) for h in agent.histories])
            config = ShapingConfig(mode=mode, process_weight=0.7)
            gradient = mean_gradient(toy, agent, traces, config, terminated=~was_cut[traces.last])
            worth = agent.reward + 0.7 * agent.potential * was_cut * (mode != "baseline")
            truth = toy.true_gradient(agent._replace(reward=worth))
            np.testing.assert_allclose(gradient, truth, atol=1e-12)


class TestVariance:
    def test_true_value_lowers_it_and_an_arbitrary_one_costs(self, toy: Any) -> None:
        found = [toy.gradient_variance(seed) for seed in SEEDS]
        mean = {name: np.mean([one[name] for one in found]) for name in found[0]}
        assert mean["true value, w = 1"] < 0.99
        assert mean["arbitrary, w = 1"] > mean["arbitrary, w = 0.5"] > mean["arbitrary, w = 0.1"]
        assert mean["arbitrary, w = 1"] > 1.02

    def test_on_desk(self) -> None:
        desk = script("shaping_variance")
        true, random = desk.measure("optimal", tasks=60, samples=8, resamples=200, seed=2)
        assert (true.high < 1).all()
        assert true.ratio[0] < true.ratio[1] < true.ratio[2]
        assert true.best_weight == pytest.approx(1, abs=0.3)
        assert random.best_weight == pytest.approx(0, abs=0.3)
        assert random.ratio[0] > 1.1

    def test_best_weight_and_its_ratio(self) -> None:
        desk = script("shaping_variance")
        true, _ = desk.measure("hint-reader", tasks=20, samples=4, resamples=20, seed=3)
        traces = desk.episodes("hint-reader", tasks=20, samples=4, seed=3)
        group = desk.grouped(traces, 4, np.random.default_rng(0))

        def square(weight: float) -> float:
            return float((desk.advantages(group, "true value", weight) ** 2).sum())

        least = square(true.best_weight)
        assert least / square(0.0) == pytest.approx(true.best_ratio, abs=1e-12)
        assert least < min(square(true.best_weight - 0.05), square(true.best_weight + 0.05))
        assert square(0.5) / square(0.0) == pytest.approx(true.ratio[1], abs=1e-12)


class TestReports:
    def test_gradient(self, toy: Any) -> None:
        text = toy.report(2)
        rows = [line for line in text.splitlines() if line.startswith("|")]
        exact = [row for row in rows if row.startswith("| potential |")]
        assert exact == ["| potential | **1.0000** | **1.0000** | **1.0000** |"]
        for mode in (*toy.KEEPING, *toy.CHANGING):
            assert sum(row.startswith(f"| {mode} |") for row in rows) == 1
        assert "--seeds 2" in text

    def test_variance(self) -> None:
        desk = script("shaping_variance")
        text = desk.report(tasks=24, samples=4, resamples=40, seed=0)
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert len(rows) == 2 + len(desk.AGENTS) * len(desk.POTENTIALS)
        assert "--tasks 24 --samples 4 --resamples 40 --seed 0" in text
