"""Fixtures for every room: tiny traces, and the real logs where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

# Nothing in the suite may reach the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Tiny models are faster on one thread, above all beside other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from prm.data.trace import Message, Outcome, Step, Trace

MakeTrace = Callable[..., Trace]


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of public agent logs; tests that need it are skipped where it is absent."""
    default = Path(__file__).parents[2] / "shared" / "traces"
    folder = Path(os.environ.get("PRM_TRACES", default))
    if not folder.is_dir():
        pytest.skip(f"no real logs at {folder} (set PRM_TRACES to their folder)")
    return folder


@pytest.fixture(scope="session")
def make_trace() -> MakeTrace:
    """A function that builds a small trace of tool calls, each answered."""

    def build(
        n_steps: int = 2,
        *,
        id: str = "agent/task/0",
        task_id: str = "task",
        policy: str | None = "agent",
        labels: Sequence[float | None] | None = None,
        label: str = "executed",
        reward: float | None = None,
        success: bool | None = None,
        **fields: Any,
    ) -> Trace:
        messages: list[Message] = [{"role": "user", "content": "How many are in stock?"}]
        steps = []
        for index in range(n_steps):
            known = {} if labels is None else {label: labels[index]}
            steps.append(Step(at=len(messages), labels=known))
            function = {"name": "look_up", "arguments": f'{{"page": {index}}}'}
            call = {"id": f"call_{index}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"row {index}"})
        # Only a run that failed before it began may have no step.
        fields.setdefault("outcome", Outcome(reward=reward, success=success, valid=n_steps > 0))
        trace = Trace(
            id=id, task_id=task_id, policy=policy, messages=messages, steps=steps, **fields
        )
        trace.check()
        return trace

    return build
