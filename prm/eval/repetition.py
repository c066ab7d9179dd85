"""Which steps of a trace only repeat calls that were made before.

A repeated call need not be useless: what timed out may be tried again, and a state may have changed
in between. Left out: calls that say the same in other words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from prm.data.trace import Trace, tool_calls
from prm.eval.steps import Floats


def repeated_steps(trace: Trace) -> Floats:
    """(S,) 1.0 where a step makes calls and all were made before, else 0.0; NaN without a call.

    Two calls are the same when they have the same :func:`call_key`.

    >>> from prm.data.trace import Step
    >>> def say(*arguments: str) -> dict[str, Any]:
    ...     calls = [{"function": {"name": "read", "arguments": each}} for each in arguments]
    ...     return {"role": "assistant", "tool_calls": calls}
    >>> messages = [say('{"a": 1, "b": 2}'), say('{"b":2,"a":1}'), say(), say("{}", "{}")]
    >>> steps = [Step(at=index) for index in range(4)]
    >>> repeated_steps(Trace(id="1", task_id="1", messages=messages, steps=steps))
    array([ 0.,  1., nan,  0.])
    """
    seen: set[tuple[str, ...]] = set()
    repeated = np.full(trace.n_steps, math.nan)
    for window in trace.windows():
        keys = {call_key(call) for call in tool_calls(window.action)}
        if keys:
            repeated[window.index] = keys <= seen
        seen |= keys
    return repeated


def call_key(call: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes a call: kind, name, and canonical arguments (or the input of a custom tool).

    Arguments are compared as JSON values, whatever the order of keys and the white space. What is
    no JSON, such as a call that was cut short, is compared as text. The id of a call is no part.
    """
    if "custom" in call:
        custom = call["custom"]
        return "custom", str(custom.get("name")), _canonical(custom.get("input"))
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return "function", str(function.get("name")), arguments
    return "function", str(function.get("name")), _canonical(arguments)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
