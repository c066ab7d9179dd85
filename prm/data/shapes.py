"""The shapes that readers of messages and tools rely on, checked once for every record.

Only what is looked into is checked: roles, the envelopes of tool calls and of tool schemas, and the
names in them. Contents, arguments and all other keys may hold any JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Problem = tuple[str, str, str]  # JSON path, what was expected, what was found


def message_problems(path: str, message: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the message at a JSON path."""
    if message.get("role") not in ROLES:
        yield f"{path}.role", f"one of {', '.join(ROLES)}", f"{message.get('role')!r:.60}"
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        for index, call in enumerate(calls):
            yield from _call_problems(f"{path}.tool_calls[{index}]", call)
    elif calls is not None:
        yield f"{path}.tool_calls", "a list of objects or null", type(calls).__name__
    yield from _not(dict, path, message, "function_call")
    yield from _not(str, f"{path}.function_call", message.get("function_call") or {}, "name")


def _call_problems(path: str, call: object) -> Iterator[Problem]:
    """A call is a ``function`` with a name and arguments, or a ``custom`` tool with an input."""
    if not isinstance(call, dict):
        yield path, "an object", type(call).__name__
        return
    yield from _not(str, path, call, "type")
    for kind in ("function", "custom"):
        yield from _not(dict, path, call, kind, or_null=kind == "function")
        yield from _not(str, f"{path}.{kind}", call.get(kind) or {}, "name")


def tool_problems(path: str, tool: Mapping[str, Any]) -> Iterator[Problem]:
    """A tool is ``{"function": schema}``, or the bare schema: name, description, parameters."""
    yield from _not(dict, path, tool, "function", or_null=False)
    if "function" in tool:
        path, tool = f"{path}.function", tool["function"]
    yield from _not(str, path, tool, "name")
    yield from _not(dict, path, tool, "parameters")
    parameters = tool.get("parameters") or {}
    yield from _not(dict, f"{path}.parameters", parameters, "properties", or_null=False)


def _not(
    kind: type, path: str, holder: Mapping[str, Any], key: str, *, or_null: bool = True
) -> Iterator[Problem]:
    """The problem that ``holder[key]`` is there and not of this kind."""
    if key in holder and not isinstance(holder[key], (kind, type(None)) if or_null else kind):
        expected = ("an object" if kind is dict else "a string") + (" or null" if or_null else "")
        yield f"{path}.{key}", expected, type(holder[key]).__name__
