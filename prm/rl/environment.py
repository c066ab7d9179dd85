"""What a text environment is to the rest of ``prm.rl``: many episodes, stepped together.

``prm.rl.desk.environment.Desk`` is one; ``prm.rl.tool_environment`` and
``prm.rl.gymnasium_environment`` adapt classes whose methods are tools, as TRL takes them, and
Gymnasium's environments of text. An episode is given a task, a budget of turns and a sample
number: sample k of a task has the same question as sample 0 and a luck of its own. Every assistant
message is one turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from prm.data.trace import Message


class Reset(NamedTuple):
    """What the agents see first."""

    messages: list[list[Message]]
    """The prompt of each episode: (B,) lists."""
    tools: list[dict[str, Any]]


class Transition(NamedTuple):
    """What one turn of B episodes brought."""

    observations: list[list[Message]]
    """The messages that answer each action; [] for an episode that had ended before."""
    rewards: NDArray[np.float64]
    """(B,) what the turn was paid; the outcome of an episode is their sum."""
    terminated: NDArray[np.bool_]
    """(B,) the episode has ended by an answer."""
    truncated: NDArray[np.bool_]
    """(B,) the episode has run out of turns."""


class Named(Protocol):
    """A task: anything with an id."""

    @property
    def id(self) -> str:
        """Unique among tasks, not empty."""
        ...


TaskT_contra = TypeVar("TaskT_contra", bound=Named, contravariant=True)


class Environment(Protocol[TaskT_contra]):
    """B episodes of text, stepped together.

    Nothing that an agent says raises: a malformed call is answered by a message and costs its turn.
    """

    def reset(
        self, tasks: Sequence[TaskT_contra], max_turns: Sequence[int], samples: Sequence[int]
    ) -> Reset:
        """Begin B episodes: one task, one budget T >= 1 and one sample number for each."""
        ...

    def step(self, actions: Sequence[Message | None]) -> Transition:
        """One turn: an assistant message for each episode that is going on, None for the others.

        An episode ends when it has terminated, when its T turns are used (truncated), or when it
        breaks.

        Raises:
            BrokenEpisodes: some episodes broke; the others have taken their turn.
            Exception: any other one means that all episodes broke.
        """
        ...


class BrokenEpisodes(Exception):
    """Some episodes of an environment broke down; it is no fault of the agents.

    >>> print(BrokenEpisodes(None, {3: OSError("disk full")}))
    episode 3: OSError: disk full
    """

    def __init__(self, transition: Transition, errors: Mapping[int, Exception]) -> None:
        self.transition = transition
        """What the turn brought to the episodes that did not break."""
        self.errors = dict(errors)
        """By index of the episode, what broke it. From now on it takes None as its action."""
        super().__init__(
            "; ".join(f"episode {i}: {describe(error)}" for i, error in self.errors.items())
        )


def describe(error: Exception) -> str:
    """An exception in one line.

    >>> describe(KeyError("r17"))
    "KeyError: 'r17'"
    """
    return f"{type(error).__name__}: {error}"
