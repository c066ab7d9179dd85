"""Splits by task, never by row: the samples of one task stay together.

A task's side is a hash of (seed, task_id), so it never depends on which other tasks are in the
file: adding traces moves none, and files split apart agree. The price is that the sides' sizes are
binomial around their fractions instead of exact.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from prm.data.atomic import new_outputs
from prm.data.convert import counted, report
from prm.data.diagnostics import Diagnostics
from prm.data.files import read_traces, write_traces
from prm.data.trace import Trace
from prm.errors import PRMError, plural, printable

TRAIN_VALIDATION_TEST = {"train": 0.8, "validation": 0.1, "test": 0.1}


def task_hash(task_id: str, seed: int = 0) -> float:
    """A number in [0, 1) for a task, as good as random, the same everywhere."""
    digest = hashlib.sha256(f"{seed}\0{task_id}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8]) / 2**64


def hold_out(
    traces: Iterable[Trace], fraction: float, seed: int = 0
) -> tuple[list[Trace], list[Trace]]:
    """(kept, held out): the share ``fraction`` of the tasks, rounded, at least one, held out.

    Exact in size, so it suits few tasks; but adding a task may move another, unlike
    :func:`split_by_task`. Raises :class:`PRMError` for fewer than two tasks.
    """
    traces = list(traces)
    tasks = sorted({trace.task_id for trace in traces}, key=lambda task: task_hash(task, seed))
    if len(tasks) < 2:
        raise PRMError(
            f"expected at least 2 tasks, to hold one out, found {len(tasks)}: traces of one task "
            f"cannot validate each other"
        )
    chosen = set(tasks[: min(len(tasks) - 1, max(1, round(fraction * len(tasks))))])
    kept = [trace for trace in traces if trace.task_id not in chosen]
    return kept, [trace for trace in traces if trace.task_id in chosen]


def task_side(
    task_id: str, fractions: Mapping[str, float] = TRAIN_VALIDATION_TEST, seed: int = 0
) -> str:
    """The side of one task. ``fractions`` are side -> share, each >= 0, together 1.

    >>> task_side("17"), task_side("17", seed=1)
    ('train', 'train')
    """
    _check_fractions(fractions)
    at = task_hash(task_id, seed)
    bound = 0.0
    for side, share in fractions.items():
        bound += share
        if at < bound:
            return side
    return next(side for side in reversed(list(fractions)) if fractions[side] > 0)  # rounding


def _check_fractions(fractions: Mapping[str, float]) -> None:
    shares = list(fractions.values())
    if not shares or min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-9):
        raise PRMError(f"--fractions: expected shares >= 0 that sum to 1, found {dict(fractions)}")


def split_by_task(
    traces: Iterable[Trace],
    fractions: Mapping[str, float] = TRAIN_VALIDATION_TEST,
    seed: int = 0,
) -> dict[str, list[Trace]]:
    """side -> its traces, in order; no task is on two sides."""
    sides: dict[str, list[Trace]] = {side: [] for side in fractions}
    for trace in traces:
        sides[task_side(trace.task_id, fractions, seed)].append(trace)
    return sides


def split(
    src: list[str],
    /,
    *,
    out: str,
    fractions: dict[str, float] = TRAIN_VALIDATION_TEST,
    seed: int = 0,
    suffix: Literal[".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"] = ".jsonl.gz",
) -> None:
    """Split traces by task into new files OUT/{side}{suffix}; no task is on two sides.

    The side of a task depends on its id and the seed alone, so files that are split apart agree.
    Nothing is written when a side would be empty.

    Args:
        src: Files, folders, globs or saved datasets; - is standard input.
        out: Folder to write to; it is made if it is not there.
        fractions: Shares of the sides, e.g. '{train: 0.8, test: 0.2}'.
        seed: Another seed is another split.
        suffix: The kind of the files.
    """
    _check_fractions(fractions)
    for side in fractions:  # YAML makes a number of the name 1
        if not re.fullmatch(r"\w[\w.-]*", str(side)):
            raise PRMError(
                f"--fractions: expected names of files for the sides (letters, digits, _, -, "
                f"inner dots), found {side!r}"
            )
    paths = new_outputs(out, [f"{side}{suffix}" for side in fractions])
    diagnostics, totals = Diagnostics(), Counter[str]()
    traces = counted(read_traces(src, diagnostics=diagnostics), totals, diagnostics)
    sides = split_by_task(traces, fractions, seed)
    for side, members in sides.items():
        if not members:
            tasks = plural(totals["tasks"], "task")
            raise PRMError(
                f"side {side!r} would get no trace (share {fractions[side]:g} of {tasks}); give "
                f"other --fractions or another --seed"
            )
    for members, path in zip(sides.values(), paths, strict=True):
        written = plural(write_traces(members, path), "trace")
        tasks = plural(len({trace.task_id for trace in members}), "task")
        print(f"{printable(str(path))}: {written} of {tasks}", file=sys.stderr)
    report(totals, diagnostics)
