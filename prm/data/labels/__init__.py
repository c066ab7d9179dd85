"""``prm label``: say what is known about the steps of traces, one file for each way to know it.

To add a maker: write ``labels/<name>.py`` and list it in ``METHODS`` and ``Method``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from prm.data.atomic import check_output
from prm.data.convert import counted, report
from prm.data.diagnostics import Diagnostics
from prm.data.files import read_traces, write_traces
from prm.data.labels.executed import label_executed
from prm.data.labels.first_error import label_first_error
from prm.data.labels.maker import LabelOptions, Maker
from prm.data.labels.outcome import label_outcome
from prm.data.sources import expand
from prm.data.trace import Trace
from prm.errors import PRMError

Method = Literal["executed", "outcome", "first_error"]
METHODS: dict[str, Maker] = {
    "executed": label_executed,
    "outcome": label_outcome,
    "first_error": label_first_error,
}


def label(
    src: list[str],
    /,
    *,
    method: Method,
    out: str | None = None,
    name: str | None = None,
    gamma: float = 1.0,
    threshold: float | None = None,
) -> None:
    """Annotate the steps of traces, read from any format.

    executed: the reward after each action, which InterCode records; binary with --threshold.
    outcome: the trace's success, discounted by the steps to go; state labels too.
    first_error: 1 before an annotated first error, 0 at it, unknown after.

    Args:
        src: Files, folders, globs or saved datasets; - is standard input.
        method: How the labels are made.
        out: .jsonl, .jsonl.gz, .jsonl.zst or .parquet; standard output if absent.
        name: What the labels are called; the method's name if absent.
        gamma: Discount for each step to go, in (0, 1]; outcome only.
        threshold: A reward of at least this is a success; executed and outcome only.
    """
    if gamma != 1 and method != "outcome":
        raise PRMError(f"--gamma has no meaning for --method {method}")
    if threshold is not None and method == "first_error":
        raise PRMError("--threshold has no meaning for --method first_error")
    options = LabelOptions(name=name or method, gamma=gamma, threshold=threshold)
    if out is not None:
        check_output(out, expand(src)[0])
    diagnostics, totals = Diagnostics(), Counter[str]()
    traces = counted(read_traces(src, diagnostics=diagnostics), totals, diagnostics)
    write_traces(label_traces(traces, METHODS[method], options, diagnostics), out)
    report(totals, diagnostics)


def label_traces(
    traces: Iterable[Trace], maker: Maker, options: LabelOptions, diagnostics: Diagnostics
) -> Iterator[Trace]:
    """Labelled copies of the traces; what stayed unlabelled is counted in ``diagnostics``."""
    for trace in traces:
        notes: Counter[str] = Counter()
        yield maker(trace, options, notes)
        diagnostics.add(notes, trace.id)
