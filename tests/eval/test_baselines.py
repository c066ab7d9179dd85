"""Baselines learn what they should, see no future, and are scored on tasks they did not learn."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from prm.data.files import read_traces
from prm.data.split import split_by_task
from prm.data.trace import Step, Trace
from prm.errors import PRMError
from prm.eval.baselines import BASELINES, message_text, score_from_training, score_out_of_fold
from prm.eval.steps import Floats, auroc, average_precision, brier

every_baseline = pytest.mark.parametrize("name", BASELINES)
fitted_baseline = pytest.mark.parametrize(
    "name", [name for name in BASELINES if name != "constant"]
)


def traces_of(actions_by_task: dict[str, list[str]]) -> list[Trace]:
    """One trace a task; each step says its action and sees "ok"."""
    traces = []
    for task, actions in actions_by_task.items():
        messages, steps = [{"role": "user", "content": f"do {task}"}], []
        for action in actions:
            steps.append(Step(at=len(messages)))
            messages += [
                {"role": "assistant", "content": action},
                {"role": "user", "content": "ok"},
            ]
        traces.append(Trace(id=task, task_id=task, messages=messages, steps=steps))
    return traces


@pytest.fixture(scope="module")
def telling() -> tuple[list[Trace], Floats]:
    """40 tasks of 4 steps whose action text tells the label, but for one step in ten."""
    rng = np.random.default_rng(0)
    positive = rng.integers(0, 2, (40, 4))
    said = np.where(rng.random((40, 4)) < 0.1, 1 - positive, positive)
    words = np.array(["delete the table", "select a row"])[said]
    traces = traces_of({f"task {i}": row.tolist() for i, row in enumerate(words)})
    return traces, positive.ravel().astype(np.float64)


def test_text_finds_what_position_cannot(telling: tuple[list[Trace], Floats]) -> None:
    traces, positive = telling
    text = score_out_of_fold("tfidf", traces, positive)
    assert auroc(positive, text) > 0.85
    assert auroc(positive, score_out_of_fold("position", traces, positive)) < 0.65


def test_position_finds_the_last_step() -> None:
    traces = traces_of({f"task {i}": ["go"] * 4 for i in range(20)})
    positive = np.tile([0.0, 0.0, 0.0, 1.0], 20)
    assert auroc(positive, score_out_of_fold("position", traces, positive)) == 1.0


def test_the_constant_is_the_base_rate(telling: tuple[list[Trace], Floats]) -> None:
    traces, positive = telling
    assert (score_out_of_fold("constant", traces, positive) == positive.mean()).all()
    learned = score_from_training("constant", traces[:3], traces[3:], positive[12:])
    np.testing.assert_allclose(learned, positive[12:].mean())


@every_baseline
def test_nothing_after_an_action_changes_its_score(
    name: str, telling: tuple[list[Trace], Floats]
) -> None:
    traces, positive = telling
    train, learned = traces[5:], positive[20:]
    cut = [
        msgspec.structs.replace(
            trace,
            steps=trace.steps[:2],
            messages=[*trace.messages[: trace.steps[1].at + 1], {"role": "user", "content": "BAD"}],
        )
        for trace in traces[:5]
    ]
    whole = score_from_training(name, traces[:5], train, learned).reshape(5, 4)
    short = score_from_training(name, cut, train, learned).reshape(5, 2)
    np.testing.assert_allclose(short, whole[:, :2], rtol=1e-12)


@fitted_baseline
def test_a_label_never_reaches_its_own_task(name: str, telling: tuple[list[Trace], Floats]) -> None:
    """Turning over the labels of one task leaves that task's own scores as they are."""
    traces, positive = telling
    turned = positive.copy()
    turned[:4] = 1 - turned[:4]
    before, after = (score_out_of_fold(name, traces, labels) for labels in (positive, turned))
    np.testing.assert_array_equal(before[:4], after[:4])
    assert not np.array_equal(before, after)


@every_baseline
def test_unlabelled_steps_are_scored_but_not_learned_from(
    name: str, telling: tuple[list[Trace], Floats]
) -> None:
    traces, positive = telling
    train, learned = traces[5:], positive[20:]
    gone = np.concatenate([learned, np.full(4, np.nan)])
    with_gap = score_from_training(name, traces[:5], [*train, traces[0]], gone)
    np.testing.assert_allclose(with_gap, score_from_training(name, traces[:5], train, learned))
    half = np.where(np.arange(len(positive)) % 2, positive, np.nan)
    assert np.isfinite(score_out_of_fold(name, traces, half)).all()


@fitted_baseline
def test_one_class_or_one_task_cannot_be_learned_from(name: str) -> None:
    traces = traces_of({"a": ["x", "y"], "b": ["x", "y"]})
    with pytest.raises(PRMError, match="but the training file has only negative ones"):
        score_from_training(name, traces[:1], traces[1:], np.zeros(2))
    with pytest.raises(PRMError, match="but the training file has none"):
        score_from_training(name, traces[:1], traces[1:], np.full(2, np.nan))
    with pytest.raises(PRMError, match="at least 2 tasks; found 1"):
        score_out_of_fold(name, traces[:1], np.array([0.0, 1.0]))


@pytest.mark.parametrize(
    "call",
    [
        {"type": "custom", "custom": {"name": "sql", "input": "DROP \ud800 \x00 <b>"}},
        {"type": "function", "function": {"name": "f", "arguments": {"n": 10**30, "x": None}}},
        {"type": "function", "function": None},
        {"type": "new_kind", "new_kind": "odd"},
    ],
)
def test_hostile_and_odd_calls_are_text_like_any_other(call: dict[str, object]) -> None:
    traces = traces_of({"a": ["x", "y"], "b": ["x", "y"], "c": ["x", "y"]})
    traces[0].messages[1]["tool_calls"] = [call]
    for name in BASELINES:
        scores = score_out_of_fold(name, traces, np.tile([0.0, 1.0], 3))
        assert np.isfinite(scores).all()


def test_message_text_loses_nothing_of_a_call() -> None:
    calls = [
        {"type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}},
        {"type": "function", "function": {"name": "f", "arguments": {"n": 10**30}}},
        {"type": "new_kind", "new_kind": "odd"},
    ]
    text = message_text({"role": "assistant", "content": None, "tool_calls": calls})
    assert text == (
        'sql SELECT 1 f {"n": 1000000000000000000000000000000} '
        '{"type": "new_kind", "new_kind": "odd"}'
    )


def test_text_is_a_strong_opponent_on_real_logs(real_traces: Path) -> None:
    traces = list(
        read_traces(real_traces / "intercode" / "ic_sql_multiturn_gpt-3.5_10_turns.json.gz")
    )
    sides = split_by_task(traces, {"train": 0.8, "test": 0.2})
    learned, truth = (
        np.concatenate([trace.step_labels("executed") >= 1 for trace in sides[side]]) * 1.0
        for side in ("train", "test")
    )
    text, position, constant = (
        score_from_training(name, sides["test"], sides["train"], learned)
        for name in ("tfidf", "position", "constant")
    )
    assert auroc(truth, text) > 0.85 > auroc(truth, position) > 0.5
    assert average_precision(truth, text) > 2 * average_precision(truth, position)
    assert brier(truth, text) < brier(truth, position) < brier(truth, constant)
