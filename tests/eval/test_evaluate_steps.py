"""The command ``prm eval steps``, from files to its output."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from prm.cli import main
from prm.data.files import write_traces
from prm.data.trace import Step, Trace

Capture = pytest.CaptureFixture[str]


def write(path: Path, tasks: range) -> Path:
    """One scored trace of two steps a task."""
    rng = np.random.default_rng(tasks.start)
    traces = []
    for task in tasks:
        messages = [{"role": "user", "content": "go"}, *[{"role": "assistant", "content": "x"}] * 2]
        steps = [
            Step(at=at, labels={"human": float(rng.integers(2))}, scores={"prm": rng.random()})
            for at in (1, 2)
        ]
        traces.append(Trace(id=f"a/{task}", task_id=str(task), messages=messages, steps=steps))
    write_traces(traces, path)
    return path


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("scored") / "scored.jsonl", range(20))


def run(*arguments: object) -> int:
    return main(["eval", "steps", *map(str, arguments), "--bootstrap", "20"])


def test_table_on_stdout_counts_on_stderr(scored: Path, capsys: Capture) -> None:
    assert run(scored, "--label", "human") == 0
    page, counts = capsys.readouterr()
    assert "20 traces, 40 steps with label and score, 0 skipped" in page
    assert "\nThe model " in page
    assert max(map(len, page.splitlines())) <= 80
    assert "20 traces, 40 steps" in counts


def test_json_to_a_file_is_the_same_as_on_stdout(
    scored: Path, tmp_path: Path, capsys: Capture
) -> None:
    train = write(tmp_path / "train.jsonl.gz", range(100, 120))
    options = (scored, "--label", "human", "--train", train, "--json", "true")
    assert run(*options) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["baselines_fitted_on"] == "20 training traces"
    assert run(*options, "--out", tmp_path / "report.json") == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "report.json").read_text() == printed


def test_a_failure_is_one_sentence_and_leaves_no_file(
    scored: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert run(scored, "--label", "gold", "--out", tmp_path / "report.txt") == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "prm: error: no step of the traces has a label 'gold'; other step labels are: human"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_page_is_utf_8_in_any_locale(
    scored: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.dup(1), "w", encoding="ascii") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert run(scored, "--label", "human") == 0
        assert main(["--help"]) == 0
    assert "Brier ↓" in capfdbinary.readouterr().out.decode()


def test_an_input_is_never_overwritten(scored: Path, capsys: Capture) -> None:
    before = scored.read_bytes()
    assert run(scored, "--label", "human", "--out", scored) == 1
    assert "it is also an input" in capsys.readouterr().err
    assert scored.read_bytes() == before
