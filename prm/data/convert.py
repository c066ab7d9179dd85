"""``prm convert``: read traces of any format, write them as trace records."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from prm.data.atomic import check_output
from prm.data.diagnostics import Diagnostics
from prm.data.files import read_traces, write_traces
from prm.data.formats import FormatName
from prm.data.sources import expand
from prm.data.trace import Trace
from prm.errors import PRMError, plural


def convert(
    src: list[str],
    /,
    *,
    out: str | None = None,
    format: FormatName = "auto",
    policy: str | None = None,
    annotations: str | None = None,
    rejects: str | None = None,
) -> None:
    """Read traces of any format and write them as trace records, one a line.

    Counts, and a table of what had to be accepted, go to stderr.

    Args:
        src: Files, folders, globs or saved datasets; - is standard input.
        out: .jsonl, .jsonl.gz, .jsonl.zst or .parquet; standard output if absent.
        format: The format of every file; sniffed from the first record of each if auto.
        policy: Who acted; the source's word, else the name of the file, if absent.
        annotations: The file of annotations that AgentRx publishes beside its traces.
        rejects: Write records that cannot be read to this new file, verbatim, and go on.
    """
    if out is not None:
        check_output(out, expand([*src, *([] if annotations is None else [annotations])])[0])
        if rejects is not None and os.path.realpath(out) == os.path.realpath(rejects):
            raise PRMError(f"{out}: --out and --rejects cannot be the same file")
    diagnostics = Diagnostics()
    traces = read_traces(
        src,
        format=format,
        policy=policy,
        annotations=annotations,
        rejects=rejects,
        diagnostics=diagnostics,
    )
    totals: Counter[str] = Counter()
    write_traces(counted(traces, totals, diagnostics), out)
    report(totals, diagnostics)


def report(totals: Counter[str], diagnostics: Diagnostics) -> None:
    """Print how much was read and what had to be accepted, on stderr."""
    counts = ", ".join(plural(totals[f"{noun}s"], noun) for noun in ("trace", "step", "task"))
    print(f"prm: {counts}, {diagnostics.count('rejected'):,} rejected", file=sys.stderr)
    if diagnostics.tallies:
        print(diagnostics.table(), file=sys.stderr)


def counted(
    traces: Iterable[Trace], totals: Counter[str], diagnostics: Diagnostics
) -> Iterator[Trace]:
    """The same traces, counted into ``totals``; raises :class:`PRMError` when there is none."""
    tasks: set[str] = set()
    for trace in traces:
        tasks.add(trace.task_id)
        totals.update(traces=1, steps=trace.n_steps)
        totals["tasks"] = len(tasks)
        yield trace
    if not totals["traces"]:
        if not diagnostics.count("rejected"):
            raise PRMError("expected at least one trace, found tables without a row")
        reason = diagnostics.tallies["rejected"].example
        raise PRMError(f"no trace could be read, every record was rejected; the first: {reason}")
