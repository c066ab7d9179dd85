"""Online rewards equal those of the finished episode, alone and vectorised; refusals."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete, Text
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from prm import Scorer
from prm.data.trace import Message, Outcome, Trace
from prm.errors import PRMError, RecordError
from prm.model.build import from_backbone
from prm.model.config import StepRewardConfig
from prm.rl.gymnasium import ShapeReward, StepScore, VectorShapeReward, last_scores
from prm.rl.online import TurnLimit
from prm.shaping import Mode, ShapingConfig, step_rewards
from tests.backbones import LENGTHS, write_backbone

ONLINE = ("terminal", "potential", "progress", "sum", "clip")
WORDS = ("left", "right", "stop")
LIMIT = 6
Parts = dict[str, float]


class Corridor(gymnasium.Env[str, str]):
    """Walk to the door and stop there: 1 for that, 0 for stopping elsewhere."""

    observation_space = Text(20, charset="abcdefghijklmnopqrstuvwxyz 0123456789")
    action_space = Text(20)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.door = 0, int(self.np_random.integers(-2, 3))
        return self._see(), {"door": self.door}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.at += {"left": -1, "right": 1}.get(action, 0)
        ended = action == "stop"
        return self._see(), float(ended and self.at == self.door), ended, False, {}

    def _see(self) -> str:
        return f"door {(self.door - self.at) % 10} away"


class Buttons(Corridor):
    """The corridor for learners that choose by number and see a number."""

    observation_space = Discrete(10)  # type: ignore[assignment]
    action_space = Discrete(3)  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        return super().step(WORDS[action])

    def _see(self) -> Any:
        return (self.door - self.at) % 10


def corridor() -> gymnasium.Env[str, str]:
    return TimeLimit(Corridor(), LIMIT)


def fingerprint(messages: Sequence[Message]) -> float:
    """A number in [0, 1) that depends on all of the messages."""
    return zlib.crc32(repr(messages).encode()) / 2**32


def score(traces: Sequence[Trace]) -> list[StepScore]:
    """Scores of what a trace says; about one in five is NaN."""

    def known(value: float) -> float:
        return math.nan if value < 0.2 else value

    return [
        StepScore(
            known(fingerprint(trace.messages[: trace.steps[-1].at + 1])) if trace.steps else None,
            known(fingerprint(trace.messages)),
        )
        for trace in traces
    ]


def score_states(traces: Sequence[Trace]) -> list[StepScore]:
    """Scores of states alone, every one known."""
    return [StepScore(state=fingerprint(trace.messages)) for trace in traces]


def config_of(mode: Mode) -> ShapingConfig:
    return ShapingConfig(
        mode=mode, process_weight=0.3, terminal_weight=2.0, gamma=0.9, schedule="linear"
    )


def play(
    env: gymnasium.Env[str, str], rng: np.random.Generator
) -> tuple[list[float], list[Parts], bool]:
    """Rewards and parts of a random episode, and whether it was cut without an end."""
    env.reset(seed=int(rng.integers(2**31)))
    rewards, parts = [], []
    while True:
        action = str(rng.choice(WORDS, p=(0.4, 0.4, 0.2)))
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(float(reward))
        parts.append(info["prm"])
        if terminated or truncated:
            return rewards, parts, not terminated


@pytest.mark.parametrize("turn_limit", ["end", "cut"])
@pytest.mark.parametrize("mode", ONLINE)
def test_online_rewards_are_those_of_the_finished_episode(mode: Mode, turn_limit: Any) -> None:
    config, rng, ends = config_of(mode), np.random.default_rng(0), set()
    env = ShapeReward(corridor(), score, config, turn_limit=turn_limit)
    env.progress = 0.25
    for _ in range(40):
        rewards, parts, truncated = play(env, rng)
        trace = env.trace
        assert trace.outcome.status == ("out_of_turns" if truncated else "completed")
        assert trace.outcome.reward is not None
        offline = step_rewards(
            config,
            action_scores=trace.step_scores("prm"),
            state_scores=trace.states("prm"),
            terminal_reward=trace.outcome.reward,
            terminated=not (truncated and turn_limit == "cut"),
            progress=0.25,
        )
        np.testing.assert_allclose(rewards, offline.rewards, rtol=0, atol=1e-12)
        np.testing.assert_allclose([p["process"] for p in parts], offline.process, atol=1e-12)
        np.testing.assert_allclose(
            rewards, [p["terminal"] + p["process"] for p in parts], atol=1e-12
        )
        ends.add((truncated, trace.outcome.reward))
    assert ends == {(True, 0.0), (False, 0.0), (False, 1.0)}


def test_a_potential_pays_an_episode_its_first_state_and_the_last_where_it_is_cut() -> None:
    for turn_limit in get_args(TurnLimit):
        env = ShapeReward(corridor(), score_states, turn_limit=turn_limit)
        rng, n_truncated = np.random.default_rng(1), 0
        for _ in range(20):
            _, parts, truncated = play(env, rng)
            states = env.trace.states("prm")
            kept = states[-1] if truncated and turn_limit == "cut" else 0.0
            total = sum(part["process"] for part in parts)
            np.testing.assert_allclose(total, kept - states[0], atol=1e-12)
            n_truncated += truncated
        assert 0 < n_truncated < 20


def test_the_trace_is_the_episode_and_the_scorer_never_sees_how_it_ended() -> None:
    seen: list[Trace] = []

    def watch(traces: Sequence[Trace]) -> list[StepScore]:
        seen.extend(traces)
        return score(traces)

    env = ShapeReward(Corridor(), watch, task_id="corridor")
    observation, info = env.reset(seed=3)
    assert set(info) == {"door", "prm"}
    after, *_ = env.step("left")
    last, *_ = env.step("stop")
    trace = env.trace
    trace.check()
    assert trace.messages == [
        {"role": "user", "content": observation},
        {"role": "assistant", "content": "left"},
        {"role": "user", "content": after},
        {"role": "assistant", "content": "stop"},
        {"role": "user", "content": last},
    ]
    assert [step.at for step in trace.steps] == [1, 3]
    assert [t.messages for t in seen] == [trace.messages[:n] for n in (1, 3, 5)]
    for each in seen:
        assert each.outcome == Outcome()
        assert not each.state_scores
        assert not any(step.scores for step in each.steps)
    env.reset()
    assert (trace.id, env.trace.id) == ("corridor-0", "corridor-1")


@pytest.mark.parametrize("mode", ONLINE)
def test_a_vector_pays_what_wrapped_environments_pay_in_one_call_a_step(mode: Mode) -> None:
    calls = []

    def counted(traces: Sequence[Trace]) -> list[StepScore]:
        calls.append(len(traces))
        return score(traces)

    config, rng, n = config_of(mode), np.random.default_rng(0), 3
    one_by_one = SyncVectorEnv([lambda: ShapeReward(corridor(), score, config)] * n)
    together = VectorShapeReward(SyncVectorEnv([corridor] * n), counted, config)
    one_by_one.set_attr("progress", 0.5)
    together.progress = 0.5
    one_by_one.reset(seed=7)
    together.reset(seed=7)
    n_ended = 0
    for _ in range(60):
        actions = tuple(rng.choice(WORDS, size=n, p=(0.4, 0.4, 0.2)).tolist())
        expected, found = one_by_one.step(actions), together.step(actions)
        assert expected[0] == found[0]
        for left, right in zip(expected[1:4], found[1:4], strict=True):
            np.testing.assert_array_equal(left, right)
        for key, values in found[4]["prm"].items():
            np.testing.assert_array_equal(expected[4]["prm"][key], values)
        assert [env.trace.messages for env in one_by_one.envs] == [  # type: ignore[attr-defined]
            trace.messages for trace in together.traces
        ]
        n_ended += int((found[2] | found[3]).sum())
    assert n_ended > 20
    assert calls == [n] * 61


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version")
def test_the_checker_of_gymnasium_passes_for_text_and_for_numbers() -> None:
    # The checker holds NaN to differ from itself, so every score is known here.
    def known(traces: Sequence[Trace]) -> list[StepScore]:
        return [StepScore(0.5, fingerprint(trace.messages)) for trace in traces]

    check_env(ShapeReward(Corridor(), known), skip_render_check=True)
    buttons: Any = Buttons()
    numbers = ShapeReward(
        buttons,
        known,
        read_observation=lambda n: [{"role": "user", "content": f"{n} away"}],
        read_action=lambda n: {"role": "assistant", "content": WORDS[n]},
    )
    check_env(numbers, skip_render_check=True)
    numbers.reset(seed=0)
    numbers.step(1)
    assert numbers.trace.messages[1]["content"] == "right"


def test_a_spec_builds_the_same_environment_again() -> None:
    gymnasium.register("Corridor-v0", f"{__name__}:Corridor", max_episode_steps=LIMIT)
    env = ShapeReward(gymnasium.make("Corridor-v0"), score, config_of("sum"))
    assert env.spec is not None
    again = gymnasium.make(env.spec)
    first, second = (play(e, np.random.default_rng(5))[0] for e in (env, again))
    assert first == second
    assert env.trace.task_id == "Corridor-v0"


def test_a_step_reward_model_scores_online_as_it_scores_the_finished_trace(
    tmp_path: Path,
) -> None:
    backbone = write_backbone(tmp_path / "backbone", "llama")
    scorer = Scorer(from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS)))
    env = ShapeReward(corridor(), last_scores(scorer), ShapingConfig(mode="potential"))
    play(env, np.random.default_rng(2))
    (whole,) = scorer.score([env.trace])
    assert env.trace.n_steps > 1
    np.testing.assert_allclose(env.trace.states("prm"), whole.states("prm"), atol=1e-5)
    np.testing.assert_allclose(env.trace.step_scores("prm"), whole.step_scores("prm"), atol=1e-5)


@pytest.mark.parametrize("mode", sorted(set(get_args(Mode)) - set(ONLINE)))
def test_modes_that_need_more_than_the_past_are_refused_with_the_reason(mode: Mode) -> None:
    for build in (
        lambda: ShapeReward(corridor(), score, ShapingConfig(mode=mode)),
        lambda: VectorShapeReward(SyncVectorEnv([corridor]), score, ShapingConfig(mode=mode)),
    ):
        with pytest.raises(PRMError, match=f"mode '{mode}' cannot be paid step by step: .*needs"):
            build()


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(PRMError, match="the spread of a group is known when"):
        ShapeReward(corridor(), score, ShapingConfig(normalise="group"))
    with pytest.raises(PRMError, match="turn_limit 'stop': expected one of end, cut"):
        ShapeReward(corridor(), score, turn_limit="stop")  # type: ignore[arg-type]
    same_step = SyncVectorEnv([corridor], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(PRMError, match="expected AutoresetMode.NEXT_STEP"):
        VectorShapeReward(same_step, score)
    twice = ShapeReward(ShapeReward(corridor(), score), score)
    with pytest.raises(PRMError, match="is the environment wrapped twice"):
        twice.reset()


@pytest.mark.parametrize(
    ("scorer", "mode", "sentence"),
    [
        (lambda t: [StepScore(action=0.5)] * len(t), "potential", "needs state scores"),
        (lambda t: [StepScore(state=0.5)] * len(t), "sum", "needs action scores"),
        (lambda t: [StepScore(0.5, 0.5)] * 2, "sum", "expected 1 scores, one for each episode"),
        (lambda t: [StepScore(0.5, 1.5)], "potential", "expected score_range 0 to 1"),
    ],
)
def test_a_scorer_that_gives_the_wrong_thing_is_refused(
    scorer: Callable[[Sequence[Trace]], list[StepScore]], mode: Mode, sentence: str
) -> None:
    env = ShapeReward(corridor(), scorer, ShapingConfig(mode=mode))
    with pytest.raises(PRMError) as caught:
        play(env, np.random.default_rng(0))
    assert sentence in str(caught.value)


def test_what_is_no_text_and_steps_outside_an_episode_are_refused() -> None:
    with pytest.raises(PRMError, match="found int; say with read_observation how it reads"):
        ShapeReward(Buttons(), score).reset(seed=0)
    wrong = ShapeReward(corridor(), score, read_observation=lambda text: [{"content": text}])
    with pytest.raises(RecordError, match="role"):
        wrong.reset()
    env = ShapeReward(corridor(), score)
    with pytest.raises(PRMError, match="call reset first"):
        _ = env.trace
    with pytest.raises(PRMError, match="call reset first"):
        env.step("left")
    play(env, np.random.default_rng(0))
    with pytest.raises(PRMError, match="call reset first"):
        env.step("left")
    with pytest.raises(PRMError, match="call reset first"):
        VectorShapeReward(SyncVectorEnv([corridor]), score).step(("left",))
