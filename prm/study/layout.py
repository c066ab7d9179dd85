"""The folder of a study, and who is in it.

    FOLDER/study.json     the config, with which a resumed study must agree
    FOLDER/base/          the base policy; base-turns-hidden/, one that is not told the turns left
    FOLDER/scorer/        the step reward model, if an arm needs one
    FOLDER/arms/NAME-sN/  one for each arm and seed, there when it is done; NAME as a file name
    FOLDER/measured/      NAME-sN.json: what the report reads of it
    FOLDER/failed.json    arms that failed, and why
    FOLDER/report/        report.html, report.json and figures

Each is there whole or not at all: a study that was killed goes on with what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from filelock import FileLock, Timeout

from prm.data.atomic import atomic_output
from prm.errors import PRMError
from prm.study.config import BASE, BASE_HIDDEN, SCRIPTED, Arm, StudyConfig, file_name

RUNS, POLICY, ARM, LOG = "rollouts.jsonl.zst", "policy", "arm.json", "log.jsonl"
"""In the folder of an arm: the runs of its evaluation, its weights, how long training took, and
what the trainer logged."""
TRAINING = "training.jsonl.zst"
"""There too: traces of some updates."""


class Job(NamedTuple):
    """A policy to be run: an arm with a seed, or without an arm one of ``RESERVED``."""

    policy: str
    arm: Arm | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """Of the folder."""
        return file_name(self.policy) + ("" if self.arm is None else f"-s{self.seed}")

    @property
    def turns_shown(self) -> bool:
        """Whether the agent is told how many turns are left."""
        return self.policy != BASE_HIDDEN if self.arm is None else self.arm.turns_shown


class Parts(NamedTuple):
    """What the arms of a study share."""

    shown: Path
    """The base policy that is told how many turns are left."""
    hidden: Path | None
    """The one that is not; None where no arm needs it."""
    scorer: Path | None
    """The step reward model; None where no arm needs it."""

    def base(self, turns_shown: bool) -> Path:
        """The policy that an arm starts from."""
        path = self.shown if turns_shown else self.hidden
        assert path is not None
        return path

    def needed_by(self, job: Job) -> list[Path]:
        """The parts that a job needs."""
        if job.policy in SCRIPTED:
            return []
        base = self.base(job.turns_shown)
        asked = job.arm is not None and asks_model(job.arm)
        return [base, self.scorer] if asked and self.scorer is not None else [base]


def asks_model(arm: Arm) -> bool:
    """Whether the step reward model scores in this arm."""
    return arm.shaping_config().mode != "terminal" and arm.scores != "oracle"


def jobs_of(config: StudyConfig) -> list[Job]:
    """The policies that are known or given, then all arms with the first seed, and so on."""
    bases = [BASE if shown else BASE_HIDDEN for shown in config.kinds_of_base]
    return [
        *(Job(name) for name in (*SCRIPTED, *bases)),
        *(Job(arm.name, arm, seed) for seed in config.seeds for arm in config.arms),
    ]


def parts_of(config: StudyConfig, folder: Path) -> Parts:
    """Where the parts are, or will be."""
    base, scorer = config.base, config.scorer
    hidden = None
    if False in config.kinds_of_base:
        hidden = _given(base.hidden_folder, folder / file_name(BASE_HIDDEN))
    asked = any(map(asks_model, config.arms))
    return Parts(
        _given(base.folder, folder / BASE),
        hidden,
        _given(scorer.folder, folder / "scorer") if asked else None,
    )


def _given(path: str | None, own: Path) -> Path:
    return own if path is None else Path(path)


def place_of(folder: Path, job: Job) -> Path:
    """The folder of one policy and seed."""
    return folder / "arms" / job.name


def measured_file(folder: Path, job: Job) -> Path:
    """The :class:`prm.study.measure.Findings` of one policy and seed; the last that is written."""
    return folder / "measured" / f"{job.name}.json"


def is_done(folder: Path, job: Job) -> bool:
    """Whether nothing is left to do for a policy and seed."""
    return place_of(folder, job).exists() and measured_file(folder, job).exists()


def seconds_of(config: StudyConfig, folder: Path) -> dict[str, float]:
    """Of training, for each arm and seed that is there."""
    found = {}
    for job in jobs_of(config):
        path = place_of(folder, job) / ARM
        if path.exists():
            try:
                found[job.name] = float(json.loads(path.read_text())["seconds"])
            except (ValueError, TypeError, KeyError) as error:
                raise PRMError(f"{path}: expected the seconds of training: {error!r}") from error
    return found


def begin(config: StudyConfig, folder: Path) -> None:
    """Make the folder of a study, or see that it is this study's.

    Raises :class:`PRMError` for the folder of something else, or of a study with another config,
    of which it names the first field that differs.
    """
    mine = json.loads(msgspec.json.encode(config))
    path = folder / "study.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise PRMError(f"{folder}: expected a new or empty folder, or that of a study")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, mine)
        return
    try:
        theirs = json.loads(path.read_text())
    except ValueError as error:
        raise PRMError(
            f"{path}: expected the config of a study: {error}; give a new folder"
        ) from error
    if (differs := _first_difference(mine, theirs)) is not None:
        field, there, here = differs
        raise PRMError(
            f"{folder}: it holds a study with {field} {there!s:.60}, and this one has "
            f"{here!s:.60}; give a new folder"
        )


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep others from running a study in ``folder`` at the same time.

    Raises :class:`PRMError` where another does.
    """
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise PRMError(f"{folder}: another process runs this study; wait for its end") from None
    try:
        yield
    finally:
        lock.release()


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A whole file or none."""
    with atomic_output(path) as file:
        file.write((json.dumps(value, indent=1) + "\n").encode())


def _first_difference(mine: Any, theirs: Any, field: str = "") -> tuple[str, Any, Any] | None:
    """The field, what is there and what is here; None where all is the same.

    >>> _first_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]})
    ('a[1].b', 3, 2)
    """
    if mine == theirs:
        return None
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(mine, dict) and isinstance(theirs, dict):
        dot = "." if field else ""
        pairs = [
            (f"{field}{dot}{name}", mine.get(name), theirs.get(name))
            for name in sorted({*mine, *theirs})
        ]
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        pairs = [(f"{field}[{i}]", *both) for i, both in enumerate(zip(mine, theirs, strict=True))]
    for name, here, there in pairs:
        if (found := _first_difference(here, there, name)) is not None:
            return found
    return field or "the config", theirs, mine
