"""Curves of learning, from what trainers log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prm.errors import PRMError
from prm.study.layout import LOG
from prm.study.learning import learning


def log(folder: Path, success: Callable[[int], dict[int, tuple[float, float]]], n: int) -> Path:
    """A log of n updates; T -> (success, rollouts) of each."""
    folder.mkdir()
    lines = []
    for update in range(n):
        entry = {"entropy": 0.5, "prm/steps": 7.0, "prm/score": None, "prm/process_share": None}
        for t, (rate, rollouts) in success(update).items():
            entry |= {f"prm/success/T={t}": rate, f"prm/rollouts/T={t}": rollouts}
        lines.append(json.dumps(entry) + "\n")
    (folder / LOG).write_text("".join(lines))
    return folder


def test_rollouts_count_the_same_whatever_update_they_are_of(tmp_path: Path) -> None:
    folder = log(tmp_path / "a", lambda i: {8: (1.0, 30) if i % 2 else (0.0, 10)}, 16)
    found = learning([folder], 16)
    assert found.success[8] == pytest.approx([0.75] * 8)
    assert found.updates == [0.5 + 2 * part for part in range(8)]
    assert np.isnan(found.score).all()


def test_a_budget_that_did_not_come_up_is_unknown(tmp_path: Path) -> None:
    folder = log(tmp_path / "a", lambda i: {6 if i < 8 else 14: (0.5, 8)}, 16)
    found = learning([folder], 16)
    assert found.success[6][:4] == [0.5] * 4
    assert np.isnan(found.success[6][4:]).all()


@pytest.mark.parametrize(("slope", "flat"), [(0.0, True), (0.01, False), (-0.01, True)])
def test_flat_is_what_no_longer_rises(tmp_path: Path, slope: float, flat: bool) -> None:
    folders = [
        log(tmp_path / name, lambda i: {8: (0.5 + slope * i, 8), 14: (0.5, 8)}, 40) for name in "ab"
    ]
    found = learning(folders, 40)
    assert found.last_rise == pytest.approx(10 * slope / 2)
    assert found.rising != flat
    assert found.as_json()["flat"] == flat


def test_with_few_updates_nothing_is_said(tmp_path: Path) -> None:
    found = learning([log(tmp_path / "a", lambda i: {8: (0.5, 8)}, 2)], 2)
    assert not found.rising
    assert found.as_json()["flat"] is None


@pytest.mark.parametrize("text", ["", "junk\n", "[]\n", "{}\n"])
def test_a_log_that_was_cut_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / LOG).write_text(text)
    with pytest.raises(PRMError, match=rf"{LOG}: expected "):
        learning([tmp_path], 2)
