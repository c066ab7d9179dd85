"""Shaped step rewards for Gymnasium text environments: ``ShapeReward``, ``VectorShapeReward``.

The wrappers have every step scored as it is taken and add its process reward to the reward of the
environment (``prm.rl.online`` says how); ``info["prm"]`` has the parts. Actions and observations
may be anything that two functions can turn into messages; text needs none. A learner that wants
numbers keeps its numbers: the messages are for the scorer alone.

Needs the extra ``gymnasium`` of this package. Left out: environments, and learners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from prm.data.trace import Message, Trace
from prm.errors import PRMError
from prm.rl.online import (
    Episode,
    OnlineShaping,
    Parts,
    ScoreTraces,
    StepScore,
    TurnLimit,
    last_scores,
    text_action,
    text_observation,
)
from prm.shaping import ShapingConfig

__all__ = ["ShapeReward", "StepScore", "VectorShapeReward", "last_scores"]

Obs = TypeVar("Obs")
Act = TypeVar("Act")
INFO = "prm"
"""Key of ``info`` with the parts of the reward."""


class ShapeReward(gymnasium.Wrapper[Obs, Act, Obs, Act], RecordConstructorArgs):
    """Adds the process reward of each step to the reward of an environment.

    A step is paid ``terminal_weight`` times the environment's reward plus its process reward.
    A limit on turns belongs inside of this wrapper, ``ShapeReward(TimeLimit(env, 10), score)``:
    what cuts episodes outside of it is not seen here.

    Args:
        env: the environment.
        score: the scorer: ``last_scores(Scorer(model))`` or any function of traces.
        config: how rewards are blended; modes terminal, potential, progress, sum and clip.
        read_observation: from an observation to the messages that the agent sees.
        read_action: from an action to the message that says it.
        tools: function schemas of the traces, for scorers that read them.
        turn_limit: what ``truncated`` is to a trace: end where the limit is part of the task, so
            that its potential counts as 0; cut where a learner goes on from the last value (as
            most do on ``truncated``), so that its potential stands for the rest.
        task_id: of the traces; the name of the environment if None.

    Attributes:
        progress: share of training done, for the schedule of the process weight; set it as
            training goes on (``env.set_wrapper_attr("progress", 0.5)`` through other wrappers).

    Raises:
        PRMError: a mode that cannot be paid online, scores that the mode needs and the scorer does
            not give, a score outside its range, messages that are none, a step without a reset.
    """

    def __init__(
        self,
        env: gymnasium.Env[Obs, Act],
        score: ScoreTraces,
        config: ShapingConfig | None = None,
        *,
        read_observation: Callable[[Obs], list[Message]] = text_observation,
        read_action: Callable[[Act], Message] = text_action,
        tools: list[dict[str, Any]] | None = None,
        turn_limit: TurnLimit = "end",
        task_id: str | None = None,
    ) -> None:
        # A deep copy of the scorer would be a second model in memory.
        RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,
            score=score,
            config=config,
            read_observation=read_observation,
            read_action=read_action,
            tools=tools,
            turn_limit=turn_limit,
            task_id=task_id,
        )
        gymnasium.Wrapper.__init__(self, env)
        self._online = OnlineShaping(
            score,
            config or ShapingConfig(),
            read_observation=read_observation,
            read_action=read_action,
            tools=tools,
            turn_limit=turn_limit,
            task_id=task_id or _name_of(env),
        )
        self._episode: Episode | None = None
        self.progress = 0.0

    @property
    def trace(self) -> Trace:
        """The episode so far, with its scores and, once it has ended, its outcome."""
        if self._episode is None:
            raise PRMError("trace: no episode has begun: call reset first")
        return self._episode.trace()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode; ``info["prm"]`` has the score of its first state."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._episode = self._online.begin(observation)
        self._online.score([self._episode])
        return observation, _with_parts(info, self._episode.parts()._asdict())

    def step(self, action: Act) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Take a step, have it scored, and pay it."""
        if self._episode is None or not self._episode.going_on:
            raise PRMError("step: no episode is going on: call reset first")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._online.add(self._episode, action, observation)
        self._online.score([self._episode])
        parts = self._online.pay(
            self._episode,
            float(reward),
            terminated=terminated,
            truncated=truncated,
            progress=self.progress,
        )
        paid = parts.terminal + parts.process
        return observation, paid, terminated, truncated, _with_parts(info, parts._asdict())


class VectorShapeReward(VectorWrapper[Obs, Act, Obs, Act, NDArray[Any]]):
    """``ShapeReward`` for a vector environment: one call of the scorer for all episodes.

    The arguments, attributes and errors are those of :class:`ShapeReward`; observations and
    actions are read one by one, and ``info["prm"]`` has an array for each part. Episodes begin
    again on the step after their last one (``AutoresetMode.NEXT_STEP``), which pays 0. For other
    modes wrap each environment before it is vectorised: that pays the same and scores one by one.
    """

    def __init__(
        self,
        env: VectorEnv[Obs, Act, NDArray[Any]],
        score: ScoreTraces,
        config: ShapingConfig | None = None,
        *,
        read_observation: Callable[[Any], list[Message]] = text_observation,
        read_action: Callable[[Any], Message] = text_action,
        tools: list[dict[str, Any]] | None = None,
        turn_limit: TurnLimit = "end",
        task_id: str | None = None,
    ) -> None:
        super().__init__(env)
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.NEXT_STEP:
            raise PRMError(
                f"autoreset_mode {mode}: expected AutoresetMode.NEXT_STEP: in the others the last "
                f"observation of an episode is elsewhere; wrap each environment in ShapeReward"
            )
        self._online = OnlineShaping(
            score,
            config or ShapingConfig(),
            read_observation=read_observation,
            read_action=read_action,
            tools=tools,
            turn_limit=turn_limit,
            task_id=task_id or _name_of(env),
        )
        self._episodes: list[Episode] = []
        self.progress = 0.0

    @property
    def traces(self) -> list[Trace]:
        """The current episode of each environment."""
        return [episode.trace() for episode in self._episodes]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode in every environment."""
        observations, info = self.env.reset(seed=seed, options=options)
        each = iterate(self.env.observation_space, observations)
        self._episodes = [self._online.begin(observation) for observation in each]
        self._online.score(self._episodes)
        return observations, _with_parts(info, _stacked([e.parts() for e in self._episodes]))

    def step(
        self, actions: Act
    ) -> tuple[Obs, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Take a step in every environment; an episode that had ended begins again."""
        if not self._episodes:
            raise PRMError("step: no episode is going on: call reset first")
        stepped = [episode.going_on for episode in self._episodes]
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        each_observation = iterate(self.env.observation_space, observations)
        each_action = iterate(self.env.action_space, actions)
        for index, observation, action in zip(
            range(self.num_envs), each_observation, each_action, strict=True
        ):
            if stepped[index]:
                self._online.add(self._episodes[index], action, observation)
            else:
                self._episodes[index] = self._online.begin(observation)
        self._online.score(self._episodes)
        parts = [
            self._online.pay(
                episode,
                float(rewards[index]),
                terminated=bool(terminated[index]),
                truncated=bool(truncated[index]),
                progress=self.progress,
            )
            if stepped[index]
            else episode.parts()
            for index, episode in enumerate(self._episodes)
        ]
        stacked = _stacked(parts)
        paid = stacked["terminal"] + stacked["process"]
        return observations, paid, terminated, truncated, _with_parts(info, stacked)


def _with_parts(info: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    if INFO in info:
        raise PRMError(f"info has a {INFO!r} already: is the environment wrapped twice?")
    return {**info, INFO: dict(parts)}


def _stacked(parts: Sequence[Parts]) -> dict[str, NDArray[np.float64]]:
    """(num_envs,) for each part."""
    columns = np.array(parts).T
    return dict(zip(Parts._fields, columns, strict=True))


def _name_of(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
