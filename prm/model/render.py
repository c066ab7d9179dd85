"""The fixed text rendering of a trace, the same for every backbone.

A trace is rendered as segments: the task (tools, then the messages before the first step), and for
each step its action and its observations. Segments are strings; ``prm.model.encoding`` tokenises
each on its own, so a segment's tokens never depend on what follows it. Read-out markers are
segments of their own.

The rendering is part of a checkpoint: a change of any text here is a new ``RENDERER`` number.
Left out on purpose: who acted, labels, scores, outcome and turn limits that the agent did not see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from prm.data.trace import Message, StepWindow, Trace, text_of, tool_calls

RENDERER = 1
ACTION_MARKER = " =>"
STATE_MARKER = " =="
CUT_MARKER = " [...] "

_GIVEN = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}
_REASONING = ("reasoning_content", "reasoning", "thinking")


def render_task(trace: Trace) -> list[str]:
    """Segments of the task: one for the tools (when any are known), one for each prompt message."""
    segments = []
    if trace.tools:
        segments.append("Tools:" + "".join(f"\n{_tool(tool)}" for tool in trace.tools))
    segments += [_given(message) for message in trace.prompt()]
    return segments[:1] + ["\n" + segment for segment in segments[1:]]


def render_action(window: StepWindow) -> str:
    """The action of a step: its number, its reasoning and text, then a line for each tool call.

    >>> call = {"function": {"name": "read", "arguments": '{"record":"r1"}'}}
    >>> message = {"role": "assistant", "content": None, "tool_calls": [call]}
    >>> render_action(StepWindow(0, message, ()))
    '\\n[1] read({"record":"r1"})'
    """
    message = window.action
    parts = [str(message[key]) for key in _REASONING if message.get(key)]
    parts += [text_of(message[key]) for key in ("content", "refusal") if message.get(key)]
    calls = "\n".join(_call(call) for call in tool_calls(message))
    return f"\n[{window.index + 1}] " + " ".join([*parts, *([calls] if calls else [])])


def render_observations(window: StepWindow) -> list[str]:
    """One segment for each message that answers the action, in recorded order."""
    return [
        f"\n-> {text_of(message.get('content'))}"
        if message["role"] in ("tool", "function")
        else "\n" + _given(message)
        for message in window.observations
    ]


def _given(message: Message) -> str:
    role = _GIVEN.get(message["role"], "Result")
    calls = "".join("\n" + _call(call) for call in tool_calls(message))
    return f"{role}: {text_of(message.get('content'))}{calls}"


def _call(call: Mapping[str, Any]) -> str:
    """``name(arguments)``, with the arguments exactly as the agent wrote them."""
    if "custom" in call:
        return f"{call['custom'].get('name', '')}({call['custom'].get('input', '')})"
    function = call.get("function") or {}
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return f"{function.get('name', '')}({arguments})"


def _tool(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    parameters = function.get("parameters") or {}
    names: Sequence[str] = list(parameters.get("properties", {}))
    return f"{function.get('name', '')}({', '.join(names)}): {function.get('description', '')}"
