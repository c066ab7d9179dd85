"""Scripted agents of mixed quality: who writes the traces, and whom the optimum is compared with.

An agent sees what a :class:`Tracker` has read from its messages and decides on a move; how the
move is worded is another's business (``voice.py``), so that style says nothing about quality.
Scripted agents know T even where the observations hide it. Left out: anything learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from prm.rl.desk.belief import Tracker
from prm.rl.desk.solution import solve
from prm.rl.desk.text import Call
from prm.rl.desk.world import FIELDS, RELATIONS, budgets

Fault = Literal["cut_json", "unknown_tool", "wrong_argument", "no_call", "two_calls"]
FAULTS: tuple[Fault, ...] = ("cut_json", "unknown_tool", "wrong_argument", "no_call", "two_calls")
Slip = Literal["repeat", "stray", "early", "malformed"]


class Move(NamedTuple):
    """A call, and what goes wrong in writing it."""

    call: Call
    fault: Fault | None = None


class Agent(Protocol):
    """Decides on the next move."""

    def __call__(self, tracker: Tracker, max_turns: int, rng: np.random.Generator) -> Move: ...


@dataclass(frozen=True)
class Planner:
    """The exact optimum, for the budget it has or for the largest of the grid."""

    budget: Literal["own", "largest"]

    def __call__(self, tracker: Tracker, max_turns: int, rng: np.random.Generator) -> Move:
        """Take the first optimal action."""
        hops = len(tracker.question.path)
        planned = max_turns
        if self.budget == "largest":
            planned = max(planned, budgets(tracker.config, hops)[-1])
        solution = solve(tracker.config, hops)
        return Move(tracker.call(solution.choice(tracker.belief, planned - tracker.turns)))


@dataclass(frozen=True)
class Clerk:
    """Walks the path record by record with a fixed habit of checking, blind to the budget."""

    refresh_above: float
    """Refreshes a record, as soon as it is read, whose P(stale | age) is above this."""
    reads_city: bool = True
    """Whether it notices a look-alike; if not, it takes the first search result."""

    def __call__(self, tracker: Tracker, max_turns: int, rng: np.random.Generator) -> Move:
        """Find the first record of the walk that is unread or unchecked, or answer."""
        if not tracker.candidates:
            return Move(Call("search", tracker.question.name))
        at = self._start(tracker)
        for link in (*tracker.question.path, tracker.question.field):
            record = tracker.records.get(at)
            if record is None:
                return Move(Call("read", at))
            if tracker.config.stale_prob(record.age) > self.refresh_above:
                return Move(Call("refresh", at))
            at = record.entries[link]
        return Move(Call("answer", at))

    def _start(self, tracker: Tracker) -> str:
        if self.reads_city:
            for handle in tracker.candidates:
                record = tracker.records.get(handle)
                if record is None or record.city == tracker.question.city:
                    return handle
        return tracker.candidates[0]


@dataclass(frozen=True)
class Slipping:
    """Another agent that slips at each turn with probability ``prob``, in one of some ways."""

    agent: Agent
    prob: float
    slips: tuple[Slip, ...]

    def __call__(self, tracker: Tracker, max_turns: int, rng: np.random.Generator) -> Move:
        """The other agent's move, or a slip; a slip with nothing to slip on is that move too."""
        move = self.agent(tracker, max_turns, rng)
        if rng.random() >= self.prob:
            return move
        slip = self.slips[rng.integers(len(self.slips))]
        if slip == "malformed":
            return Move(move.call, FAULTS[rng.integers(len(FAULTS))])
        records = list(tracker.records.values())
        if not records:
            return move
        record = records[rng.integers(len(records))]
        if slip == "repeat":
            return Move(Call("read", record.handle))
        names = RELATIONS if slip == "stray" else FIELDS
        tool = "read" if slip == "stray" else "answer"
        return Move(Call(tool, record.entries[names[rng.integers(len(names))]]))


def random_agent(tracker: Tracker, max_turns: int, rng: np.random.Generator) -> Move:
    """Any call that the environment accepts, each as likely: reads, refreshes, answers seen."""
    records = tracker.records.values()
    handles = {*tracker.candidates, *(r.entries[name] for r in records for name in RELATIONS)}
    values = {record.entries[name] for record in records for name in FIELDS}
    calls = [
        Call("search", tracker.question.name),
        *(Call("read", handle) for handle in sorted(handles)),
        *(Call("refresh", record.handle) for record in records),
        *(Call("answer", value) for value in sorted(values)),
    ]
    return Move(calls[rng.integers(len(calls))])


AGENTS: Mapping[str, Agent] = {
    "optimal": Planner("own"),
    "optimal-slips": Slipping(Planner("own"), 0.2, ("repeat", "stray", "early", "malformed")),
    "generous": Planner("largest"),
    "careful": Clerk(refresh_above=0.0),
    "hint-reader": Clerk(refresh_above=0.3),
    "hasty": Clerk(refresh_above=1.0),
    "sloppy": Clerk(refresh_above=1.0, reads_city=False),
    "repeater": Slipping(Clerk(refresh_above=0.3), 0.3, ("repeat",)),
    "wanderer": Slipping(Clerk(refresh_above=0.0), 0.25, ("stray",)),
    "premature": Slipping(Clerk(refresh_above=0.3), 0.15, ("early",)),
    "fumbler": Slipping(Clerk(refresh_above=0.0), 0.25, ("malformed",)),
    "random": random_agent,
}
"""Who acts in the corpora, by the name that ``Trace.policy`` carries."""
