"""InterCode (2306.14898): SQL and Bash agents, with an executed reward after every action.

One JSON object keyed by task number; a record is {task_id, query, turn_history: {actions,
observations, rewards, valid_action, thoughts?}, summary: {max_reward, turns_taken, turns_max}}. An
action is free text, so it becomes an OpenAI *custom* tool call whose input is exactly that text; a
thought becomes the message's content. Step labels: ``executed``, the source's reward after the
action (in [-1, 1]). Success is ``max_reward == 1``, as InterCode counts it. When the model refused
to act (chat-bison's ``blocked``), the last action has no observation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prm.data.formats.record import Format, Record, has_keys
from prm.data.trace import Message, Outcome, Step, Trace

_HISTORY = ("actions", "observations", "rewards", "valid_action", "thoughts")


class _History(msgspec.Struct):
    actions: list[str]
    observations: list[str]
    rewards: list[float]
    valid_action: list[bool] = []
    thoughts: list[str | None] = []


class _Summary(msgspec.Struct):
    max_reward: float | None
    turns_taken: int
    turns_max: int


class _Run(msgspec.Struct):
    query: str
    turn_history: _History
    summary: _Summary
    task_id: int | str | None = None
    environment: str = "execute"


def read(record: Record) -> Trace:
    """The trace of one run on one task."""
    run = record.as_type(record.value, _Run)
    history = run.turn_history
    _check_lengths(record, history)
    task_id = str(record.place.key if run.task_id is None else run.task_id)
    messages: list[Message] = [{"role": "user", "content": run.query}]
    steps = []
    for turn, action in enumerate(history.actions):
        labels: dict[str, float | None] = {}
        if turn < len(history.rewards):
            labels["executed"] = history.rewards[turn]
        valid = history.valid_action[turn : turn + 1]
        meta = {"valid_action": valid[0]} if valid else {}
        steps.append(Step(at=len(messages), labels=labels, meta=meta))
        call = f"call_{turn}"
        messages.append(
            {
                "role": "assistant",
                "content": history.thoughts[turn] if turn < len(history.thoughts) else None,
                "tool_calls": [
                    {
                        "id": call,
                        "type": "custom",
                        "custom": {"name": run.environment, "input": action},
                    }
                ],
            }
        )
        if turn < len(history.observations):
            observation = history.observations[turn]
            messages.append({"role": "tool", "tool_call_id": call, "content": observation})
    return Trace(
        id=record.path_id(task_id),
        task_id=task_id,
        policy=record.default_policy,
        messages=messages,
        steps=steps,
        outcome=_outcome(run.summary),
        source=record.source("intercode"),
        meta=_meta(record),
    )


def _check_lengths(record: Record, history: _History) -> None:
    """Every list answers the actions one by one; only the last answer may be missing."""
    actions = len(history.actions)
    for name in _HISTORY[1:]:
        length = len(getattr(history, name))
        absent = name in ("valid_action", "thoughts") and length == 0
        if not absent and length not in (actions, actions - 1):
            expected = f"{actions} values (one for each action), or one fewer"
            raise record.error(f"$.turn_history.{name}", expected, str(length))


def _outcome(summary: _Summary) -> Outcome:
    success = None if summary.max_reward is None else summary.max_reward == 1
    in_time = success or summary.turns_taken < summary.turns_max
    return Outcome(
        reward=summary.max_reward,
        success=success,
        status="completed" if in_time else "out_of_turns",
        max_turns=summary.turns_max,
    )


def _meta(record: Record) -> dict[str, Any]:
    meta = record.rest("task_id", "query", "turn_history")
    history = record.value["turn_history"]
    unread = {key: value for key, value in history.items() if key not in _HISTORY}
    return {**meta, "turn_history": unread} if unread else meta


FORMAT = Format(
    name="intercode",
    summary="{query, turn_history: {actions, …}, summary}",
    matches=has_keys("query", "turn_history", "summary"),
    read=read,
)
