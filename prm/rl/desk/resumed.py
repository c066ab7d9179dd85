"""Desk episodes that begin at a recorded state, so that several policies can be asked the same.

A state is what was done so far. Its actions are replayed under the luck of the sample they were
recorded in, so the observations are those recorded, and what a stale record hides is as it was.
The messages are written anew: the same state can be shown with the turns left or without.

The turns that follow have a luck of their own, that of another sample of the task from its first
turn on. It depends on the task and the sample numbers only, so two states of one episode that
differ by an action that teaches nothing meet the same luck from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prm.data.trace import Message
from prm.errors import PRMError
from prm.rl.desk import text
from prm.rl.desk.belief import Tracker
from prm.rl.desk.environment import Desk, Episode, episode_luck
from prm.rl.desk.world import DeskConfig, Task
from prm.rl.environment import Reset


@dataclass(frozen=True, kw_only=True)
class State:
    """An episode up to where somebody else takes over."""

    id: str
    """Unique among the states that are resumed together."""
    task: Task
    sample: int
    """Whose luck the actions met."""
    actions: tuple[Message, ...]
    """The assistant messages so far."""
    left: int
    """Turns that remain, one or more."""


class Resumption(NamedTuple):
    """One state, ready to go on."""

    episode: Episode
    messages: list[Message]
    """The prompt, then each action with what answered it."""
    tracker: Tracker
    """What an agent knows by now."""


def resume(state: State, left: int, sample: int, config: DeskConfig) -> Resumption:
    """Replay a state so that ``left`` turns remain, with the luck ``sample`` from there on.

    ``config`` must be that of the recording, but for ``show_turns``. Raises :class:`PRMError` when
    the actions end the episode or a number is out of range.
    """
    done = len(state.actions)
    past = episode_luck(state.task, state.sample, done + left)[: 3 * done]
    future = episode_luck(state.task, state.sample + 1 + sample, max(left, 1))
    episode = Episode(state.task, done + left, past + future, config)
    messages = text.prompt(state.task, done + left, config)
    tracker = Tracker(messages, config)
    for number, action in enumerate(state.actions):
        line, _ = episode.step(action)
        if episode.ended:
            raise PRMError(
                f"state {state.id!r}: expected {done} actions that leave the episode open, found "
                f"that action {number} ends it"
            )
        observations = text.observations(action, line)
        tracker.update(action, observations)
        messages += [action, *observations]
    return Resumption(episode, messages, tracker)


class Resumed(Desk):
    """B recorded states of desk, played on together; what an agent sees first is the whole history.

    >>> from prm.rl.desk.world import desk_tasks
    >>> task = desk_tasks(1, seed=0, split="train")[0]
    >>> search = text.call_message(text.Call("search", "Juniper"))
    >>> state = State(id="one", task=task, sample=0, actions=(search,), left=8)
    >>> Resumed().reset([state], max_turns=[8], samples=[0]).messages[0][-1]["content"]
    'found r36 r49 left=8'
    """

    def reset(  # type: ignore[override]  # what is resumed are states, not tasks
        self, tasks: Sequence[State], max_turns: Sequence[int], samples: Sequence[int]
    ) -> Reset:
        """Begin B episodes at their states.

        ``max_turns`` are the turns that remain, whatever the states say; all ``samples`` of a state
        have its past and a luck of their own. Raises :class:`PRMError` as :func:`resume` does.
        """
        resumed = [
            resume(state, left, sample, self.config)
            for state, left, sample in zip(tasks, max_turns, samples, strict=True)
        ]
        self._episodes = [one.episode for one in resumed]
        return Reset([one.messages for one in resumed], text.TOOLS)
