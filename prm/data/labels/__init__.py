"""``prm label``: say what is known about the steps of traces, one file for each way to know it.

To add a maker: write ``labels/<name>.py`` and list it in ``METHODS`` and ``Method``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

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
from prm.errors import PRMError, plural

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
    outcome: the trace's success, discounted by the steps to go; state labels too. With --threshold
    the reward decides, where there is one.
    first_error: 1 before an annotated first error, 0 at it, unknown after.

    Other labels of the same name that are there already are never replaced.

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
    options = LabelOptions(name=method if name is None else name, gamma=gamma, threshold=threshold)
    if out is not None:
        check_output(out, expand(src)[0])
    diagnostics, totals = Diagnostics(), Counter[str]()
    traces = counted(read_traces(src, diagnostics=diagnostics), totals, diagnostics)
    write_traces(label_traces(traces, method, options, diagnostics), out)
    report(totals, diagnostics)


def label_traces(
    traces: Iterable[Trace], method: Method, options: LabelOptions, diagnostics: Diagnostics
) -> Iterator[Trace]:
    """Labelled copies of the traces; what stayed unlabelled is counted in ``diagnostics``.

    Raises :class:`PRMError` for a trace with other labels of the same name, and at the end when no
    trace at all could be labelled.
    """
    n_traces = n_labels = 0
    for trace in traces:
        n_traces += 1
        notes: Counter[str] = Counter()
        labelled = METHODS[method](trace, options, notes)
        _check_kept(trace, labelled, options.name)
        n_labels += int(np.isfinite(labelled.step_labels(options.name)).sum())
        diagnostics.add(notes, trace.id)
        yield labelled
    if not n_labels:
        raise PRMError(
            f"no step could be labelled: what --method {method} needs is unknown in "
            f"{plural(n_traces, 'trace')}"
        )


def _check_kept(before: Trace, after: Trace, name: str) -> None:
    """Raise :class:`PRMError` when a label of ``before`` was replaced by another value."""
    for old, new in (
        (before.step_labels(name), after.step_labels(name)),
        (before.states(name, "labels"), after.states(name, "labels")),
    ):
        if (~np.isnan(old) & (old != new)).any():
            raise PRMError(
                f"trace {before.id!r} has other labels {name!r} already, which would be lost; "
                "choose another --name"
            )
