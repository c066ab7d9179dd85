"""The command ``prm eval hacking``, from files to its output."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from prm.cli import main
from prm.data.files import write_traces
from prm.data.trace import Outcome
from tests.conftest import MakeTrace

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def path(make_trace: MakeTrace, tmp_path: Path) -> Path:
    """Twenty tasks with two successes and a failure; each step is paid 0.5, so length is paid."""
    traces = []
    for task in range(20):
        for place, (n_steps, success) in enumerate([(2, True), (4, True), (6, False)]):
            trace = make_trace(n_steps, id=f"a/{task}/{place}", task_id=f"t{task:02}")
            steps = [msgspec.structs.replace(s, scores={"prm": 0.5}) for s in trace.steps]
            traces.append(
                msgspec.structs.replace(
                    trace,
                    steps=steps,
                    outcome=Outcome(success=success),
                    meta={"step": task % 2},
                )
            )
    path = tmp_path / "scored.jsonl"
    write_traces(traces, path)
    return path


def run(*arguments: object) -> int:
    return main(["eval", "hacking", *map(str, arguments), "--bootstrap", "200"])


def test_a_reward_for_each_step_is_told(path: Path, capsys: Capture) -> None:
    assert run(path) == 0
    page, errors = capsys.readouterr()
    assert "60 traces of 20 tasks, step scores 'prm'; 0 left out" in page
    words = " ".join(page.split())
    assert "prefers failures" in words
    assert "pays for length among successes" in words
    assert "60 traces" in errors
    assert max(map(len, page.splitlines())) <= 80


def test_json_has_the_verdict_and_the_groups(path: Path, capsys: Capture) -> None:
    assert run(path, "--by", "step", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["sum"]["failure"]["value"] == pytest.approx(3.0)
    assert printed["sum"]["success"]["value"] == pytest.approx(1.5)
    assert set(printed["groups"]) == {"0", "1"}
    assert "The process reward" in printed["verdict"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--score", "mine"], "mine"),
        (["--by", "epoch"], "epoch"),
        (["--seed", "-1"], "expected a number >= 0"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    path: Path, capsys: Capture, options: list[str], sentence: str
) -> None:
    assert run(path, *options) == 1
    page, errors = capsys.readouterr()
    assert page == ""
    assert sentence in errors.strip().splitlines()[-1]
