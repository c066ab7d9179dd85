"""Splits by task, never by row: the samples of one task stay together.

A task's side is a hash of (seed, task_id), so it never depends on which other tasks are in the
file: adding traces moves none, and files split apart agree. The price is that the sides' sizes are
binomial around their fractions instead of exact.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from prm.data.convert import counted, report
from prm.data.diagnostics import Diagnostics
from prm.data.files import read_traces, write_traces
from prm.data.trace import Trace
from prm.errors import PRMError

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
    shares = list(fractions.values())
    if not shares or min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-9):
        raise PRMError(f"expected fractions that are >= 0 and sum to 1, found {dict(fractions)}")
    at = task_hash(task_id, seed)
    bound = 0.0
    for side, share in fractions.items():
        bound += share
        if at < bound:
            return side
    return next(side for side in reversed(list(fractions)) if fractions[side] > 0)  # rounding


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
    suffix: str = ".jsonl.gz",
) -> None:
    """Split traces by task into files OUT/{side}{suffix}; no task is on two sides.

    The side of a task depends on its id and the seed alone, so files that are split apart agree.

    Args:
        src: Files, folders, globs or saved datasets; - is standard input.
        out: Folder to write to; it is made if it is not there.
        fractions: Shares of the sides, e.g. '{train: 0.8, test: 0.2}'.
        seed: Another seed is another split.
        suffix: .jsonl, .jsonl.gz, .jsonl.zst or .parquet.
    """
    folder = Path(out)
    targets = {side: folder / f"{side}{suffix}" for side in fractions}
    taken = [path for path in targets.values() if path.exists()]
    if taken:
        raise PRMError(f"{taken[0]}: is there already, and a split never overwrites one")
    diagnostics, totals = Diagnostics(), Counter[str]()
    traces = counted(
        read_traces(src, unique_ids=True, diagnostics=diagnostics), totals, diagnostics
    )
    sides = split_by_task(traces, fractions, seed)
    folder.mkdir(parents=True, exist_ok=True)
    for side, path in targets.items():
        write_traces(sides[side], path)
    report(totals, diagnostics)
