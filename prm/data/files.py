"""Read traces from any format, and write them: the door of ``prm.data``.

Reading streams: bytes to records (``sources``), records to JSON (``json_text``), JSON to traces
(``formats``), each trace checked before it is given out. Writing is atomic and its bytes depend on
the traces alone.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

import zstandard

from prm.data.atomic import atomic_output, check_new_output, check_output
from prm.data.diagnostics import Diagnostics, find_oddities
from prm.data.formats import FORMATS, FormatName, describe, sniff
from prm.data.formats.record import Format, Record
from prm.data.json_text import decode_own, encode_trace
from prm.data.sources import expand, read_raw
from prm.data.splitting import Raw
from prm.data.tables import TABLE, rows, write_parquet
from prm.data.trace import Trace
from prm.errors import PRMError, RecordError

Path = str | os.PathLike[str]
Row = Mapping[str, Any]
OUTPUTS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def read_traces(
    source: Path | Iterable[Path] | Iterable[Row],
    *,
    format: FormatName = "auto",
    policy: str | None = None,
    annotations: Path | None = None,
    rejects: Path | None = None,
    diagnostics: Diagnostics | None = None,
) -> Iterator[Trace]:
    """Stream the traces of files, folders, globs, saved datasets, or the rows of a table.

    Files may be JSON Lines, JSON documents or Parquet, plain, gzip or zstd; ``-`` is standard
    input; a 🤗 ``Dataset`` or any other iterable of mappings is read row by row.

    - ``format`` is that of every file; "auto" sniffs it from the first record of each.
    - ``policy`` overrides who acted.
    - ``annotations`` is the second file that AgentRx publishes.
    - ``rejects`` is a new file for the records that cannot be read, verbatim, while reading goes
      on; it appears when all is read, if there is such a record. Damage to a whole file is an error
      all the same.
    - ``diagnostics`` counts what had to be accepted.

    A trace id that another record had is an error that names both, so that nothing is counted
    twice; the ids of all records are kept in memory.

    Raises :class:`prm.errors.PRMError` at once for unknown paths, and
    :class:`prm.errors.RecordError` at the first bad record, naming file, line and byte.
    """
    if format not in ("auto", *FORMATS):
        known = ", ".join(FORMATS)
        raise PRMError(f"format: expected auto or one of {known}, found {format!r}")
    if policy == "":
        raise PRMError("--policy: expected a name, found an empty one")
    settings = _Settings(
        None if format == "auto" else FORMATS[format],
        policy,
        None if annotations is None else _read_annotations(annotations),
        Diagnostics() if diagnostics is None else diagnostics,
        {},
    )
    paths, table = _sources(source)
    names, skipped = expand(paths)
    for name in skipped:
        settings.diagnostics.add({"skipped_file": 1}, name)
    if rejects is not None:
        check_new_output(rejects)
    files = [read_raw(name) for name in names]
    if table is not None:
        files.append(rows(table, TABLE))
    return _stream(files, settings, rejects)


def write_traces(traces: Iterable[Trace], path: Path | None) -> int:
    """Write traces to ``path`` (``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst``, ``.parquet``); how many.

    None is standard output, as JSON Lines. The file appears complete or not at all, and equal
    traces make equal bytes. Raises :class:`prm.errors.PRMError` when the path cannot be written,
    or a trace breaks a rule of the record or would not read back equal.
    """
    if path is None:
        return _write_lines(traces, sys.stdout.buffer)
    name = os.fspath(path)
    if not name.endswith(OUTPUTS):
        raise PRMError(
            f"{name}: cannot be written, because its suffix is none of {', '.join(OUTPUTS)}"
        )
    check_output(path, [])
    with atomic_output(path) as file:
        if name.endswith(".parquet"):
            return write_parquet(traces, file)
        if name.endswith(".gz"):
            # No file name and no time in the header, so that the bytes depend on the traces alone.
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                return _write_lines(traces, packed)
        if name.endswith(".zst"):
            compressor = zstandard.ZstdCompressor(write_checksum=True)
            with compressor.stream_writer(file, closefd=False) as packed:
                return _write_lines(traces, packed)
        return _write_lines(traces, file)


class _Settings(NamedTuple):
    format: Format | None
    policy: str | None
    annotations: dict[str, dict[str, Any]] | None
    diagnostics: Diagnostics
    places: dict[str, str]
    """Trace id -> where it was read."""


def _sources(
    source: Path | Iterable[Path] | Iterable[Row],
) -> tuple[list[Path], Iterable[Row] | None]:
    """The paths, or else the table, that ``source`` is."""
    if isinstance(source, str | os.PathLike):
        return [source], None
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        found = type(source).__name__
        raise PRMError(f"read_traces: expected paths, or a table (iterable of rows), found {found}")
    items = iter(source)
    first = next(items, None)
    if not isinstance(first, str | os.PathLike):
        return [], None if first is None else chain([first], items)  # type: ignore[arg-type]
    return [first, *map(_path, items)], None


def _path(item: object) -> Path:
    if not isinstance(item, str | os.PathLike):
        found = type(item).__name__
        raise PRMError(f"read_traces: expected paths alone after the first, found {found}")
    return item


def _stream(
    files: list[Iterator[Raw]], settings: _Settings, rejects: Path | None
) -> Iterator[Trace]:
    diagnostics = settings.diagnostics
    unused = dict(settings.annotations or {})
    with ExitStack() as stack:
        rejected: BinaryIO | None = None
        for file in files:
            chosen = settings.format
            for raw in file:
                notes: Counter[str] = Counter()
                try:
                    trace, chosen = _read_one(raw, chosen, settings, notes)
                except RecordError as error:
                    if rejects is None:
                        raise
                    if rejected is None:
                        rejected = stack.enter_context(atomic_output(rejects))
                    rejected.write(raw.raw + b"\n")
                    diagnostics.add({"rejected": 1}, str(error))
                    continue
                unused.pop(trace.task_id, None)
                diagnostics.add(notes + find_oddities(trace), f"{raw.where} {trace.id}")
                yield trace
    for identity in unused:
        diagnostics.add({"unused_annotation": 1}, f"trajectory {identity}")


def _read_one(
    raw: Raw, chosen: Format | None, settings: _Settings, notes: Counter[str]
) -> tuple[Trace, Format]:
    """The trace of one record, and the format that this file is now known to have."""
    own = FORMATS["own"]
    try:
        trace = decode_own(raw.raw) if chosen in (None, own) and settings.policy is None else None
        if trace is not None:
            chosen = own
        else:
            value = raw.parse(notes)
            record = Record(
                place=raw,
                value=value,
                policy=settings.policy,
                annotations=settings.annotations,
                notes=notes,
            )
            chosen = _choose(record, chosen, settings)
            trace = chosen.read(record)
        trace.check()
        if not trace.steps and trace.outcome.valid:
            why = (
                "only a run that is marked invalid may have none, because it failed before it began"
            )
            raise raw.error("$.steps", "at least one step of the agent", "none", why)
        _claim_id(trace, raw, settings.places)
    except RecordError as error:
        if error.uri == raw.name:
            raise
        # The rules of the record do not know where the record was.
        raise raw.error(error.path, error.expected, error.found, error.why) from None
    notes["nested_columns"] += raw.nested
    return trace, chosen


def _claim_id(trace: Trace, raw: Raw, places: dict[str, str]) -> None:
    if trace.id in places:
        found = f"{trace.id!r} again, as in {places[trace.id]}"
        why = "`prm convert --policy` renames the traces of most formats"
        raise raw.error("$.id", f"an id of its own for record {raw.number}", found, why)
    places[trace.id] = f"{raw.where}, record {raw.number}"


def _choose(record: Record, chosen: Format | None, settings: _Settings) -> Format:
    """The format of the record: the one that was named, or else that of the file so far."""
    found = settings.format or sniff(record.value)
    if found is None:
        known = f"a record of a known format ({', '.join(FORMATS)})"
        raise record.error("$", known, describe(record.value))
    wanted = chosen or found
    if found is not wanted or not found.matches(record.value):
        expected = f"a record of the format {wanted.name}, {wanted.summary}"
        raise record.error("$", expected, describe(record.value), "a file has one format")
    if record.annotations is not None and not found.takes_annotations:
        takers = ", ".join(each.name for each in FORMATS.values() if each.takes_annotations)
        raise record.error("$", f"a format with annotations ({takers})", found.name)
    return found


def _read_annotations(path: Path) -> dict[str, dict[str, Any]]:
    """trajectory id -> annotation."""
    annotations: dict[str, dict[str, Any]] = {}
    for name in expand([path])[0]:
        for raw in read_raw(name):
            value = raw.parse(Counter())
            record = Record(place=raw, value=value)
            if not isinstance(value, dict) or not isinstance(value.get("trajectory_id"), int | str):
                raise record.error("$", "an annotation with a trajectory_id", describe(value))
            identity = str(value["trajectory_id"])
            if identity in annotations:
                raise record.error("$.trajectory_id", "one annotation for each", repr(identity))
            annotations[identity] = value
    return annotations


def _write_lines(traces: Iterable[Trace], file: BinaryIO | gzip.GzipFile) -> int:
    count = 0
    for trace in traces:
        file.write(encode_trace(trace) + b"\n")
        count += 1
    return count
