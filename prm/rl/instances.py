"""What adapters of foreign environments share: one instance an episode.

``InstanceEnvironment`` steps B instances side by side as an ``Environment``; an instance that
breaks ends its own episode alone and is replaced.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from prm.data.trace import Message
from prm.errors import PRMError, plural
from prm.rl.environment import BrokenEpisodes, Named, Reset, Transition, describe

TaskT = TypeVar("TaskT", bound=Named)
InstanceT = TypeVar("InstanceT")


class Episode(ABC):
    """One episode; :meth:`act` says what an action brings."""

    def __init__(self, prompt: list[Message], max_turns: int) -> None:
        self.prompt, self.max_turns = prompt, max_turns
        self.turns = 0
        self.terminated = self.cut = self.broken = False

    @property
    def truncated(self) -> bool:
        """Whether it was cut, or its turns are used, before it terminated or broke."""
        over = self.cut or self.turns == self.max_turns
        return over and not (self.terminated or self.broken)

    @property
    def ended(self) -> bool:
        """Whether it takes no more actions."""
        return self.terminated or self.truncated or self.broken

    def step(self, action: Message) -> tuple[list[Message], float]:
        """What :meth:`act` brings; an exception breaks the episode."""
        self.turns += 1
        try:
            observations, reward = self.act(action)
            # Half a surrogate pair, as names of files can have, is no text.
            json.dumps(observations, ensure_ascii=False).encode()
            return observations, reward
        except Exception:
            self.broken, self.terminated = True, False
            raise

    @abstractmethod
    def act(self, action: Message) -> tuple[list[Message], float]:
        """Observations and reward of a turn that is counted; sets ``terminated`` or ``cut``."""


class InstanceEnvironment(ABC, Generic[TaskT, InstanceT]):
    """B episodes, each on an instance of its own.

    Instances are made when they are first needed and begin episode after episode; one that broke
    is replaced.

    Args:
        make: makes an instance.
        tools: function schemas of all episodes.
    """

    def __init__(self, make: Callable[[], InstanceT], tools: list[dict[str, Any]]) -> None:
        self._make, self._tools = make, tools
        self._instances: dict[int, InstanceT] = {}
        self._episodes: list[Episode] = []

    def reset(
        self, tasks: Sequence[TaskT], max_turns: Sequence[int], samples: Sequence[int]
    ) -> Reset:
        """Begin B episodes.

        Raises :class:`PRMError` for T < 1 or a sample < 0, and when an instance cannot be made or
        its reset fails.
        """
        if not len(tasks) == len(max_turns) == len(samples):
            raise PRMError(
                f"reset: expected one max_turns and one sample for each of "
                f"{plural(len(tasks), 'task')}, found {len(max_turns)} and {len(samples)}"
            )
        self._episodes = []
        self._episodes = [
            self._begin_at(index, *start)
            for index, start in enumerate(zip(tasks, max_turns, samples, strict=True))
        ]
        return Reset([episode.prompt for episode in self._episodes], self._tools)

    def step(self, actions: Sequence[Message | None]) -> Transition:
        """One turn of every episode that is going on; None for the others.

        Raises:
            BrokenEpisodes: instances raised; their rewards are NaN, the others took their turn.
            PRMError: an action is missing, or given to an episode that has ended; none took a turn.
        """
        episodes = self._episodes
        if len(actions) != len(episodes):
            raise PRMError(
                f"step: expected {plural(len(episodes), 'action')}, found {len(actions)}"
            )
        for index, (episode, action) in enumerate(zip(episodes, actions, strict=True)):
            if (action is None) != episode.ended:
                state = "has ended" if episode.ended else "awaits an action"
                raise PRMError(f"step: episode {index} {state}")
        observations: list[list[Message]] = [[] for _ in episodes]
        rewards = np.zeros(len(episodes))
        errors: dict[int, Exception] = {}
        for index, (episode, action) in enumerate(zip(episodes, actions, strict=True)):
            if action is None:
                continue
            try:
                observations[index], rewards[index] = episode.step(action)
            except Exception as error:
                rewards[index], errors[index] = math.nan, error
                self._drop(index)
        transition = Transition(
            observations,
            rewards,
            np.array([episode.terminated for episode in episodes], dtype=np.bool_),
            np.array([episode.truncated for episode in episodes], dtype=np.bool_),
        )
        if errors:
            raise BrokenEpisodes(transition, errors)
        return transition

    @abstractmethod
    def _begin(self, instance: InstanceT, task: TaskT, max_turns: int, sample: int) -> Episode:
        """An episode of an instance; it may raise anything."""

    def _drop(self, index: int) -> None:
        """Forget an instance."""
        del self._instances[index]

    def _begin_at(self, index: int, task: TaskT, max_turns: int, sample: int) -> Episode:
        if max_turns < 1 or sample < 0:
            raise PRMError(
                f"task {task.id!r}: expected max_turns of 1 or more and a sample of 0 or more, "
                f"found {max_turns} and {sample}"
            )
        if index not in self._instances:
            self._instances[index] = made(self._make)
        try:
            return self._begin(self._instances[index], task, max_turns, sample)
        except Exception as error:
            self._drop(index)
            reason = str(error) if isinstance(error, PRMError) else describe(error)
            raise PRMError(f"task {task.id!r}: reset failed: {reason}") from error


def made(make: Callable[[], InstanceT]) -> InstanceT:
    """An instance, or a :class:`PRMError` that says why there is none."""
    try:
        return make()
    except Exception as error:
        raise PRMError(f"no instance of the environment can be made: {describe(error)}") from error


def finite_reward(value: Any) -> float:
    """A reward as a float; anything but a finite number raises."""
    reward = float(value)
    if not math.isfinite(reward):
        raise PRMError(f"reward: expected a finite number, found {reward}")
    return reward
