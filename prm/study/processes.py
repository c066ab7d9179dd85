"""Work in processes of their own: several at a time, each of which may fail without the others.

A process runs on one thread and is silent but for the reason why it failed. Whoever stops the whole
(Ctrl-C, SIGTERM) stops all of them, and each leaves nothing half done.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from prm.errors import PRMError


class Work(NamedTuple):
    """Something to do, by a function of a module."""

    name: str
    do: Callable[..., None]
    args: tuple[Any, ...]
    needs: tuple[str, ...] = ()
    """Names of other work that must be done before; it fails where one of them does."""
    long: bool = True
    """Whether the time left is estimated from it."""


def in_processes(works: Sequence[Work], folder: Path, processes: int | None) -> dict[str, str]:
    """Do all of it, in the order given as far as needs allow, ``processes`` (the cores, if None) at
    a time.

    Progress goes to stderr. Returns the reasons of those that failed, by name; while it runs they
    are kept as files in ``folder``.
    """
    at_once = processes or os.cpu_count() or 1
    waiting, running = list(works), dict[BaseProcess, tuple[Work, float]]()
    failed: dict[str, str] = {}
    took: list[float] = []
    context = multiprocessing.get_context("spawn")

    def tell(work: Work) -> None:
        done = len(works) - len(waiting) - len(running)
        to_do = sum(float(one.long) for one in waiting)
        to_do += sum(one.long / 2 for one, _ in running.values())
        left = sum(took) / len(took) * to_do / at_once if took and to_do else None
        _tell(work.name, failed.get(work.name), done, len(works), left)

    try:
        while waiting or running:
            open_ = {work.name for work in (*waiting, *(work for work, _ in running.values()))}
            able = [work for work in waiting if open_.isdisjoint(work.needs)]
            for work in able[: at_once - len(running)]:
                waiting.remove(work)
                process: BaseProcess = context.Process(
                    target=_do, args=(work, _reason_file(folder, work))
                )
                process.start()
                running[process] = work, time.monotonic()
            ready = connection.wait([process.sentinel for process in running])
            for process in [one for one in running if one.sentinel in ready]:
                process.join()
                work, began = running.pop(process)
                if work.long:
                    took.append(time.monotonic() - began)
                if process.exitcode != 0:
                    failed[work.name] = _reason(_reason_file(folder, work), process.exitcode)
                tell(work)
            for work in _lost(waiting, failed):
                waiting.remove(work)
                tell(work)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()
    return failed


def _lost(waiting: Sequence[Work], failed: dict[str, str]) -> list[Work]:
    """Work that needs what failed; why goes to ``failed``."""
    lost = []
    for work in waiting:
        missing = [name for name in work.needs if name in failed]
        if missing:
            failed[work.name] = f"it needs {missing[0]}, which failed: {failed[missing[0]]}"
            lost.append(work)
    return lost


def say(text: str) -> None:
    """A line of progress."""
    print(f"study: {text}", file=sys.stderr, flush=True)


def _do(work: Work, reason: Path) -> None:
    # Ctrl-C reaches all processes of a terminal; the study itself ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing half done stays
    # Several speak at once, so that only the study's own lines can be followed.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        work.do(*work.args)
    except Exception as error:
        kind = "" if isinstance(error, PRMError) else f"{type(error).__name__}: "
        reason.write_text(kind + " ".join(str(error).split()))
        sys.exit(1)


def _end_with_parent() -> None:
    """Whoever kills the study itself means all of it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _reason(path: Path, exit_code: int | None) -> str:
    """Why it failed; a process that was killed could not say."""
    if not path.exists():
        return f"its process ended with status {exit_code}"
    reason = path.read_text()
    path.unlink()
    return reason


def _reason_file(folder: Path, work: Work) -> Path:
    return folder / f"{work.name}.error"


def _tell(name: str, error: str | None, done: int, total: int, left: float | None) -> None:
    how = "done" if error is None else f"failed: {error}"
    minutes = "" if left is None else f", about {max(1, round(left / 60))} min left"
    say(f"{done} of {total}: {name} {how}{minutes}")
