"""Traces of what TRL's own loop generated, from the messages that its reward functions get.

Left out: rollouts of ``EnvironmentRollouts``, which are traces already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prm.data.formats.record import content_id
from prm.data.trace import Message, Outcome, Source, Step, Trace, tool_calls
from prm.errors import PRMError


def trace_of(
    prompt: str | Sequence[Message],
    completion: str | Sequence[Message],
    *,
    id: str,
    tools: list[dict[str, Any]] | None = None,
    cut: bool = False,
) -> Trace:
    """The trace of a completion; every assistant message of it is a step.

    Args:
        prompt: text, or the messages of a conversation.
        completion: text, or all messages that followed, results of tools among them.
        id: of the trace.
        tools: function schemas that the agent was told.
        cut: whether the completion ran out of tokens.

    Raises:
        PRMError: the completion has no assistant message.

    >>> said = [{"role": "assistant", "content": "4"}]
    >>> trace = trace_of([{"role": "user", "content": "2 + 2?"}], said, id="0")
    >>> trace.n_steps, trace.outcome.status
    (1, 'completed')
    """
    before, after = _messages(prompt, "user"), _messages(completion, "assistant")
    messages = [*before, *after]
    at = [i for i, m in enumerate(after, start=len(before)) if m["role"] == "assistant"]
    if not at:
        raise PRMError(f"completion {id}: expected an assistant message at least, found none")
    ended = not cut and at[-1] == len(messages) - 1 and not tool_calls(messages[-1])
    trace = Trace(
        id=id,
        task_id=content_id(prompt),
        tools=tools,
        messages=messages,
        steps=[Step(at=index) for index in at],
        outcome=Outcome(status="completed" if ended else "out_of_turns"),
        source=Source(format="trl"),
    )
    trace.check()
    return trace


def _messages(said: str | Sequence[Mapping[str, Any]], role: str) -> list[Message]:
    return [{"role": role, "content": said}] if isinstance(said, str) else [dict(m) for m in said]
