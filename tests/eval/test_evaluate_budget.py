"""The command ``prm eval budget``, from files to its output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prm.cli import main
from prm.data.files import write_traces
from prm.data.trace import Outcome, Trace
from tests.conftest import MakeTrace

Capture = pytest.CaptureFixture[str]


def runs(
    make_trace: MakeTrace, policy: str, lengths: list[int], *, max_turns: int | None = 8
) -> list[Trace]:
    """One run a task: it succeeds at its last step, or never where the length is 8."""
    return [
        msgspec.structs.replace(
            make_trace(
                n, id=f"{policy}/{i}", task_id=f"t{i:02}", policy=policy,
                labels=[1.0] * (n - 1) + [float(n < 8)],
            ),
            outcome=Outcome(reward=float(n < 8), success=n < 8, max_turns=max_turns),
            meta={"hops": i % 3},
        )
        for i, n in enumerate(lengths)
    ]  # fmt: skip


@pytest.fixture
def fast_and_slow(make_trace: MakeTrace, tmp_path: Path) -> Path:
    """Twenty tasks: one policy needs 2 turns, the other 6; both solve 15 of 20 in the end."""
    path = tmp_path / "traces.jsonl"
    fast, slow = [2] * 15 + [8] * 5, [8] * 5 + [6] * 15
    write_traces([*runs(make_trace, "fast", fast), *runs(make_trace, "slow", slow)], path)
    return path


def run(*arguments: object) -> int:
    return main(["eval", "budget", *map(str, arguments), "--bootstrap", "200"])


def refused(capsys: Capture, *arguments: object) -> str:
    """The one sentence with which the command refuses."""
    assert run(*arguments) == 1
    page, errors = capsys.readouterr()
    assert page == ""
    last = errors.strip().splitlines()[-1]
    assert last.startswith("prm: error: ")
    return last


def test_the_table_says_who_is_ahead_where(fast_and_slow: Path, capsys: Capture) -> None:
    assert run(fast_and_slow, "--t", 1, 2, 5, 8, "--label", "executed", "--horizon", "hops") == 0
    page, errors = capsys.readouterr()
    assert "[1] fast: 20 tasks, 20 runs" in page
    assert "[1]          0.000   0.750   0.750   0.750" in page
    assert "[2]          0.000   0.000   0.000   0.750" in page
    assert "[1] − [2]: T = 2, 5 survive in favour of [1]; T = 1, 8 do not." in page
    assert "5 : 5, 1" in page  # tasks that only one of them solves, and McNemar's p
    assert "success at hops = 2" in page
    assert "40 traces" in errors


def test_a_folder_gets_numbers_figures_and_a_page(
    fast_and_slow: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "report"
    assert run(fast_and_slow, "--k", 1, "--by", "hops", "--json", "--out", out) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "budget.json").read_text())
    assert printed["source"] == "cut"
    assert printed["t"] == [1, 2, 3, 5, 8]
    assert set(printed["policies"]) == {"fast", "slow"}
    cell = printed["policies"]["fast"]["pass_at"][0][1]
    assert cell["value"] == 0.75
    assert cell["low"] < 0.75 < cell["high"]
    assert set(printed["policies"]["slow"]["by"]["hops"]) == {"0", "1", "2"}
    assert len(printed["comparisons"]) == 5
    assert len(list(out.glob("*.png"))) == 4
    assert (out / "report.html").read_text().startswith("<!")


def test_same_seed_same_bytes(fast_and_slow: Path, capsys: Capture) -> None:
    pages = []
    for seed in (0, 0, 1):
        assert run(fast_and_slow, "--json", "--seed", seed) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1] != pages[2]


def test_success_can_be_made_from_the_reward(
    make_trace: MakeTrace, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "rewards.jsonl"
    traces = [
        msgspec.structs.replace(t, outcome=Outcome(reward=t.outcome.reward))
        for t in runs(make_trace, "a", [1, 2, 3])
    ]
    write_traces(traces, path)
    assert "whether it succeeded" in refused(capsys, path)
    assert run(path, "--success-at", 1) == 0
    assert "[1]          0.333   0.667   1.000" in capsys.readouterr().out


BAD: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "a budget above that of the runs": ({}, ["--t", "2", "9"], "T = 9 is above the 8 turns"),
    "more trajectories than were sampled": ({}, ["--k", "2"], "K = 2 needs 2 trajectories"),
    "a budget below one": ({}, ["--t", "0"], "expected turn budgets T of 1"),
    "a K below one": ({}, ["--k", "0"], "--k: expected numbers of 1 or more"),
    "a primary cell that is none": ({}, ["--primary", "best"], "--primary: expected K,T"),
    "a primary cell off the grid": ({}, ["--primary", "1,4"], "--primary: expected a K of [1]"),
    "an unknown meta key": ({}, ["--by", "colour"], "no meta key 'colour'; it has hops"),
    "an unknown seed key": ({}, ["--seed-key", "run"], "has no meta key 'run'; it has hops"),
    "a rerun that was none": ({}, ["--source", "rerun", "--t", "3"], "has no run at T = 3"),
    "a rerun without budgets": ({"max_turns": None}, ["--source", "rerun"], "max_turns"),
    "a target that is no rate": ({}, ["--target", "50"], "--target: expected a success rate"),
    "a horizon without a label": ({}, ["--horizon", "hops"], "needs --label"),
    "an unknown label": ({}, ["--label", "mood"], "mood"),
    "too few resamples": ({}, ["--bootstrap", "5"], "20 to 1,000,000"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_a_sentence(
    make_trace: MakeTrace, tmp_path: Path, capsys: Capture, name: str
) -> None:
    fields, options, sentence = BAD[name]
    path = tmp_path / "traces.jsonl"
    write_traces(runs(make_trace, "a", [1, 2, 8], **fields), path)
    out = tmp_path / "out"
    arguments = [str(path), *options, "--out", str(out)]
    if "--bootstrap" not in options:
        arguments += ["--bootstrap", "100"]
    assert main(["eval", "budget", *arguments]) == 1
    page, errors = capsys.readouterr()
    assert page == ""
    assert sentence in errors.strip().splitlines()[-1]
    assert not out.exists()


def test_policies_without_a_common_task_are_refused(
    make_trace: MakeTrace, tmp_path: Path, capsys: Capture
) -> None:
    other = [
        msgspec.structs.replace(t, task_id=f"x{t.task_id}") for t in runs(make_trace, "b", [1, 2])
    ]
    path = tmp_path / "traces.jsonl"
    write_traces([*runs(make_trace, "a", [1, 2]), *other], path)
    assert "no task in common" in refused(capsys, path)


def test_duplicate_ids_are_refused(make_trace: MakeTrace, tmp_path: Path, capsys: Capture) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (first, second):
        write_traces(runs(make_trace, "a", [1, 2]), path)
    assert "a/0" in refused(capsys, first, second)


def test_a_mixture_of_sources_is_refused(
    make_trace: MakeTrace, tmp_path: Path, capsys: Capture
) -> None:
    short = [
        msgspec.structs.replace(t, id=f"{t.id}/short", outcome=Outcome(success=True, max_turns=4))
        for t in runs(make_trace, "several", [1, 2])
    ]
    path = tmp_path / "traces.jsonl"
    write_traces(
        [*runs(make_trace, "several", [1, 2]), *short, *runs(make_trace, "one", [1, 2])], path
    )
    sentence = refused(capsys, path)
    assert "'several'" in sentence
    assert "'one'" in sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused_before_any_work(
    fast_and_slow: Path, tmp_path: Path, capsys: Capture
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert "permission" in refused(capsys, fast_and_slow, "--out", locked / "report")


def test_a_folder_that_holds_something_is_refused_and_kept(
    fast_and_slow: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "report"
    assert run(fast_and_slow, "--out", out) == 0
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert "expected a new or empty folder" in refused(capsys, fast_and_slow, "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert "found an empty one" in refused(capsys, fast_and_slow, "--out", "")


def test_a_report_that_fails_half_way_leaves_no_folder(
    fast_and_slow: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prm.eval.budget_figures.write_figures", full)
    assert "No space left" in refused(capsys, fast_and_slow, "--out", tmp_path / "report")
    assert [path.name for path in tmp_path.iterdir()] == ["traces.jsonl"]


def test_values_of_two_kinds_are_not_one_group(
    make_trace: MakeTrace, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "traces.jsonl"
    first, second = runs(make_trace, "a", [1, 2])
    as_text = msgspec.structs.replace(second, meta={"hops": "0"})
    write_traces([first, as_text], path)
    assert "text in one and a number in the other" in refused(capsys, path, "--by", "hops")
