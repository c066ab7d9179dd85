"""How a move is worded: voices that are drawn without regard to who speaks or how well it stands.

A voice colours the text beside the call and the spacing of its JSON. Confidence in the wording is
a feature of the voice alone, so a model that rewards it has learned nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from prm.data.trace import Message
from prm.rl.desk.agents import Fault, Move
from prm.rl.desk.belief import Tracker
from prm.rl.desk.text import call_message

VOICES: Mapping[str, Mapping[str, tuple[str, ...]] | None] = {
    "silent": None,
    "terse": {
        "search": ("search",),
        "read": ("read",),
        "refresh": ("refresh",),
        "answer": ("answer",),
    },
    "plain": {
        "search": ("I search for {}.", "First I look up {}."),
        "read": ("I read {}.", "Next I open {}."),
        "refresh": ("I refresh {}.", "I check {} again."),
        "answer": ("I answer {}.", "The value is {}."),
    },
    "sure": {
        "search": ("Clearly we need {}.", "{} is certainly on file."),
        "read": ("{} must be the right one.", "No doubt it is {}."),
        "refresh": ("Surely {} needs a check.", "Of course I check {}."),
        "answer": ("It is {}, without doubt.", "Certainly {}."),
    },
    "doubtful": {
        "search": ("Perhaps {} is on file.", "I hope to find {}."),
        "read": ("Maybe {} helps.", "I am not sure, but {} may be it."),
        "refresh": ("{} may be out of date.", "I do not quite trust {}."),
        "answer": ("It might be {}.", "Hopefully {} is right."),
    },
    "chatty": {
        "search": ("Good day! Let us see what we have on {} then.",),
        "read": ("So, the next thing to look at, I would say, is {}.",),
        "refresh": ("Let us see, while we are here, what {} says now.",),
        "answer": ("Well then, here is what I have for you: {}.",),
    },
}  # fmt: skip


class Speaker:
    """One voice with its habits, drawn once an episode."""

    def __init__(self, rng: np.random.Generator) -> None:
        names = tuple(VOICES)
        self.voice = names[rng.integers(len(names))]
        self._spaced = bool(rng.integers(2))
        self._rng = rng
        self._said = 0

    def say(self, move: Move) -> Message:
        """The assistant message of a move."""
        templates = VOICES[self.voice]
        content = None
        if templates is not None:
            wordings = templates[move.call.tool]
            content = wordings[self._rng.integers(len(wordings))].format(move.call.argument)
        id = f"call_{self._said}"
        message = call_message(move.call, content, spaced=self._spaced, id=id)
        self._said += 1
        return message if move.fault is None else _spoil(message, move.fault)


def think(tracker: Tracker, move: Move, id: str) -> Message:
    """The assistant message of a move, with a thought: where the walk stands.

    The thought counts the records of the path that were read and names what is followed next, so
    that a small model need not find both anew each turn. It does not depend on the move.
    """
    names = (tracker.question.name, *tracker.question.path, tracker.question.field)
    thought = f"{len(tracker.path)}. {names[len(tracker.path)]}"
    message = call_message(move.call, thought, id=id)
    return message if move.fault is None else _spoil(message, move.fault)


def _spoil(message: Message, fault: Fault) -> Message:
    if fault == "no_call":
        return {"role": "assistant", "content": message["content"] or ""}
    call: dict[str, Any] = message["tool_calls"][0]
    function = dict(call["function"])
    calls = [{**call, "function": function}]
    if fault == "cut_json":
        function["arguments"] = function["arguments"][:-2]
    elif fault == "unknown_tool":
        function["name"] = f"{function['name']}_all"
    elif fault == "wrong_argument":
        function["arguments"] = '{"id":' + function["arguments"].split(":", 1)[1]
    else:
        calls.append({**call, "id": f"{call['id']}b"})
    return {**message, "tool_calls": calls}
