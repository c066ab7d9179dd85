"""``prm study --from-traces``: the budget part of the report, for policies trained anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prm.cli import main
from prm.data.files import write_traces
from prm.data.trace import Outcome, Step, Trace


def run(policy: str, task: int, turn: int | None) -> Trace:
    """One run of ten turns at most that succeeds at ``turn``."""
    n = turn or 10
    return Trace(
        id=f"{policy}-{task}",
        task_id=str(task),
        policy=policy,
        messages=[{"role": "assistant", "content": "act"}] * n,
        steps=[Step(at=at) for at in range(n)],
        outcome=Outcome(success=turn is not None, max_turns=10),
    )


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "fast.jsonl", tmp_path / "slow.jsonl"]
    write_traces([run("fast", task, 2 if task % 4 else None) for task in range(40)], paths[0])
    write_traces([run("slow", task, 8 if task % 4 else None) for task in range(40)], paths[1])
    return [str(path) for path in paths]


def test_the_report_of_runs_alone(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["study", "--from-traces", *files, "--t", "2", "8", "--out", str(out)]
    assert main([*command, "--primary", "1,2", "--bootstrap", "40"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "fast is the best in this cell, and differs from 1 of the 1 other" in printed
    found = json.loads((out / "report.json").read_text())
    assert set(found) == {"answer", "budget"}
    assert "1.00 of it for fast, 0.00 of it for slow" in found["answer"][1]
    assert (out / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["study", "a.yaml", "b.yaml", "--out", "{out}"], "the YAML of one study, found 2 files"),
        (["study", "x.yaml", "--out", "{out}", "--t", "3"], "--t: it goes with --from-traces"),
        (["study", "--from-traces", "{file}", "--out", "{out}", "--processes", "2"], "is trained"),
        (["study", "--from-traces", "{file}", "--out", "{there}"], "expected a new or empty"),
        (["study", "--from-traces", "{file}", "--out", "{out}", "--bootstrap", "3"], "or 20 to"),
        (["study", "--from-traces", "{file}", "--out", "{out}", "--against", "x"], "of 'fast'"),
        (["study", "--from-traces", "nowhere.jsonl", "--out", "{out}"], "nowhere.jsonl"),
    ],
)
def test_it_is_refused(
    files: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    places = {"out": str(tmp_path / "out"), "file": files[0], "there": str(tmp_path)}
    assert main([argument.format(**places) for argument in arguments]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_real_agents(real_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [
        str(real_traces / "intercode" / f"ic_sql_multiturn_{model}_10_turns.json.gz")
        for model in ("gpt-4", "gpt-3.5")
    ]
    grid = ["--t", "1", "2", "3", "5", "8", "10", "--bootstrap", "200"]
    out = tmp_path / "out"
    assert main(["study", "--from-traces", *logs, *grid, "--out", str(out)]) == 0
    found = json.loads((out / "report.json").read_text())
    rates = {
        name: [cell["value"] for cell in one["pass_at"][0]]
        for name, one in found["budget"]["policies"].items()
    }
    assert [pytest.approx(row, abs=5e-4) for row in rates.values()] == [
        [0.0851, 0.1054, 0.1306, 0.3656, 0.4565, 0.4729],
        [0.0706, 0.1006, 0.3424, 0.5928, 0.7070, 0.7369],
    ]
    assert "0.10 of it for" in found["answer"][1]
