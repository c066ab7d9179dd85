"""The desk environment: many episodes at once, each with a luck of its own.

Every assistant message costs a turn. ``search`` and ``read`` may show out-of-date links with no
sign but the record's age; ``refresh`` shows the truth of a record that was read before; ``answer``
ends the episode. A call that is malformed or impossible costs its turn and says so; nothing that
an agent sends raises. An answer counts only if its value was shown in the episode, so that a
lucky or remembered guess is worth exactly nothing.

Turn u of an episode uses uniforms (u, 0..2) of its own stream: time-out, age, staleness. So an
episode depends on (task, sample, actions) only, whatever else runs beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prm.data.trace import Message
from prm.errors import PRMError
from prm.rl.desk import text
from prm.rl.desk.world import CITIES, FIELDS, MAX_TURNS, RELATIONS, DeskConfig, Task
from prm.rl.environment import Reset, Transition


class Desk:
    """B episodes of desk, stepped together.

    >>> from prm.rl.desk.world import desk_tasks
    >>> desk = Desk()
    >>> prompts, tools = desk.reset(desk_tasks(1, seed=0, split="train"), max_turns=9)
    >>> prompts[0][1]["content"]
    'phone of the owner of the agent of the agent of the agent of Juniper, Turku? left=9'
    >>> desk.step([text.call_message(text.Call("search", "Juniper"))]).observations[0][0]["content"]
    'found r36 r49 left=8'
    """

    def __init__(self, config: DeskConfig | None = None) -> None:
        self.config = config or DeskConfig()
        self._episodes: list[Episode] = []

    def reset(
        self,
        tasks: Sequence[Task],
        max_turns: int | Sequence[int],
        samples: int | Sequence[int] = 0,
    ) -> Reset:
        """Begin B episodes.

        ``max_turns`` T and ``samples`` are one number for all or one for each: sample k of a task
        has the same world as sample 0 and another luck. Raises :class:`PRMError` unless
        1 <= T <= 40.
        """
        limits = [max_turns] * len(tasks) if isinstance(max_turns, int) else list(max_turns)
        numbers = [samples] * len(tasks) if isinstance(samples, int) else list(samples)
        if not len(tasks) == len(limits) == len(numbers):
            raise PRMError(
                f"desk: expected one max_turns and one sample for each of {len(tasks)} tasks, "
                f"found {len(limits)} and {len(numbers)}"
            )
        self._episodes = [
            Episode(task, limit, episode_luck(task, sample, limit), self.config)
            for task, limit, sample in zip(tasks, limits, numbers, strict=True)
        ]
        prompts = [
            text.prompt(task, limit, self.config) for task, limit in zip(tasks, limits, strict=True)
        ]
        return Reset(prompts, text.TOOLS)

    def step(self, actions: Sequence[Message | None]) -> Transition:
        """One turn of every episode that has not ended; None for those that have.

        Raises :class:`PRMError` when an action is missing, or given to an episode that has ended.
        """
        if len(actions) != len(self._episodes):
            raise PRMError(f"desk: expected {len(self._episodes)} actions, found {len(actions)}")
        observations: list[list[Message]] = []
        rewards = np.zeros(len(actions))
        for index, (episode, action) in enumerate(zip(self._episodes, actions, strict=True)):
            if (action is None) != episode.ended:
                state = "has ended" if episode.ended else "awaits an action"
                raise PRMError(f"desk: episode {index} {state}")
            if action is None:
                observations.append([])
                continue
            line, rewards[index] = episode.step(action)
            observations.append(text.observations(action, line))
        return Transition(
            observations,
            rewards,
            np.array([episode.terminated for episode in self._episodes], dtype=np.bool_),
            np.array([episode.truncated for episode in self._episodes], dtype=np.bool_),
        )


def episode_luck(task: Task, sample: int, max_turns: int) -> list[float]:
    """(3 T,) uniforms in [0, 1) of one sample of a task; a smaller T is a prefix of a larger."""
    if sample < 0 or not 1 <= max_turns <= MAX_TURNS:
        raise PRMError(
            f"desk: expected a sample of 0 or more and 1 <= max_turns <= {MAX_TURNS}, "
            f"found sample {sample} and max_turns {max_turns}"
        )
    rng = np.random.default_rng([sample, *task.id.encode()])
    uniforms: list[float] = rng.random(3 * max_turns).tolist()
    return uniforms


@dataclass(slots=True)
class _Place:
    """A record behind a handle."""

    city: str
    level: int | None
    """Its place on the true path; None off the path."""
    shown: text.Record | None = None
    """What reading shows; None before the first read."""
    stale: bool = False


class Episode:
    """One episode with its luck given: (3 T,) uniforms."""

    def __init__(
        self, task: Task, max_turns: int, luck: Sequence[float], config: DeskConfig
    ) -> None:
        self.task, self.config, self.max_turns = task, config, max_turns
        self.turns = 0
        self.terminated = False
        self._luck = luck
        self._handles, self._values = iter(task.handles), iter(task.values[1:])
        self._shown_values: set[str] = set()
        self._places: dict[str, _Place] = {}
        self._candidates: list[str] = []

    @property
    def truncated(self) -> bool:
        """Whether the turns ran out before an answer."""
        return self.turns == self.max_turns and not self.terminated

    @property
    def ended(self) -> bool:
        """Whether the episode takes no more actions."""
        return self.terminated or self.truncated

    def step(self, action: Message) -> tuple[str, float]:
        """The line that answers an action, and its reward."""
        timeout, age, stale = self._luck[3 * self.turns : 3 * self.turns + 3]
        self.turns += 1
        call = text.read_call(action)
        if isinstance(call, text.Call) and call.tool == "answer":
            self.terminated = True
            right = call.argument == self.task.answer and call.argument in self._shown_values
            return text.DONE, float(right)
        line = call if isinstance(call, str) else self._look(call, timeout, age, stale)
        return text.with_turns(line, self.max_turns - self.turns, self.config), 0.0

    def _look(self, call: text.Call, timeout: float, age: float, stale: float) -> str:
        lost = timeout < self.config.timeout_prob
        if call.tool == "search":
            return text.TIMEOUT if lost else text.found_line(self._search(call.argument))
        place = self._places.get(call.argument)
        if place is None:
            return "error: unknown record"
        if call.tool == "refresh" and place.shown is None:
            return "error: read it first"
        if lost:
            return text.TIMEOUT
        if place.shown is None:
            number = int(age * len(self.config.ages))
            place.stale = stale < self.config.stale_probs[number]
            place.shown = self._lay_out(call.argument, place, self.config.ages[number])
        elif call.tool == "refresh":
            if place.stale:
                place.stale = False
                place.shown = self._lay_out(call.argument, place, 0)
            place.shown = place.shown._replace(age=0)
        return text.record_line(place.shown)

    def _search(self, name: str) -> list[str]:
        if name not in (self.task.name, f"{self.task.name}, {self.task.city}"):
            return []
        if not self._candidates:
            self._candidates = [
                self._new_place(0 if rank == self.task.right else None, city)
                for rank, city in enumerate(self.task.cities)
            ]
        return self._candidates

    def _lay_out(self, handle: str, place: _Place, age: int) -> text.Record:
        """The record as it is now shown; a stale one leads off the path in all its entries."""
        level = None if place.stale else place.level
        entries: dict[str, str] = {}
        for relation in RELATIONS:
            onward = None
            if level is not None and self.task.path[level : level + 1] == (relation,):
                onward = level + 1
            entries[relation] = self._new_place(onward)
        for field in FIELDS:
            answers = level == self.task.hops and field == self.task.field
            entries[field] = self.task.answer if answers else next(self._values)
        self._shown_values.update(entries[field] for field in FIELDS)
        return text.Record(handle, place.city, age, entries)

    def _new_place(self, level: int | None, city: str | None = None) -> str:
        handle = next(self._handles)
        self._places[handle] = _Place(city or CITIES[int(handle[1:]) % len(CITIES)], level)
        return handle
