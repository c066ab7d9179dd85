"""What an agent knows in desk: the belief, and how a history of messages changes it.

The belief is a sufficient statistic of everything seen so far (``solution.py`` gives the reason
and the probabilities). The tracker keeps it next to the concrete handles and values, so that any
real action can be named in the terms of the solution, sensible or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from prm.data.trace import Message, text_of
from prm.rl.desk import text
from prm.rl.desk.world import DeskConfig


class Belief(NamedTuple):
    """Where the search and the path stand."""

    candidates: tuple[int, ...] | None = None
    """Ranks of the search results that may still be the right record; None before the search,
    () once it is found."""
    levels: tuple[float, ...] = ()
    """P(the link that record i of the path shows is stale), in the order of the path; 0 for one
    that was refreshed. The last of ``hops`` + 1 shows the value asked for."""


class Action(NamedTuple):
    """An action in the terms of the solution."""

    kind: Literal["search", "candidate", "next", "refresh", "answer", "waste", "wrong"]
    """``candidate`` reads the search result of rank ``item``, ``next`` the record that the path
    leads to; ``refresh`` is of record ``item`` of the path. ``waste`` is whatever can teach
    nothing, ``wrong`` an answer that is known to be wrong."""
    item: int = 0


class Tracker:
    """Follows one episode from its messages, as the agent sees them."""

    def __init__(self, prompt: list[Message], config: DeskConfig) -> None:
        self.question = text.read_prompt(prompt)
        self.config = config
        self.belief = Belief()
        self.turns = 0
        """Turns used so far."""
        self.candidates: list[str] = []
        """Handles of the search results, best first."""
        self.records: dict[str, text.Record] = {}
        """Every record read, as last shown."""
        self.path: list[str] = []
        """Handles of the records of the path that were read."""

    @property
    def target(self) -> str | None:
        """What the last record of the path leads to: a handle, or the value asked for."""
        return self._link(len(self.path) - 1) if self.path else None

    @property
    def arrived(self) -> bool:
        """Whether ``target`` is the value asked for."""
        return len(self.path) == len(self.question.path) + 1

    def action(self, message: Message) -> Action:
        """An assistant message in the terms of the solution."""
        call = text.read_call(message)
        if isinstance(call, str):
            return Action("waste")
        if call.tool == "answer":
            right = self.arrived and call.argument == self.target
            return Action("answer" if right else "wrong")
        if call.tool == "search":
            names = (self.question.name, f"{self.question.name}, {self.question.city}")
            fresh = self.belief.candidates is None and call.argument in names
            return Action("search" if fresh else "waste")
        if call.tool == "refresh":
            if call.argument in self.path:
                level = self.path.index(call.argument)
                if self.belief.levels[level] > 0:
                    return Action("refresh", level)
            return Action("waste")
        if self.path and not self.arrived and call.argument == self.target:
            return Action("next")
        for rank in self.belief.candidates or ():
            if self.candidates[rank] == call.argument:
                return Action("candidate", rank)
        return Action("waste")

    def call(self, action: Action) -> text.Call:
        """The call that makes an action other than ``waste`` and ``wrong``."""
        if action.kind == "search":
            return text.Call("search", self.question.name)
        if action.kind == "candidate":
            return text.Call("read", self.candidates[action.item])
        if action.kind == "refresh":
            return text.Call("refresh", self.path[action.item])
        assert self.target is not None, f"{action} is not open in {self.belief}"
        return text.Call("read" if action.kind == "next" else "answer", self.target)

    def update(self, message: Message, observations: Sequence[Message]) -> None:
        """Take in an action and the messages that answered it."""
        action = self.action(message)
        self.turns += 1
        shown = text.read_line(text_of(observations[0].get("content"))) if observations else None
        if isinstance(shown, list):
            if action.kind == "search":
                self.candidates = shown
                self.belief = Belief(tuple(range(len(shown))))
        elif shown is not None:
            self._see(action, shown)

    def _see(self, action: Action, record: text.Record) -> None:
        level = action.item
        before = self._link(level) if action.kind == "refresh" else None
        self.records[record.handle] = record
        candidates, levels = self.belief
        if action.kind == "candidate" and record.city != self.question.city:
            self.belief = Belief(tuple(rank for rank in candidates or () if rank != level))
        elif action.kind in ("candidate", "next"):
            self.path.append(record.handle)
            self.belief = Belief((), (*levels, self.config.stale_prob(record.age)))
        elif action.kind == "refresh":
            # A changed link makes everything read below it worthless.
            below = levels[level + 1 :] if self._link(level) == before else ()
            self.belief = Belief((), (*levels[:level], 0.0, *below))
            self.path = self.path[: len(self.belief.levels)]

    def _link(self, level: int) -> str:
        names = (*self.question.path, self.question.field)
        return self.records[self.path[level]].entries[names[level]]
