"""Gymnasium environments of text, as an ``Environment`` of many episodes side by side.

The other direction is ``prm.rl.gymnasium``: there a Gymnasium learner is paid by a step reward
model; here an environment made for such learners is played by chat models. An observation becomes
a message, the text of an assistant message becomes the action.

Needs the extra ``gymnasium`` of this package. Left out: vector environments, episodes stepped in
parallel, and ``info``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from prm.data.trace import Message, text_of
from prm.errors import PRMError
from prm.rl.environment import Reset
from prm.rl.instances import Episode, InstanceEnvironment, finite_reward
from prm.rl.online import text_observation

Env = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class GymnasiumTask:
    """What ``reset`` is given.

    Raises :class:`PRMError` for an empty id or a seed below 0.
    """

    id: str
    seed: int
    options: Mapping[str, Any] | None = None
    """None is not passed on, for environments whose ``reset`` takes a seed alone."""

    def __post_init__(self) -> None:
        if not self.id or self.seed < 0:
            raise PRMError(
                f"task {self.id!r}: expected an id that is not empty and a seed of 0 or more, "
                f"found seed {self.seed}"
            )


def action_text(action: Message) -> str:
    """The text of an assistant message, "" if it has none.

    >>> action_text({"role": "assistant", "content": "go north"})
    'go north'
    """
    return text_of(action.get("content"))


class GymnasiumEnvironment(InstanceEnvironment[GymnasiumTask, Env]):
    """B episodes of a Gymnasium environment.

    Rewards, terminated and truncated are the environment's; an episode whose T turns are used is
    truncated too. An episode in which ``step`` or a reading function raises, or whose reward is
    not finite, breaks; its instance is closed and replaced.

    All samples of a task are begun with the task's seed: Gymnasium has no luck beside it, so they
    differ by what the agent does. With ``sample_seeds`` each sample has a seed of its own, drawn
    from (seed, sample): right where the question is in the options and the seed is luck alone.

    Args:
        make: makes an environment, as ``lambda: gymnasium.make(…)``.
        read_observation: from an observation to the messages that the agent sees.
        read_action: from an assistant message, whatever it says, to the action.
        system: text of a system message before the first observation.
        tools: function schemas that the agent is told, for a ``read_action`` that reads calls.
        sample_seeds: whether the samples of a task differ in their seed.
        reuse: whether an instance begins another episode after its first. Turn it off for an
            environment whose ``reset`` does not forget the episode before.

    Raises:
        PRMError: at ``reset``, an environment that cannot be made or reset, or an observation that
            does not read.
    """

    def __init__(
        self,
        make: Callable[[], Env],
        *,
        read_observation: Callable[[Any], list[Message]] = text_observation,
        read_action: Callable[[Message], Any] = action_text,
        system: str | None = None,
        tools: list[dict[str, Any]] | None = None,
        sample_seeds: bool = False,
        reuse: bool = True,
    ) -> None:
        super().__init__(make, tools or [])
        self._read_observation, self._read_action = read_observation, read_action
        self._system: list[Message] = (
            [] if system is None else [{"role": "system", "content": system}]
        )
        self._sample_seeds, self._reuse = sample_seeds, reuse

    def reset(
        self, tasks: Sequence[GymnasiumTask], max_turns: Sequence[int], samples: Sequence[int]
    ) -> Reset:
        """Begin B episodes; see :class:`InstanceEnvironment`."""
        if not self._reuse:
            self.close()
        return super().reset(tasks, max_turns, samples)

    def close(self) -> None:
        """Close all instances; the next ``reset`` makes new ones."""
        self._episodes = []
        for index in list(self._instances):
            self._instances.pop(index).close()

    def _drop(self, index: int) -> None:
        # It broke already, and that is what is reported.
        with contextlib.suppress(Exception):
            self._instances[index].close()
        super()._drop(index)

    def _begin(self, instance: Env, task: GymnasiumTask, max_turns: int, sample: int) -> Episode:
        seed = task.seed
        if self._sample_seeds:
            seed = int(np.random.SeedSequence([task.seed, sample]).generate_state(1)[0])
        options = {} if task.options is None else {"options": dict(task.options)}
        observation, _ = instance.reset(seed=seed, **options)
        prompt = [*self._system, *self._read_observation(observation)]
        return _GymnasiumEpisode(
            prompt, max_turns, instance, self._read_observation, self._read_action
        )


class _GymnasiumEpisode(Episode):
    def __init__(
        self,
        prompt: list[Message],
        max_turns: int,
        instance: Env,
        read_observation: Callable[[Any], list[Message]],
        read_action: Callable[[Message], Any],
    ) -> None:
        super().__init__(prompt, max_turns)
        self._instance = instance
        self._read_observation, self._read_action = read_observation, read_action

    def act(self, action: Message) -> tuple[list[Message], float]:
        observation, reward, terminated, truncated, _ = self._instance.step(
            self._read_action(action)
        )
        messages, paid = self._read_observation(observation), finite_reward(reward)
        self.terminated, self.cut = bool(terminated), bool(truncated)
        return messages, paid
