"""A resumed state is the recorded one; what follows has a luck of its own."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from prm.data.trace import Message, Trace
from prm.errors import PRMError
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.play import Run, play
from prm.rl.desk.resumed import Resumed, State, resume
from prm.rl.desk.text import Call, call_message, read_call
from prm.rl.desk.world import DeskConfig, desk_tasks

TASKS = desk_tasks(10, 0, "test")
RUNS = [Run(task, name, 11, sample) for sample, name in enumerate(AGENTS) for task in TASKS]
TRACES = play(RUNS, seed=0, thoughts=True)


def state_of(run: Run, trace: Trace, step: int) -> State:
    """The state before a step of a trace."""
    actions = tuple(trace.messages[done.at] for done in trace.steps[:step])
    left = run.max_turns - step
    return State(id=trace.id, task=run.task, sample=run.sample, actions=actions, left=left)


CUTS = [
    (trace.n_steps * (index % 5) // 5, run, trace)
    for index, (run, trace) in enumerate(zip(RUNS, TRACES, strict=True))
]
STATES = [state_of(run, trace, step) for step, run, trace in CUTS]
LEFT = [state.left for state in STATES]


def shown(config: DeskConfig, sample: int = 0) -> list[list[Message]]:
    return Resumed(config).reset(STATES, LEFT, [sample] * len(STATES)).messages


@pytest.mark.parametrize("sample", [0, 3])
def test_a_replay_shows_exactly_what_was_recorded(sample: int) -> None:
    for (step, _, trace), messages in zip(CUTS, shown(DeskConfig(), sample), strict=True):
        assert messages == trace.messages[: trace.steps[step].at]
    assert {len(state.actions) for state in STATES} > {0, 1, 2, 5}


def test_hidden_turns_change_nothing_else() -> None:
    for plain, hidden in zip(shown(DeskConfig()), shown(DeskConfig(show_turns=False)), strict=True):
        assert not any("left=" in str(message) for message in hidden)
        without = [
            {**message, "content": re.sub(r" left=\d+$", "", str(message["content"]))}
            if message["role"] != "assistant"
            else message
            for message in plain
        ]
        assert without == hidden


def test_so_many_turns_remain() -> None:
    env = Resumed()
    limits = [1 + index % 7 for index in range(len(STATES))]
    env.reset(STATES, limits, [0] * len(STATES))
    idle: Message = {"role": "assistant", "content": "well"}
    going_on = [True] * len(STATES)
    for turn in range(1, 8):
        transition = env.step([idle if on else None for on in going_on])
        assert transition.truncated.tolist() == [limit <= turn for limit in limits]
        for on, limit, messages in zip(going_on, limits, transition.observations, strict=True):
            if on:
                assert messages[0]["content"].endswith(f" left={limit - turn}")
        going_on = (~transition.truncated).tolist()


def test_what_a_record_hides_is_as_it_was_recorded() -> None:
    config = DeskConfig(timeout_prob=0.0)
    checked = changed = 0
    runs = [run._replace(agent="careful") for run in RUNS]
    for run, trace in zip(runs, play(runs, 0, config), strict=True):
        for window in trace.windows():
            call = read_call(window.action)
            if isinstance(call, str) or call.tool != "refresh":
                continue
            state = state_of(run, trace, window.index)
            env = Resumed(config)
            history = env.reset([state], [state.left], [7]).messages[0]
            answer = env.step([window.action]).observations[0]
            assert answer == [*window.observations]
            before = [m for m in history if str(m["content"]).startswith(f"{call.argument} ")][-1]
            changed += before["content"].split()[3:-1] != answer[0]["content"].split()[3:-1]
            checked += 1
    assert checked > 100
    assert 0.1 < changed / checked < 0.5


def test_samples_share_the_past_and_differ_in_luck() -> None:
    def next_lines(sample: int) -> list[object]:
        env = Resumed()
        env.reset(STATES, LEFT, [sample] * len(STATES))
        actions = []
        for state in STATES:
            tracker = resume(state, state.left, sample, env.config).tracker
            handle = tracker.candidates[0] if tracker.candidates else None
            name = state.task.name
            actions.append(call_message(Call("read", handle) if handle else Call("search", name)))
        return [messages[0]["content"] for messages in env.step(actions).observations]

    first, again, other = next_lines(0), next_lines(0), next_lines(1)
    assert first == again
    assert 0.05 < sum(a != b for a, b in zip(first, other, strict=True)) / len(first) < 0.9


def test_the_luck_to_come_does_not_depend_on_what_was_done() -> None:
    """A malformed action more in the past, as many turns left: the next read is answered alike."""
    checked = 0
    for state in STATES:
        idle: Message = {"role": "assistant", "content": "well"}
        after = replace(state, actions=(*state.actions, idle))
        one, other = (resume(either, state.left, 2, DeskConfig()) for either in (state, after))
        assert one.tracker.belief == other.tracker.belief
        if one.tracker.target is not None and not one.tracker.arrived:
            read = call_message(Call("read", one.tracker.target))
            assert one.episode.step(read) == other.episode.step(read)
            checked += 1
    assert checked > 20


def test_a_state_without_a_future_is_refused() -> None:
    done = next(trace for trace in TRACES if trace.outcome.status == "completed")
    run = RUNS[TRACES.index(done)]
    ended = state_of(run, done, done.n_steps)
    with pytest.raises(PRMError, match=f"found that action {done.n_steps - 1} ends it"):
        Resumed().reset([ended], [3], [0])
    with pytest.raises(PRMError, match="found that action 1 ends it"):
        Resumed().reset([state_of(run, done, 2)], [0], [0])
    with pytest.raises(PRMError, match=r"max_turns <= 40, found sample \d+ and max_turns 41"):
        Resumed().reset([state_of(run, done, 2)], [39], [0])
