"""How arms learned: success at each T along training, and whether it had stopped rising.

Logs of the trainer in, curves out. A curve is cut into eight parts of training; a part has the
rollouts of all its updates and seeds. Where T is mixed, all T of the grid count the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prm.errors import PRMError
from prm.eval.steps import Floats, Ints
from prm.study.layout import LOG

PARTS = 8
FLAT = 0.02
"""A curve is flat when the last quarter of training is less than this above the quarter before."""
_SUCCESS = re.compile(r"prm/success/T=(\d+)")


class Learning(NamedTuple):
    """One arm, all its seeds."""

    updates: list[float]
    """Mean number of updates made before, in each part."""
    success: dict[int, list[float]]
    """T -> success rate in each part; NaN where no group had this T."""
    score: list[float]
    """Mean score that the mode reads; NaN without scores."""
    steps: list[float]
    """Mean turns used."""
    entropy: list[float]
    """Nats a token."""
    process_share: list[float]
    """Part of the advantages that is the work of the process, in [0, 1]."""
    last_rise: float
    """Success in the last quarter of training minus that in the quarter before, all T alike; NaN
    with fewer than four updates."""

    @property
    def rising(self) -> bool:
        """Whether success was still rising; not where that is not known."""
        return self.last_rise >= FLAT

    def as_json(self) -> dict[str, Any]:
        """Plain values; NaN is None."""
        curves = {
            name: _plain(getattr(self, name))
            for name in ("updates", "score", "steps", "entropy", "process_share")
        }
        success = {str(t): _plain(values) for t, values in self.success.items()}
        return curves | {
            "success": success,
            "last_rise": _plain([self.last_rise])[0],
            "flat": None if np.isnan(self.last_rise) else not self.rising,
        }


def learning(folders: Sequence[Path], updates: int) -> Learning:
    """The curves of one arm, from the folders of its seeds.

    Raises :class:`PRMError` for a log that is not that of so many updates.
    """
    logs = [_log(folder / LOG, updates) for folder in folders]
    n = updates
    parts = min(PARTS, n)
    part = np.arange(n) * parts // n

    def mean(name: str) -> list[float]:
        table = np.array([[_number(entry.get(name)) for entry in log] for log in logs])
        return [_mean(table[:, part == i]) for i in range(parts)]

    budgets = sorted(
        {
            int(m[1])
            for log in logs
            for entry in log
            for key in entry
            if (m := _SUCCESS.fullmatch(key))
        }
    )
    return Learning(
        updates=[float(np.flatnonzero(part == i).mean()) for i in range(parts)],
        success={t: _success(logs, t, part, parts) for t in budgets},
        score=mean("prm/score"),
        steps=mean("prm/steps"),
        entropy=mean("entropy"),
        process_share=mean("prm/process_share"),
        last_rise=_last_rise(logs, budgets),
    )


def _log(path: Path, updates: int) -> list[dict[str, Any]]:
    try:
        log = [dict(json.loads(line)) for line in path.read_text().splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise PRMError(f"{path}: expected what a trainer logged: {error}") from error
    if len(log) != updates:
        raise PRMError(f"{path}: expected a line for each of {updates} updates, found {len(log)}")
    return log


def _success(logs: list[list[dict[str, Any]]], t: int, part: Ints, parts: int) -> list[float]:
    """Success at T in each part, by rollouts."""
    won = np.array(
        [
            [_number(e.get(f"prm/success/T={t}")) * e.get(f"prm/rollouts/T={t}", 0) for e in log]
            for log in logs
        ]
    )
    all_ = np.array([[e.get(f"prm/rollouts/T={t}", 0) for e in log] for log in logs])
    return [
        float(np.nansum(won[:, part == i]) / all_[:, part == i].sum())
        if all_[:, part == i].sum()
        else float("nan")
        for i in range(parts)
    ]


def _last_rise(logs: list[list[dict[str, Any]]], budgets: Sequence[int]) -> float:
    n = len(logs[0])
    quarter = np.arange(n) * 4 // n
    quarters = np.array([_success(logs, t, quarter, 4) for t in budgets])
    return _mean(quarters[:, 3]) - _mean(quarters[:, 2])


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _plain(values: list[float]) -> list[float | None]:
    return [None if np.isnan(value) else round(value, 6) for value in values]
