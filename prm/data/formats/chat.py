"""What the formats made of chat messages share: which messages are steps, and where an error is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from prm.data.trace import Message, Step

# Marks that published formats put on assistant messages that this run's model did not write:
# SWE-agent demonstrations, ATIF copied context, verifiers' fabricated history, AgentGym's fillers.
GIVEN = {"is_demo": True, "is_copied_context": True, "sampled": False, "loss": False}


def agent_steps(messages: Sequence[Message], notes: Counter[str]) -> list[Step]:
    """One step for each assistant message of the agent, with OpenAI's fine-tuning ``weight``.

    Marked messages (``GIVEN``) and a canned greeting (text of the assistant before the first user
    message) are no steps; they are counted as ``given_message``.
    """
    roles = [message.get("role") for message in messages]
    first_user = roles.index("user") if "user" in roles else 0
    steps = []
    for at, message in enumerate(messages):
        if roles[at] != "assistant":
            continue
        greeting = at < first_user and not message.get("tool_calls")
        if greeting or any(message.get(key) is value for key, value in GIVEN.items()):
            notes["given_message"] += 1
            continue
        weight = message.get("weight")
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        steps.append(Step(at=at, weight=weight if is_number else None))
    return steps


def first_error(steps: Sequence[Step], message: int, reason: Any) -> dict[str, Any]:
    """``Trace.meta["first_error"]``: the message (0-based), its step or None, and why.

    >>> first_error([Step(at=1), Step(at=3)], 3, "wrong table")
    {'message': 3, 'step': 1, 'reason': 'wrong table'}
    """
    step = next((index for index, step in enumerate(steps) if step.at == message), None)
    return {"message": message, "step": step, "reason": reason}
