"""Decisions and recovery on fixed states: the exact optimum is the known answer."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from prm.data.trace import text_of
from prm.errors import PRMError
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.policy import TEACHERS, Policy, PolicyConfig, teach
from prm.rl.desk.resumed import State, resume
from prm.rl.desk.solution import solve
from prm.rl.desk.text import Call, read_call
from prm.rl.desk.world import DeskConfig
from prm.study import decisions
from prm.study.decisions import Decisions, decide, decide_scripted, injected, neutral_states

TURNS = (6, 8, 10, 12, 14)
DESK = DeskConfig()
STATES = neutral_states(300, 1, TURNS)


def value(state: State, left: int) -> float:
    belief = resume(state, state.left, 0, DESK).tracker.belief
    return solve(DESK, state.task.hops).v(belief, left)


@pytest.fixture(scope="module")
def optimum() -> Decisions:
    return decide_scripted("optimal", STATES, DESK, samples=2, seed=0)


def test_states_are_fixed_by_the_seed() -> None:
    assert neutral_states(40, 1, TURNS) == STATES[:40]
    assert not {s.id for s in neutral_states(40, 2, TURNS)} & {s.id for s in STATES}


def test_states_are_of_other_tasks_than_the_evaluation_and_leave_a_choice() -> None:
    assert len({state.task.id for state in STATES}) == len(STATES) == 300
    assert all(state.task.id.startswith("desk-rl_test-1-") for state in STATES)
    assert {state.left + len(state.actions) for state in STATES} == set(TURNS)
    assert {name for name in TEACHERS for state in STATES if f"-{name}-T" in state.id} == {
        *TEACHERS
    }
    for state in STATES:
        belief = resume(state, state.left, 0, DESK).tracker.belief
        assert belief.candidates is not None
        assert value(state, state.left) > 0


def test_the_optimum_decides_without_a_fault(optimum: Decisions) -> None:
    assert optimum.optimal_rate == [1.0] * 300
    np.testing.assert_allclose(optimum.value_loss, 0, atol=1e-9)


def test_the_optimum_succeeds_with_the_value_of_the_states(optimum: Decisions) -> None:
    """So what stale records hide in them is as probable as the belief says: no selection."""
    excess = np.array(optimum.success_rate) - [value(state, state.left) for state in STATES]
    assert abs(excess.mean()) < 3 * excess.std(ddof=1) / np.sqrt(len(excess))


def test_the_optimum_recovers_fully(optimum: Decisions) -> None:
    """Belief, turns and luck are the same, so each run ends alike, not only on average."""
    for rates in (optimum.repeat_rate, optimum.stray_rate):
        some = np.array([rate is not None for rate in rates])
        assert 200 < some.sum() < 300
        plain = np.array(optimum.success_rate)[some]
        assert 0 < plain.mean() < 1
        assert np.array(rates)[some].tolist() == plain.tolist()


def test_a_random_agent_is_far_below(optimum: Decisions) -> None:
    found = decide_scripted("random", STATES, DESK, seed=0)
    assert np.mean(found.optimal_rate) < 0.25
    assert np.mean(found.value_loss) > 0.2
    assert np.mean(found.success_rate) < 0.05 < np.mean(optimum.success_rate)


def test_a_loss_is_never_negative_and_none_where_all_is_optimal() -> None:
    for name in AGENTS:
        found = decide_scripted(name, STATES[:40], DESK, samples=2, seed=0)
        for rate, loss in zip(found.optimal_rate, found.value_loss, strict=True):
            assert -1e-12 <= loss <= (1e-9 if rate == 1 else 1)


def test_scripted_agents_know_hidden_turns() -> None:
    shown, hidden = (
        decide_scripted("optimal-slips", STATES[:40], replace(DESK, show_turns=show), seed=0)
        for show in (True, False)
    )
    assert shown == hidden


def test_a_stray_read_teaches_nothing_and_shows_a_record() -> None:
    lost = 0
    for state in STATES:
        before = resume(state, state.left, 0, DESK).tracker
        bad = injected(state, "stray", DESK)
        if bad is None:
            lost += bool(before.records) and before.belief.candidates == ()
            continue
        assert (bad.left, bad.actions[:-1]) == (state.left, state.actions)
        call = read_call(bad.actions[-1])
        assert isinstance(call, Call)
        assert call.tool == "read"
        after = resume(bad, bad.left, 0, DESK)
        assert (after.tracker.belief, after.tracker.path) == (before.belief, before.path)
        assert after.tracker.target == before.target
        assert call.argument not in {*before.path, before.target, *before.records}
        assert {*after.tracker.records} == {*before.records, call.argument}
        assert after.messages[-1]["content"].startswith(call.argument)
        assert after.messages[-1]["content"].endswith(f" left={state.left}")
        assert text_of(bad.actions[-1]["content"]).startswith(f"{len(before.path)}. ")
    # On the path there is a link beside it: what is lost there is lost to time-outs alone.
    walking = sum(resume(s, s.left, 0, DESK).tracker.belief.candidates == () for s in STATES)
    assert 0.05 < lost / walking < 0.16


def test_a_repeat_teaches_nothing() -> None:
    for state in STATES:
        bad = injected(state, "repeat", DESK)
        before = resume(state, state.left, 0, DESK)
        if bad is None:
            assert before.messages[-1]["content"].startswith(("timeout", "error"))
            continue
        assert (bad.left, bad.actions[:-1]) == (state.left, state.actions)
        assert read_call(bad.actions[-1]) == read_call(state.actions[-1])
        assert resume(bad, bad.left, 0, DESK).tracker.belief == before.tracker.belief


def test_json_keeps_all(optimum: Decisions) -> None:
    written = msgspec.json.encode(optimum)
    assert msgspec.json.decode(written, type=Decisions) == optimum
    assert b"null" in written
    shorter = written.replace(b'"optimal_rate":[1.0,', b'"optimal_rate":[')
    with pytest.raises(msgspec.ValidationError, match=r"expected 300 entries .* found \[299, 300"):
        msgspec.json.decode(shorter, type=Decisions)


@pytest.fixture(scope="module")
def policy() -> Policy:
    size = PolicyConfig(n_tasks=8, steps=2, batch_size=8, hidden_size=16, n_layers=1, n_heads=2)
    return teach(size)


def test_a_policy_that_babbles_loses_its_turn_or_answers_wrong(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What either costs differs from state to state, so each number is with its own state."""
    monkeypatch.setattr(decisions, "_AT_ONCE", 7)
    states = STATES[:12]
    found = decide(policy, states, DESK, samples=2, seed=0)
    assert found.states == [state.id for state in states]
    assert found.optimal_rate == found.success_rate == [0.0] * 12
    assert {*found.repeat_rate, *found.stray_rate} == {0.0, None}
    wasted = 0
    for state, loss in zip(states, found.value_loss, strict=True):
        v = value(state, state.left)
        turn = v - value(state, state.left - 1)
        assert any(loss == pytest.approx(mix) for mix in (turn, (turn + v) / 2, v))
        wasted += loss == pytest.approx(turn)
    assert wasted > 6


def test_a_policy_reads_states_without_the_turns(policy: Policy) -> None:
    found = decide(policy, STATES[:4], replace(DESK, show_turns=False), samples=1, seed=0)
    assert found.samples == 1
    assert found.states == [state.id for state in STATES[:4]]


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(PRMError, match="a seed of 1 or more"):
        neutral_states(3, 0, TURNS)
    for turns in ((), (4,), (6, 40)):
        with pytest.raises(PRMError, match="expected turns from 5"):
            neutral_states(3, 1, turns)
    with pytest.raises(PRMError, match="expected 1 sample or more, found 0"):
        decide_scripted("optimal", STATES, DESK, samples=0, seed=0)
    with pytest.raises(PRMError, match="expected the default parameters of desk"):
        decide_scripted("optimal", STATES, DeskConfig(timeout_prob=0.0), seed=0)
    hopeless = replace(STATES[0], actions=(), left=2)
    with pytest.raises(PRMError, match="expected V > 0, found 0"):
        decide_scripted("optimal", [hopeless], DESK, seed=0)
