"""The command ``prm shape``, from scored traces to dense rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from prm.cli import main
from prm.data.files import read_traces, write_traces
from prm.data.trace import Outcome, Trace
from tests.conftest import MakeTrace

Capture = pytest.CaptureFixture[str]


def scored(
    make_trace: MakeTrace, number: int, n_steps: int, outcome: Outcome, **fields: Any
) -> Trace:
    """A trace of task ``number // 2`` whose scores are drawn by its number."""
    rng = np.random.default_rng(number)
    trace = make_trace(n_steps, id=f"a/{number}", task_id=f"t{number // 2}")
    steps = [msgspec.structs.replace(s, scores={"prm": rng.random()}) for s in trace.steps]
    states = {"prm": rng.random(n_steps + 1).tolist()}
    return msgspec.structs.replace(
        trace, steps=steps, state_scores=states, outcome=outcome, **fields
    )


@pytest.fixture
def traces(make_trace: MakeTrace) -> list[Trace]:
    """Two traces of each of three tasks, of 1 to 5 steps; the last one was cut."""
    found = [
        scored(make_trace, i, 1 + i % 5, Outcome(reward=float(i % 2), status="completed"))
        for i in range(5)
    ]
    return [*found, scored(make_trace, 5, 3, Outcome(reward=0.0, status="out_of_turns"))]


@pytest.fixture
def path(traces: list[Trace], tmp_path: Path) -> Path:
    path = tmp_path / "scored.jsonl"
    write_traces(traces, path)
    return path


def shaped(path: Path, tmp_path: Path, *options: object) -> list[Trace]:
    out = tmp_path / "shaped.jsonl"
    assert main(["shape", str(path), "--out", str(out), *map(str, options)]) == 0
    return list(read_traces([str(out)]))


def refused(capsys: Capture, path: Path, *options: object) -> str:
    assert main(["shape", str(path), *map(str, options)]) == 1
    page, errors = capsys.readouterr()
    assert page == ""
    return errors.strip().splitlines()[-1]


@pytest.mark.parametrize("limit", ["end", "cut"])
def test_potential_rewards_telescope_along_each_trace(
    traces: list[Trace], path: Path, tmp_path: Path, capsys: Capture, limit: str
) -> None:
    """A turn limit is an end, where Φ is 0, unless the run is said to be cut there."""
    options = ("--gamma", 0.9, "--turn-limit", limit)
    for before, after in zip(traces, shaped(path, tmp_path, *options), strict=True):
        phi = before.states("prm")
        cut = limit == "cut" and before.outcome.status == "out_of_turns"
        end = phi[-1] if cut else 0.0
        discount = 0.9 ** np.arange(before.n_steps)
        assert before.outcome.reward is not None
        expected = 0.9**before.n_steps * end - phi[0] + discount[-1] * before.outcome.reward
        assert discount @ after.step_scores("shaped.reward") == pytest.approx(expected)
        assert after.step_scores("shaped.return")[0] == pytest.approx(expected)
        np.testing.assert_array_equal(after.step_scores("prm"), before.step_scores("prm"))
    assert "keeps the optimal policy" in capsys.readouterr().err


def test_advantages_of_a_task_are_centred_where_all_are_alive(path: Path, tmp_path: Path) -> None:
    found = shaped(path, tmp_path, "--mode", "baseline", "--name", "b")
    for first, second in zip(found[::2], found[1::2], strict=True):
        pair = first.step_scores("b.advantage")[0], second.step_scores("b.advantage")[0]
        assert sum(pair) == pytest.approx(0, abs=1e-12)


def test_the_mode_that_pays_each_step_says_so(
    traces: list[Trace], path: Path, tmp_path: Path, capsys: Capture
) -> None:
    found = shaped(path, tmp_path, "--mode", "sum", "--terminal-weight", 0.5)
    for before, after in zip(traces, found, strict=True):
        rewards = after.step_scores("shaped.reward")
        np.testing.assert_allclose(rewards[:-1], before.step_scores("prm")[:-1])
        assert before.outcome.reward is not None
        last = before.step_scores("prm")[-1] + 0.5 * before.outcome.reward
        assert rewards[-1] == pytest.approx(last)
    assert "does not keep the optimal policy: sum:" in capsys.readouterr().err


def test_states_can_be_those_of_the_last_action(
    traces: list[Trace], path: Path, tmp_path: Path
) -> None:
    found = shaped(path, tmp_path, "--states-from-actions")
    for before, after in zip(traces, found, strict=True):
        p = before.step_scores("prm")
        phi = np.concatenate([[0.0], p])
        phi[-1] = 0.0
        expected = np.diff(phi)
        assert before.outcome.reward is not None
        expected[-1] += before.outcome.reward
        np.testing.assert_allclose(after.step_scores("shaped.reward"), expected)


def test_an_invalid_run_is_kept_without_rewards_and_counted(
    traces: list[Trace], tmp_path: Path, make_trace: MakeTrace, capsys: Capture
) -> None:
    path = tmp_path / "mixed.jsonl"
    crashed = scored(make_trace, 9, 2, Outcome(valid=False))
    write_traces([traces[0], crashed, traces[1]], path)
    found = shaped(path, tmp_path)
    assert [t.id for t in found] == ["a/0", "a/9", "a/1"]
    assert found[1] == crashed
    assert "left as they are   1" in capsys.readouterr().err


BAD: dict[str, tuple[list[str], str]] = {
    "a discount above one": (["--gamma", "1.5"], "above one the return diverges"),
    "a negative weight": (["--process-weight", "-1"], "process_weight -1"),
    "a weight that is no number": (["--terminal-weight", ".nan"], "terminal_weight nan"),
    "scores outside the range": (["--score-range", "[0.0, 0.1]"], "expected score_range 0 to 0.1"),
    "an unknown score": (["--mode", "sum", "--score", "mine"], "action scores there: 'prm'"),
    "an unknown state score": (["--state-score", "mine"], "state scores there: 'prm'"),
    "success where there is none": (["--terminal", "success"], "outcome.success is null"),
    "an empty name": (["--name", ""], "--name"),
    "a state score that nothing reads": (
        ["--mode", "sum", "--state-score", "prm"],
        "reads no state",
    ),
    "a cut that changes nothing": (["--mode", "clip", "--turn-limit", "cut"], "--turn-limit cut"),
    "two kinds of states": (["--states-from-actions", "--state-score", "prm"], "name different"),
    "normalised rewards": (["--normalise", "group"], "--estimator"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_a_sentence(path: Path, capsys: Capture, name: str) -> None:
    options, sentence = BAD[name]
    assert sentence in refused(capsys, path, *options)


def test_a_null_reward_and_a_single_trace_are_refused(
    make_trace: MakeTrace, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "one.jsonl"
    write_traces([scored(make_trace, 0, 2, Outcome())], path)
    assert "outcome.reward is null though the outcome is valid" in refused(capsys, path)
    write_traces([scored(make_trace, 0, 2, Outcome(reward=1.0))], path)
    assert "task 't0' has one trace" in refused(capsys, path, "--mode", "baseline")
