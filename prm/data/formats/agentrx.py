"""AgentRx (Microsoft): tau-bench episodes, with the failures of each found by people.

The episodes are tau-bench records with a key ``records``. The annotations are a second file: a list
of {trajectory_id, failures: [{failure_id, step_number, step_reason, …}], root_cause, …}, joined on
trajectory_id == task_id. ``step_number`` counts *all* messages from 1, the system message included,
so it may fall on a user turn (11 of 39 do). ``meta["first_error"]`` is the earliest failure, and
``meta["annotation"]`` the whole annotation, verbatim.
"""

from __future__ import annotations

import msgspec

from prm.data.formats.chat import first_error
from prm.data.formats.record import Format, Record, has_keys
from prm.data.formats.tau_bench import read_episode
from prm.data.trace import Trace


class _Failure(msgspec.Struct):
    step_number: int
    step_reason: str | None = None


class _Annotation(msgspec.Struct):
    failures: list[_Failure]


def read(record: Record) -> Trace:
    """The trace of one episode, with its annotation if there is one."""
    trace = read_episode(record, "agentrx")
    annotation = (record.annotations or {}).get(trace.task_id)
    if annotation is None:
        record.notes["unannotated"] += 1
        return trace
    meta = {**trace.meta, "annotation": annotation}
    failures = record.as_type(annotation, _Annotation).failures
    for index, failure in enumerate(failures):
        if not 1 <= failure.step_number <= len(trace.messages):
            raise record.error(
                f"annotation of {trace.task_id} $.failures[{index}].step_number",
                f"a message number from 1 to {len(trace.messages)}",
                str(failure.step_number),
            )
    if failures:
        first = min(failures, key=lambda failure: failure.step_number)
        meta["first_error"] = first_error(trace.steps, first.step_number - 1, first.step_reason)
    return msgspec.structs.replace(trace, meta=meta)


FORMAT = Format(
    name="agentrx",
    summary="{task_id, reward, info, traj, records}",
    matches=has_keys("task_id", "reward", "traj", "records"),
    read=read,
    takes_annotations=True,
)
