"""Running a study: base policy, step reward model, arms in parallel processes, and resuming.

    FOLDER/study.json     the config, with which a resumed study must agree
    FOLDER/base/          the base policy
    FOLDER/scorer/        the step reward model, if an arm needs one
    FOLDER/arms/NAME-sN/  one for each arm and seed, there when it is done; NAME as a file name
    FOLDER/failed.json    arms that failed, and why

A part is there or not: a study that was killed goes on with what is missing. An arm that fails does
not stop the others.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from prm.data.atomic import atomic_output
from prm.errors import PRMError
from prm.study.config import BASE, RUNS, Arm, StudyConfig, file_name


class Job(NamedTuple):
    """An arm with a seed; no arm = the base policy."""

    arm: Arm | None
    seed: int

    @property
    def name(self) -> str:
        """Of the folder."""
        if self.arm is None:
            return BASE
        return f"{file_name(self.arm.name)}-s{self.seed}"


def run_study(config: StudyConfig, folder: Path, *, processes: int | None = None) -> dict[str, str]:
    """Do what is missing of a study; the arms that failed, with the reason of each.

    Raises :class:`PRMError` when ``folder`` holds another study, or a base cannot be had.
    """
    begin(config, folder)
    base, scorer = _prepare(config, folder)
    jobs = [job for job in jobs_of(config) if not _place(folder, job).exists()]
    waiting, running = list(reversed(jobs)), dict[BaseProcess, Job]()
    failed: dict[str, str] = {}
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    try:
        while waiting or running:
            while waiting and len(running) < (processes or os.cpu_count() or 1):
                job = waiting.pop()
                places = _place(folder, job), _error_file(folder, job)
                process: BaseProcess = context.Process(
                    target=_run, args=(config, job, base, scorer, *places)
                )
                process.start()
                running[process] = job
            ready = connection.wait([process.sentinel for process in running])
            for process in [one for one in running if one.sentinel in ready]:
                process.join()
                job = running.pop(process)
                if process.exitcode != 0:
                    failed[job.name] = _reason(_error_file(folder, job), process.exitcode)
                done = len(jobs) - len(waiting) - len(running)
                left = (time.monotonic() - began) / done * (len(jobs) - done)
                _tell(job.name, failed.get(job.name), done, len(jobs), left)
    finally:
        for process in running:
            process.terminate()
            process.join()
    _write_json(folder / "failed.json", failed)
    return failed


def jobs_of(config: StudyConfig) -> list[Job]:
    """The base policy, then all arms with the first seed, and so on."""
    return [Job(None, 0), *(Job(arm, seed) for seed in config.seeds for arm in config.arms)]


def runs_of(config: StudyConfig, folder: Path) -> list[Path]:
    """The files of the runs that are there."""
    paths = [_place(folder, job) / RUNS for job in jobs_of(config)]
    return [path for path in paths if path.exists()]


def begin(config: StudyConfig, folder: Path) -> None:
    """Make the folder of a study, or see that it is this study's."""
    mine = json.loads(msgspec.json.encode(config))
    path = folder / "study.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise PRMError(f"{folder}: expected a new or empty folder, or that of a study")
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(path, mine)
        return
    try:
        theirs = dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise PRMError(f"{path}: expected the config of a study: {error}; remove it") from error
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            raise PRMError(
                f"{folder}: it holds a study with another {name!r}: {theirs.get(name)!s:.80}; "
                f"this one has {mine.get(name)!s:.80}; give a new folder"
            )


def _prepare(config: StudyConfig, folder: Path) -> tuple[Path, Path | None]:
    """The base policy and, where an arm needs it, the step reward model."""
    from prm.study.parts import teach_base, train_scorer

    base = Path(config.base.folder) if config.base.folder else folder / "base"
    if not base.exists():
        _say("the base policy is taught")
        teach_base(config, base)
    needed = any(
        arm.shaping_config().mode != "terminal" and arm.scores != "oracle" for arm in config.arms
    )
    if not needed:
        return base, None
    scorer = Path(config.scorer.folder) if config.scorer.folder else folder / "scorer"
    if not scorer.exists():
        _say("the step reward model is trained")
        train_scorer(config, scorer)
    return base, scorer


def _run(
    config: StudyConfig, job: Job, base: Path, scorer: Path | None, place: Path, reason: Path
) -> None:
    """One job, in a process of its own; why it failed goes to the file ``reason``."""
    # Ctrl-C reaches all processes of a terminal; the study itself ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing half done stays
    import torch
    from transformers.utils import logging

    from prm.study.arm import evaluate_base, train_arm

    # Several speak at once, so that only the study's own lines can be followed.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    try:
        if job.arm is None:
            evaluate_base(config, base, place)
        else:
            train_arm(config, job.arm, job.seed, base, scorer, place)
    except Exception as error:
        kind = "" if isinstance(error, PRMError) else f"{type(error).__name__}: "
        reason.write_text(kind + " ".join(str(error).split()))
        sys.exit(1)


def _reason(path: Path, exit_code: int | None) -> str:
    """Why a job failed; a process that was killed could not say."""
    if not path.exists():
        return f"its process ended with status {exit_code}"
    reason = path.read_text()
    path.unlink()
    return reason


def _place(folder: Path, job: Job) -> Path:
    return folder / "arms" / job.name


def _error_file(folder: Path, job: Job) -> Path:
    return folder / f"{job.name}.error"


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with atomic_output(path) as file:
        file.write((json.dumps(value, indent=1) + "\n").encode())


def _tell(name: str, error: str | None, done: int, total: int, seconds_left: float) -> None:
    how = "done" if error is None else f"failed: {error}"
    minutes = f", about {seconds_left / 60:.0f} min left" if done < total else ""
    _say(f"{done} of {total}: {name} {how}{minutes}")


def _say(text: str) -> None:
    print(f"study: {text}", file=sys.stderr, flush=True)
