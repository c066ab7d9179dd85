"""What reinforcement learning changed, on states that no policy under study has chosen.

On a fixed set of states of scripted agents a policy plays each state on, several times:

    decision   the first action it takes: whether it is exactly optimal, and V - Q, the success
               that it gives away
    success    of the whole, from the state as it is
    recovery   of the whole, once a bad action was put before it: its last call was made again, or a
               record off the path was read. That teaches nothing and gets a turn of its own, so the
               belief, the turns left and the luck to come are those of the state as it is

The exact optimum decides perfectly and recovers fully. A policy that recovers less is led astray by
its history, since nothing else has changed.

Left out: intervals, which are over states and belong to the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from prm.data.trace import Message
from prm.errors import PRMError
from prm.rl.desk.agents import AGENTS, Move
from prm.rl.desk.belief import Tracker
from prm.rl.desk.grpo import ROLLOUT_TOKENS, STEP_TOKENS
from prm.rl.desk.play import Run, play
from prm.rl.desk.policy import TEACHERS, Policy
from prm.rl.desk.resumed import Resumed, State, resume
from prm.rl.desk.solution import solve
from prm.rl.desk.text import Call, call_message, observations, read_call
from prm.rl.desk.voice import think
from prm.rl.desk.world import MAX_TURNS, RELATIONS, DeskConfig, desk_tasks, shortest
from prm.rl.rollout import roll_out
from prm.rl.rollout_record import SamplingConfig, Start

Mistake = Literal["repeat", "stray"]
_AT_ONCE = 100
"""Rollouts that are sampled side by side, those of similar length together: each attends to as many
tokens as the longest has."""


class Decisions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one policy does in N states; every list is (N,), each entry a mean over ``samples``."""

    states: list[str]
    """Ids, so that two policies are compared state by state."""
    samples: int
    optimal_rate: list[float]
    """Share of first actions that are in the exact optimal set."""
    value_loss: list[float]
    """V - Q of the first action, in [0, 1]."""
    success_rate: list[float]
    """From the state as it is."""
    repeat_rate: list[float | None]
    """Success after the last call was made again, with as many turns left; None where that would
    be no mistake."""
    stray_rate: list[float | None]
    """Success after a record off the path was read, with as many turns left; None where none can
    be."""

    def __post_init__(self) -> None:
        lists = (
            self.optimal_rate,
            self.value_loss,
            self.success_rate,
            self.repeat_rate,
            self.stray_rate,
        )
        lengths = [len(values) for values in lists]
        if set(lengths) != {len(self.states)}:
            raise ValueError(
                f"expected {len(self.states)} entries in each list, as there are states, found "
                f"{lengths}"
            )


class _Played(NamedTuple):
    """One state, played on."""

    decision: Message
    success: bool


def neutral_states(n: int, seed: int, turns: Sequence[int]) -> list[State]:
    """``n`` states of scripted agents, each of another task; a longer list begins with the shorter.

    For the tasks of the stream ``rl_test`` with this seed, in order: draw one of ``TEACHERS``, T
    among ``turns`` and the number of steps taken, from 1 to T - 1, all uniformly; let the agent
    play with thoughts. The task gives the state before that step, unless the episode has ended by
    then, the search has not been answered yet (nothing but searching is open), or V = 0 (nothing
    helps). In every other state some call that the environment accepts is not optimal. What is
    kept depends on the history alone, never on what follows, so optimal play succeeds with V.

    Args:
        n: states.
        seed: of the tasks and the agents, 1 or more: the tasks of 0 are the evaluation's.
        turns: the grid of T.

    Raises:
        PRMError: a number out of range.
    """
    config = DeskConfig()
    least, most = shortest(min(config.hops)), MAX_TURNS - 1
    if n < 0 or seed < 1:
        raise PRMError(
            f"states: expected n of 0 or more and a seed of 1 or more (the tasks of seed 0 are the "
            f"evaluation's), found n = {n}, seed = {seed}"
        )
    if not turns or not all(least <= limit <= most for limit in turns):
        raise PRMError(
            f"states: expected turns from {least} (shorter ones solve nothing) to {most} (an "
            f"injected action gets one more), found {list(turns)}"
        )
    n_tasks = 2 * n
    while len(found := _states(n_tasks, seed, turns, config)) < n:
        n_tasks *= 2
    return found[:n]


def _states(n_tasks: int, seed: int, turns: Sequence[int], config: DeskConfig) -> list[State]:
    """The states that the first tasks of the stream give."""
    rng = np.random.default_rng(seed)
    runs, steps = [], []
    for task in desk_tasks(n_tasks, seed, "rl_test", config):
        limit = int(rng.choice(turns))
        runs.append(Run(task, TEACHERS[rng.integers(len(TEACHERS))], limit))
        steps.append(int(rng.integers(1, limit)))
    found = []
    for run, step, trace in zip(runs, steps, play(runs, seed, config, thoughts=True), strict=True):
        if step >= trace.n_steps:
            continue
        state = State(
            id=f"{run.task.id}-{run.agent}-T{run.max_turns}-{step}",
            task=run.task,
            sample=run.sample,
            actions=tuple(trace.messages[done.at] for done in trace.steps[:step]),
            left=run.max_turns - step,
        )
        belief = resume(state, state.left, 0, config).tracker.belief
        searched = belief.candidates is not None
        if searched and solve(config, run.task.hops).v(belief, state.left) > 0:
            found.append(state)
    return found


def injected(state: State, mistake: Mistake, config: DeskConfig) -> State | None:
    """The state after a bad action, with as many turns left.

    ``repeat`` makes the last call again; None where that is no mistake, since the call was lost to
    a time-out, or makes no call. ``stray`` reads the last link shown whose reading teaches nothing
    and that has not been read; None where there is no such link, or where the luck of that turn is
    a time-out: no record would be shown.
    """
    tracker = resume(state, state.left, 0, config).tracker
    call = read_call(state.actions[-1]) if mistake == "repeat" else _stray(tracker)
    if not isinstance(call, Call):
        return None
    action = think(tracker, Move(call), f"call_{tracker.turns}")
    if tracker.action(action).kind != "waste":
        return None
    after = replace(state, id=f"{state.id}-{mistake}", actions=(*state.actions, action))
    shown = resume(after, after.left, 0, config).tracker.records
    return after if mistake == "repeat" or call.argument in shown else None


def _stray(tracker: Tracker) -> Call | None:
    links = [record.entries[name] for record in tracker.records.values() for name in RELATIONS]
    for handle in reversed([*tracker.candidates, *links]):
        kind = tracker.action(call_message(Call("read", handle))).kind
        if kind == "waste" and handle not in tracker.records:
            return Call("read", handle)
    return None


def decide(
    policy: Policy,
    states: Sequence[State],
    desk: DeskConfig,
    *,
    samples: int = 2,
    seed: int,
    temperature: float = 1.0,
) -> Decisions:
    """What a learned policy does in the states.

    Args:
        policy: it reads the whole history of a state as its prompt.
        states: of :func:`neutral_states`.
        desk: the default one, with the turns left shown or hidden.
        samples: runs of each state, without a mistake and after each.
        seed: of the policy's tokens; the luck of the environment is the same for all policies.
        temperature: of sampling.

    Raises:
        PRMError: another environment, a state with V = 0, numbers out of range.
    """
    sampling = SamplingConfig(temperature, STEP_TOKENS, ROLLOUT_TOKENS)

    def play_on(starts: list[Start[State]]) -> list[_Played]:
        by_length = sorted(range(len(starts)), key=lambda i: len(starts[i].task.actions))
        played: dict[int, _Played] = {}
        for first in range(0, len(starts), _AT_ONCE):
            chosen = by_length[first : first + _AT_ONCE]
            rollouts = roll_out(
                policy.model,
                policy.dialogue,
                Resumed(desk),
                [starts[i] for i in chosen],
                sampling=sampling,
                seed=seed,
            )
            for i, trace in zip(chosen, (one.trace for one in rollouts), strict=True):
                assert trace.outcome.success is not None, "desk does not break"
                played[i] = _Played(trace.messages[trace.steps[0].at], trace.outcome.success)
        return [played[i] for i in range(len(starts))]

    return _decisions(play_on, states, desk, samples)


def decide_scripted(
    agent: str, states: Sequence[State], desk: DeskConfig, *, samples: int = 2, seed: int
) -> Decisions:
    """What an agent of ``AGENTS`` does in the states; as :func:`decide`."""

    def play_on(starts: list[Start[State]]) -> list[_Played]:
        return [_played_by(agent, start, desk, seed) for start in starts]

    return _decisions(play_on, states, desk, samples)


def _played_by(agent: str, start: Start[State], desk: DeskConfig, seed: int) -> _Played:
    state, left, sample = start
    episode, _, tracker = resume(state, left, sample, desk)
    rng = np.random.default_rng([seed, sample, *state.id.encode()])
    actions: list[Message] = []
    reward = 0.0
    while not episode.ended:
        move = AGENTS[agent](tracker, episode.max_turns, rng)
        action = think(tracker, move, f"call_{tracker.turns}")
        line, reward = episode.step(action)
        tracker.update(action, observations(action, line))
        actions.append(action)
    return _Played(actions[0], reward == 1)


def _decisions(
    play_on: Callable[[list[Start[State]]], list[_Played]],
    states: Sequence[State],
    desk: DeskConfig,
    samples: int,
) -> Decisions:
    _check(states, desk, samples)
    plain = _in_groups(play_on(_starts(states, samples)), samples)

    def recovery(mistake: Mistake) -> list[float | None]:
        after = [injected(state, mistake, desk) for state in states]
        there = [bad for bad in after if bad is not None]
        forced = iter(_in_groups(play_on(_starts(there, samples)), samples))
        return [None if bad is None else _success_rate(next(forced)) for bad in after]

    judged = [
        _judged(state, [one.decision for one in own], desk)
        for state, own in zip(states, plain, strict=True)
    ]
    return Decisions(
        states=[state.id for state in states],
        samples=samples,
        optimal_rate=[rate for rate, _ in judged],
        value_loss=[loss for _, loss in judged],
        success_rate=[_success_rate(own) for own in plain],
        repeat_rate=recovery("repeat"),
        stray_rate=recovery("stray"),
    )


def _check(states: Sequence[State], desk: DeskConfig, samples: int) -> None:
    if samples < 1:
        raise PRMError(f"decisions: expected 1 sample or more, found {samples}")
    if replace(desk, show_turns=True) != DeskConfig():
        raise PRMError(
            "decisions: expected the default parameters of desk, those of the states, but for "
            f"show_turns, found {desk}"
        )
    for state in states:
        belief = resume(state, state.left, 0, desk).tracker.belief
        if solve(desk, state.task.hops).v(belief, state.left) == 0:
            raise PRMError(f"state {state.id!r}: expected V > 0, found 0: every action fails alike")


def _starts(states: Sequence[State], samples: int) -> list[Start[State]]:
    return [Start(state, state.left, sample) for state in states for sample in range(samples)]


def _in_groups(played: list[_Played], samples: int) -> list[list[_Played]]:
    """(N,) lists of the runs of one state."""
    return [played[i : i + samples] for i in range(0, len(played), samples)]


def _success_rate(own: list[_Played]) -> float:
    return float(np.mean([one.success for one in own]))


def _judged(state: State, decisions: list[Message], desk: DeskConfig) -> tuple[float, float]:
    """The share of optimal actions in a state, and their mean V - Q."""
    tracker = resume(state, state.left, 0, desk).tracker
    solution = solve(desk, state.task.hops)
    best = solution.optimal(tracker.belief, state.left)
    actions = [tracker.action(decision) for decision in decisions]
    q = [solution.q(tracker.belief, action, state.left) for action in actions]
    loss = solution.v(tracker.belief, state.left) - float(np.mean(q))
    return float(np.mean([action in best for action in actions])), loss
