"""tau-bench (2406.12045) results: customer support with tools and a simulated customer.

A record is {task_id, reward, info, traj: OpenAI chat messages, trial}. Success is a reward of at
least 1 - 1e-6, as tau-bench's own metric counts it. An empty ``traj`` or an ``info.error`` is an
infrastructure failure that the source reports as reward 0: the trace is kept with ``valid`` false
and neither reward nor success (``meta`` keeps the source's reward). The turn limit is not in the
file; a run whose ``info.reward_info`` is null was stopped by it before it could be graded.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prm.data.formats.chat import agent_steps
from prm.data.formats.record import Format, Record, has_keys
from prm.data.trace import Outcome, Status, Trace


class _Episode(msgspec.Struct):
    task_id: int | str
    traj: list[dict[str, Any]]
    reward: float | None = None
    trial: int | str | None = None
    info: dict[str, Any] = {}


def read(record: Record) -> Trace:
    """The trace of one trial of one task."""
    return read_episode(record, "tau_bench")


def read_episode(record: Record, format_name: str) -> Trace:
    """A tau-bench episode; AgentRx publishes its annotated traces in the same shape."""
    episode = record.as_type(record.value, _Episode)
    valid = bool(episode.traj) and "error" not in episode.info and episode.reward is not None
    meta = record.rest("task_id", "traj")
    if valid:
        meta.pop("reward")
    return Trace(
        id=record.path_id(episode.task_id, episode.trial),
        task_id=str(episode.task_id),
        policy=record.default_policy,
        messages=episode.traj,
        steps=agent_steps(episode.traj, record.notes),
        outcome=Outcome(
            reward=episode.reward if valid else None,
            success=episode.reward >= 1 - 1e-6 if valid and episode.reward is not None else None,
            valid=valid,
            status=_status(episode) if valid else "environment_error",
        ),
        source=record.source(format_name),
        meta=meta,
    )


def _status(episode: _Episode) -> Status:
    if episode.info.get("reward_info", {}) is None:
        return "out_of_turns"
    last = episode.traj[-1]
    stopped = last.get("role") == "user" and "###STOP###" in str(last.get("content"))
    handed_over = last.get("name") == "transfer_to_human_agents"
    return "completed" if stopped or handed_over else "unknown"


FORMAT = Format(
    name="tau_bench",
    summary="{task_id, reward, info, traj, trial}",
    matches=has_keys("task_id", "reward", "traj"),
    read=read,
)
