"""Desk plays by its rules: what costs a turn, what ends an episode, what an episode depends on."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from prm.errors import PRMError
from prm.rl.desk.environment import Desk, Episode
from prm.rl.desk.text import TOOLS, Call, Record, call_message, read_line, read_prompt
from prm.rl.desk.world import DeskConfig, Task, desk_tasks

QUIET = DeskConfig(hops=(2,), ages=(0,), stale_probs=(0.0,), timeout_prob=0.0)


def line_of(desk: Desk, call: Call) -> str:
    return str(desk.step([call_message(call)]).observations[0][0]["content"])


def walk(desk: Desk, task: Task) -> str:
    """The value at the end of the path, read record by record."""
    found = read_line(line_of(desk, Call("search", task.name)))
    assert isinstance(found, list)
    at = found[task.right]
    for link in (*task.path, task.field):
        record = read_line(line_of(desk, Call("read", at)))
        assert not isinstance(record, list)
        assert record is not None
        at = record.entries[link]
    return at


def test_the_shortest_episode_succeeds_where_nothing_is_stale_or_lost() -> None:
    task = desk_tasks(1, 0, "test", QUIET)[0]
    desk = Desk(QUIET)
    desk.reset([task], max_turns=5)
    assert walk(desk, task) == task.answer
    last = desk.step([call_message(Call("answer", task.answer))])
    assert last.rewards.tolist() == [1.0]
    assert (last.terminated.tolist(), last.truncated.tolist()) == ([True], [False])


def test_one_turn_less_runs_out() -> None:
    task = desk_tasks(1, 0, "test", QUIET)[0]
    desk = Desk(QUIET)
    desk.reset([task], max_turns=4)
    walk(desk, task)
    with pytest.raises(PRMError, match="episode 0 has ended"):
        desk.step([call_message(Call("answer", task.answer))])


def test_an_answer_that_was_never_shown_does_not_count() -> None:
    task = desk_tasks(1, 0, "test", QUIET)[0]
    desk = Desk(QUIET)
    desk.reset([task], max_turns=5)
    last = desk.step([call_message(Call("answer", task.answer))])
    assert last.rewards.tolist() == [0.0]
    assert last.terminated.tolist() == [True]


def test_only_refreshing_discovers_a_stale_link() -> None:
    config = DeskConfig(hops=(1,), ages=(0, 3), stale_probs=(0.0, 0.5), timeout_prob=0.0)
    task = desk_tasks(1, 0, "test", config)[0]
    # Turn by turn: time-out, age (the upper half shows 3), staleness (below 0.5 is stale).
    luck = [0.9, 0.9, 0.1] * 8
    episode = Episode(task, 8, luck, config)

    def look(tool: str, argument: str) -> str:
        return re.sub(r" left=\d+$", "", episode.step(call_message(Call(tool, argument)))[0])

    found = read_line(look("search", task.name))
    assert isinstance(found, list)
    start = found[task.right]
    stale = look("read", start)
    assert look("read", start) == stale
    fresh = look("refresh", start)
    assert (read_line(stale).age, read_line(fresh).age) == (3, 0)
    assert not set(read_line(stale).entries.values()) & set(read_line(fresh).entries.values())
    assert look("read", start) == look("refresh", start) == fresh


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "assistant", "content": "Hello"}, "expected one call a turn, found 0"),
        ({"role": "assistant", "tool_calls": None}, "expected one call a turn, found 0"),
        ({"role": "assistant", "tool_calls": 3}, "malformed"),
        ({"role": "assistant", "tool_calls": [{}]}, "malformed"),
        (call_message(Call("read", "r99")), "unknown record"),
        (call_message(Call("refresh", "r99")), "unknown record"),
        (
            {"tool_calls": [{"id": "c1", "function": {"name": "buy", "arguments": "{}"}}]},
            "unknown tool",
        ),
        (
            {"tool_calls": [{"id": "c1", "function": {"name": "read", "arguments": '{"record"'}}]},
            "not JSON",
        ),
        (
            {"tool_calls": [{"id": "c1", "function": {"name": "read", "arguments": "{}"}}]},
            "read takes record",
        ),
        (
            {"tool_calls": call_message(Call("search", "Oak"))["tool_calls"] * 2},
            "expected one call a turn, found 2",
        ),
    ],
)
def test_a_bad_action_costs_its_turn_and_is_answered(message: dict, complaint: str) -> None:
    desk = Desk(QUIET)
    desk.reset(desk_tasks(1, 0, "test", QUIET), max_turns=2)
    answers = desk.step([message]).observations[0]
    calls = message.get("tool_calls")
    assert len(answers) == (len(calls) if isinstance(calls, list) else 1)
    for answer in answers:
        assert complaint in answer["content"]
        assert answer["content"].endswith(" left=1")
    assert desk.step([message]).truncated.tolist() == [True]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries(
        {"role": st.just("assistant")},
        optional={
            "content": json_values,
            "tool_calls": json_values
            | st.lists(
                st.fixed_dictionaries(
                    {
                        "function": st.fixed_dictionaries(
                            {"name": st.sampled_from(["read", "answer"]), "arguments": st.text()}
                        )
                    },
                    optional={"id": json_values},
                ),
                max_size=2,
            ),
        },
    )
)
def test_nothing_an_agent_sends_raises(message: dict) -> None:
    desk = Desk(QUIET)
    desk.reset(desk_tasks(1, 0, "test", QUIET), max_turns=1)
    step = desk.step([message])
    assert step.observations[0]
    assert (step.terminated | step.truncated).tolist() == [True]


def test_together_is_the_same_as_one_by_one() -> None:
    tasks = desk_tasks(12, 3, "rl_train")
    limits = [8 + i % 3 for i in range(12)]

    def play(indices: list[int]) -> dict[int, list[object]]:
        desk = Desk()
        chosen = [tasks[i] for i in indices]
        prompts, _ = desk.reset(chosen, [limits[i] for i in indices], indices)
        seen: dict[int, list[object]] = {i: [prompts[k]] for k, i in enumerate(indices)}
        handles = dict.fromkeys(indices, "r10")
        for turn in range(10):
            actions = [
                None
                if turn >= limits[i]
                else call_message(Call("search", tasks[i].name))
                if turn < 2
                else call_message(Call("read", handles[i]))
                for i in indices
            ]
            for i, lines in zip(indices, desk.step(actions).observations, strict=True):
                seen[i].append(lines)
                shown = read_line(lines[0]["content"]) if lines else None
                if isinstance(shown, list) and shown:
                    handles[i] = shown[0]
                elif shown:
                    handles[i] = shown.entries["owner"]
        return seen

    together = play(list(range(12)))
    alone = {i: lines for i in range(12) for lines in play([i]).values()}
    assert together == alone


def test_samples_of_a_task_share_its_world_and_not_its_luck() -> None:
    task = desk_tasks(1, 0, "train")[0]
    desk = Desk()
    desk.reset([task] * 200, max_turns=1, samples=list(range(200)))
    step = desk.step([call_message(Call("search", task.name))] * 200)
    lines = Counter(answers[0]["content"] for answers in step.observations)
    found = f"found {task.handles[0]} {task.handles[1]} left=0"
    assert set(lines) == {found, "timeout left=0"}
    # 200 calls, each lost with probability 0.1: outside 3..45 once in a million.
    assert 3 <= lines["timeout left=0"] <= 45


def test_chances_are_those_of_the_configuration() -> None:
    config = DeskConfig(timeout_prob=0.0)
    n = 3000
    tasks = desk_tasks(n, 1, "train", config)
    desk = Desk(config)
    desk.reset(tasks, max_turns=3)
    desk.step([call_message(Call("search", task.name)) for task in tasks])
    shown: dict[str, list[Record]] = {}
    for tool in ("read", "refresh"):
        calls = [call_message(Call(tool, task.handles[task.right])) for task in tasks]
        shown[tool] = [read_line(answer[0]["content"]) for answer in desk.step(calls).observations]
    pairs = list(zip(shown["read"], shown["refresh"], strict=True))
    for age, stale_prob in zip(config.ages, config.stale_probs, strict=True):
        changed = [before.entries != after.entries for before, after in pairs if before.age == age]
        assert binomtest(len(changed), n, 1 / len(config.ages)).pvalue > 1e-4
        if stale_prob == 0:
            assert not any(changed)
        else:
            assert binomtest(sum(changed), len(changed), stale_prob).pvalue > 1e-4
    second = sum(task.right for task in tasks)
    assert binomtest(second, n, config.rank_probs[1]).pvalue > 1e-4


def test_the_turns_left_can_be_hidden() -> None:
    config = DeskConfig(show_turns=False)
    task = desk_tasks(1, 0, "train", config)[0]
    desk = Desk(config)
    prompts, tools = desk.reset([task], max_turns=3)
    step = desk.step([call_message(Call("search", task.name))])
    assert "left" not in str(prompts) + str(step.observations) + str(tools)


def test_streams_are_disjoint_and_repeatable() -> None:
    splits = ("train", "validation", "test", "rl_train", "rl_test")
    tasks = [task for split in splits for seed in (0, 1) for task in desk_tasks(50, seed, split)]
    assert len({task.id for task in tasks}) == len(tasks)
    assert len({task.handles for task in tasks}) == len(tasks)
    assert desk_tasks(50, 0, "train")[:7] == desk_tasks(7, 0, "train")


def test_the_prompt_asks_what_the_task_means() -> None:
    for task in desk_tasks(30, 0, "test"):
        prompts, tools = Desk().reset([task], max_turns=9)
        question = read_prompt(prompts[0])
        assert (question.name, question.city) == (task.name, task.city)
        assert (question.path, question.field) == (task.path, task.field)
        assert [tool["function"]["name"] for tool in tools] == [
            t["function"]["name"] for t in TOOLS
        ]


@pytest.mark.parametrize("max_turns", [0, 41])
def test_a_budget_out_of_range_is_refused(max_turns: int) -> None:
    with pytest.raises(PRMError, match="1 <= max_turns <= 40"):
        Desk().reset(desk_tasks(1, 0, "train"), max_turns)


def test_no_task_can_run_out_of_handles_or_values() -> None:
    config = DeskConfig(hops=(4,), ages=(0, 3), stale_probs=(0.0, 0.9), timeout_prob=0.0)
    for task in desk_tasks(5, 0, "train", config):
        episode = Episode(task, 40, [0.9, 0.9, 0.1] * 40, config)
        line, _ = episode.step(call_message(Call("search", task.name)))
        unread = list(read_line(line))
        for _ in range(39):
            line, _ = episode.step(call_message(Call("read", unread.pop(0))))
            unread += [read_line(line).entries[name] for name in ("owner", "agent")]
        assert episode.truncated
        assert len({*unread}) == len(unread)
