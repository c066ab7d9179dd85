"""``prm-trace/1``: the package's own record, one a line.

Unknown keys, which a hand or a later minor version wrote, move to ``meta`` (of the step, if they
stand in a step) and are counted; a newer major version is an error.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prm.data.formats.record import Format, Record
from prm.data.trace import Outcome, Source, Step, Trace, check_schema


def read(record: Record) -> Trace:
    """The trace that the record states, unchanged."""
    check_schema(record.value["schema"])
    value, unknown = _split(record.value, Trace)
    for field, kind in (("outcome", Outcome), ("source", Source)):
        if isinstance(value.get(field), dict):
            value[field], inner = _split(value[field], kind)
            if inner:
                unknown[field] = inner
    value = _to_meta(record, value, unknown, "$")
    if isinstance(value.get("steps"), list):
        value["steps"] = [
            _to_meta(record, *_split(step, Step), f"$.steps[{index}]")
            if isinstance(step, dict)
            else step
            for index, step in enumerate(value["steps"])
        ]
    trace = record.as_type(value, Trace)
    return trace if record.policy is None else msgspec.structs.replace(trace, policy=record.policy)


def _split(
    value: dict[str, Any], kind: type[msgspec.Struct]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys that the record type knows, and those that it does not."""
    known = {key: item for key, item in value.items() if key in kind.__struct_fields__}
    return known, {key: item for key, item in value.items() if key not in known}


def _to_meta(
    record: Record, value: dict[str, Any], unknown: dict[str, Any], path: str
) -> dict[str, Any]:
    meta = value.get("meta", {})
    if not unknown or not isinstance(meta, dict):  # a meta of the wrong type fails when it is typed
        return value
    for key in unknown.keys() & meta.keys():
        raise record.error(f"{path}.{key}", "a known key", "an unknown one that meta also holds")
    record.notes["unknown_key"] += len(unknown)
    return {**value, "meta": {**meta, **unknown}}


FORMAT = Format(
    name="own",
    summary='{"schema": "prm-trace/1", …}',
    matches=lambda value: (
        isinstance(value, dict) and str(value.get("schema")).startswith("prm-trace")
    ),
    read=read,
)
