"""Splits: by task, stable under growth, of the right sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm.data.files import read_traces, write_traces
from prm.data.split import hold_out, split, split_by_task, task_side
from prm.data.trace import Trace
from prm.errors import PRMError

tasks = st.lists(st.text(st.characters(codec=None), min_size=1, max_size=5), max_size=30)


@given(tasks, tasks, st.integers(0, 5))
def test_sides_share_no_task_and_lose_no_trace_and_adding_tasks_moves_none(
    make_trace: Callable[..., Trace], first: list[str], second: list[str], seed: int
) -> None:
    traces = [make_trace(0, id=str(i), task_id=task) for i, task in enumerate(first + second)]
    sides = split_by_task(traces, seed=seed)
    assert sorted(t.id for side in sides.values() for t in side) == sorted(t.id for t in traces)
    task_sets = [{trace.task_id for trace in side} for side in sides.values()]
    assert sum(map(len, task_sets)) == len(set.union(*task_sets))
    alone = split_by_task(traces[: len(first)], seed=seed)
    for side, members in alone.items():
        assert members == [trace for trace in sides[side] if int(trace.id) < len(first)]


def test_sizes_are_near_their_fractions_and_seeds_differ() -> None:
    fractions = {"a": 0.5, "b": 0.3, "c": 0.2}
    sides = {seed: [task_side(str(i), fractions, seed) for i in range(10_000)] for seed in (0, 1)}
    for drawn in sides.values():
        for side, fraction in fractions.items():
            # five standard deviations of a binomial
            assert (
                abs(drawn.count(side) / 10_000 - fraction)
                < 5 * (fraction * (1 - fraction) / 1e4) ** 0.5
            )
    agree = sum(x == y for x, y in zip(sides[0], sides[1], strict=True)) / 10_000
    assert abs(agree - (0.25 + 0.09 + 0.04)) < 0.03


def test_a_side_of_share_zero_stays_empty() -> None:
    drawn = {task_side(str(i), {"all": 1.0, "none": 0.0}) for i in range(1000)}
    assert drawn == {"all"}


@pytest.mark.parametrize("fractions", [{}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": 0.7, "b": 0.7}])
def test_fractions_that_are_none(fractions: dict[str, float]) -> None:
    with pytest.raises(PRMError, match="sum to 1"):
        task_side("t", fractions)


def test_holding_out_takes_the_share_of_the_tasks_and_at_least_one(
    make_trace: Callable[..., Trace],
) -> None:
    traces = [
        make_trace(1, id=f"{task}/{n}", task_id=str(task)) for task in range(40) for n in "ab"
    ]
    for fraction, expected in ((0.001, 1), (0.25, 10), (0.9999, 39)):
        kept, held = hold_out(traces, fraction, seed=1)
        assert len({trace.task_id for trace in held}) == expected
        assert {t.task_id for t in kept}.isdisjoint(t.task_id for t in held)
        assert sorted(t.id for t in kept + held) == sorted(t.id for t in traces)
    assert hold_out(traces, 0.25, seed=1) == hold_out(traces, 0.25, seed=1)
    assert hold_out(traces, 0.25, seed=1) != hold_out(traces, 0.25, seed=2)
    with pytest.raises(PRMError, match="at least 2 tasks"):
        hold_out(traces[:2], 0.5)


def test_the_command_writes_every_side_and_counts_it(
    tmp_path: Path, make_trace: Callable[..., Trace], capsys: pytest.CaptureFixture[str]
) -> None:
    traces = [
        make_trace(1, id=f"{task}/{n}", task_id=str(task)) for task in range(40) for n in "ab"
    ]
    write_traces(traces, tmp_path / "t.jsonl")
    split([str(tmp_path / "t.jsonl")], out=str(tmp_path / "s"), fractions={"a": 0.5, "b": 0.5})
    sides = {side: list(read_traces(tmp_path / "s" / f"{side}.jsonl.gz")) for side in "ab"}
    assert sides == split_by_task(traces, {"a": 0.5, "b": 0.5})
    printed = capsys.readouterr().err
    for side, members in sides.items():
        assert f"{side}.jsonl.gz: {len(members)} traces of {len(members) // 2} tasks" in printed
    with pytest.raises(PRMError, match="never overwritten"):
        split([str(tmp_path / "t.jsonl")], out=str(tmp_path / "s"), fractions={"a": 1.0})


@pytest.mark.parametrize(
    ("fractions", "words"),
    [
        ({"../evil": 0.5, "test": 0.5}, "names of files for the sides"),
        ({"": 0.5, "test": 0.5}, "names of files for the sides"),
        ({".hidden": 1.0}, "names of files for the sides"),
        ({"most": 1.0, "none": 0.0}, "side 'none' would get no trace"),
        ({"a": 0.7, "b": 0.7}, "--fractions"),
    ],
)
def test_bad_sides_write_nothing(
    tmp_path: Path,
    make_trace: Callable[..., Trace],
    fractions: dict[str, float],
    words: str,
) -> None:
    write_traces([make_trace()], tmp_path / "t.jsonl")
    with pytest.raises(PRMError, match=words):
        split([str(tmp_path / "t.jsonl")], out=str(tmp_path / "s"), fractions=fractions)
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]
