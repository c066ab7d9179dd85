"""The solution is exact: it agrees with the environment itself, enumerated and simulated."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from prm.data.trace import Message, Outcome
from prm.errors import PRMError
from prm.rl.desk import text
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.belief import Belief, Tracker
from prm.rl.desk.environment import Episode
from prm.rl.desk.play import Run, annotate, play
from prm.rl.desk.solution import solve
from prm.rl.desk.world import DeskConfig, Task, budgets, desk_tasks, shortest

CONFIG = DeskConfig()

# --- Enumeration: expectimax over what the environment shows, with its luck spelled out ---------

World = tuple[float, Task, tuple[float, ...]]
"""Probability, task and the luck of the turns played: what an agent cannot see."""
History = list[tuple[text.Call, str]]
"""The calls made and the lines that answered them: what an agent sees."""
Offer = Callable[[Tracker, History], Iterator[text.Call]]


def chances(config: DeskConfig) -> list[tuple[float, tuple[float, float, float]]]:
    """One triple of uniforms for every thing that can happen in a turn, with its probability."""
    heard = 1 - config.timeout_prob
    found = [(config.timeout_prob, (config.timeout_prob / 2, 0.5, 0.5))]
    for i, stale_prob in enumerate(config.stale_probs):
        age = (i + 0.5) / len(config.ages)
        for prob, stale in ((stale_prob, stale_prob / 2), (1 - stale_prob, (1 + stale_prob) / 2)):
            found.append((heard * prob / len(config.ages), (0.99, age, stale)))
    return [chance for chance in found if chance[0] > 0]


class Enumeration:
    """Exact values from replays alone; every state met is compared with the solution."""

    def __init__(self, config: DeskConfig, max_turns: int, offer: Offer) -> None:
        self.config, self.max_turns, self.offer = config, max_turns, offer
        self.solution = solve(config, config.hops[0])
        self.states = 0

    def value(self, worlds: list[World], history: History) -> float:
        tracker = self.track(worlds[0][1], history)
        calls = [call for call, _ in history]
        left = self.max_turns - len(history)
        total = sum(prob for prob, _, _ in worlds)
        best = 0.0
        for call in self.offer(tracker, history) if left else ():
            if call.tool == "answer":
                right = sum(p * self.replay(task, luck + (0.9,) * 3, [*calls, call])[1]
                            for p, task, luck in worlds)  # fmt: skip
                value = right / total
            elif left == 1:
                continue
            else:
                value = self.after(worlds, history, call) / total
            action = tracker.action(text.call_message(call))
            assert value == pytest.approx(self.solution.q(tracker.belief, action, left), abs=1e-12)
            best = max(best, value)
        assert best == pytest.approx(self.solution.v(tracker.belief, left), abs=1e-12)
        self.states += 1
        return best

    def after(self, worlds: list[World], history: History, call: text.Call) -> float:
        seen: dict[str, list[World]] = defaultdict(list)
        for prob, task, luck in worlds:
            for chance, uniforms in chances(self.config):
                longer = luck + uniforms
                line, _ = self.replay(task, longer, [*(c for c, _ in history), call])
                seen[line].append((prob * chance, task, longer))
        return sum(
            sum(prob for prob, _, _ in group) * self.value(group, [*history, (call, line)])
            for line, group in seen.items()
        )

    def replay(
        self, task: Task, luck: tuple[float, ...], calls: list[text.Call]
    ) -> tuple[str, float]:
        """The last line and reward; values go by the order in which they were shown.

        To an agent that meets a task for the first time one value is as good as another, so worlds
        that differ in nothing else look the same.
        """
        episode = Episode(task, self.max_turns, luck, self.config)
        names: dict[str, str] = {}
        for call in calls:
            true = {name: value for value, name in names.items()}
            argument = true[call.argument] if call.tool == "answer" else call.argument
            line, reward = episode.step(text.call_message(call._replace(argument=argument)))
            for value in re.findall(r"(?:phone|code)=(\d+)", line):
                names.setdefault(value, f"v{len(names)}")
            line = re.sub(r"(phone|code)=(\d+)", lambda m: f"{m[1]}={names[m[2]]}", line)
        return line, reward

    def track(self, task: Task, history: History) -> Tracker:
        tracker = Tracker(text.prompt(task, self.max_turns, self.config), self.config)
        for call, line in history:
            message = text.call_message(call)
            tracker.update(message, text.observations(message, line))
        return tracker


def every_call(tracker: Tracker, history: History) -> Iterator[text.Call]:
    """All that the environment accepts: also repeats, and what leads off the path."""
    records = tracker.records.values()
    links = [record.entries[name] for record in records for name in ("owner", "agent")]
    yield text.Call("search", tracker.question.name)
    yield from (text.Call("read", handle) for handle in {*tracker.candidates, *links})
    yield from (text.Call("refresh", record.handle) for record in records)
    for record in records:
        yield from (text.Call("answer", record.entries[name]) for name in ("phone", "code"))


def useful_calls(tracker: Tracker, history: History) -> Iterator[text.Call]:
    """Those of ``every_call`` that are not answered yet, and follow no link but the owner."""
    answered = {call for call, line in history if not line.startswith("timeout")}
    strays = {record.entries["agent"] for record in tracker.records.values()}
    for call in every_call(tracker, history):
        if call not in answered and call.argument not in strays:
            yield call


@pytest.mark.parametrize(("max_turns", "offer"), [(4, every_call), (5, useful_calls)])
def test_two_look_alikes_and_one_record_by_enumeration(max_turns: int, offer: Offer) -> None:
    config = DeskConfig(
        hops=(0,), ages=(0, 4), stale_probs=(0.0, 0.4), rank_probs=(0.75, 0.25), timeout_prob=0.2
    )
    task = desk_tasks(1, 0, "test", config)[0]
    first = replace(task, right=0)
    second = replace(first, right=1, cities=first.cities[::-1])
    worlds: list[World] = [(0.75, first, ()), (0.25, second, ())]
    enumeration = Enumeration(config, max_turns, offer)
    assert enumeration.value(worlds, []) > 0.1
    assert enumeration.states > 50


@pytest.mark.parametrize("max_turns", [5, 6])
def test_two_links_that_may_be_stale_by_enumeration(max_turns: int) -> None:
    config = DeskConfig(
        hops=(1,), ages=(0, 4), stale_probs=(0.0, 0.4), rank_probs=(1.0,), timeout_prob=0.1
    )
    task = replace(desk_tasks(1, 0, "test", config)[0], path=("owner",))
    enumeration = Enumeration(config, max_turns, useful_calls)
    assert enumeration.value([(1.0, task, ())], []) > 0.1
    assert enumeration.states > 50


# --- Closed forms and order ---------------------------------------------------------------------


@pytest.mark.parametrize("hops", CONFIG.hops)
def test_without_slack_the_value_is_that_of_luck_alone(hops: int) -> None:
    heard = (1 - CONFIG.timeout_prob) ** (hops + 2)
    unstale = (1 - np.mean(CONFIG.stale_probs)) ** (hops + 1)
    closed = CONFIG.rank_probs[0] * heard * unstale
    solution = solve(CONFIG, hops)
    assert solution.v(Belief(), shortest(hops)) == pytest.approx(closed, abs=1e-12)
    assert solution.v(Belief(), shortest(hops) - 1) == 0
    assert solution.optimal(Belief(), shortest(hops) - 1) == ()


@pytest.mark.parametrize("hops", CONFIG.hops)
def test_more_turns_never_hurt_and_in_the_end_suffice(hops: int) -> None:
    solution = solve(CONFIG, hops)
    values = [solution.v(Belief(), turns) for turns in range(41)]
    assert (np.diff(values) >= 0).all()
    assert values[40] > 0.999999
    assert values == pytest.approx([solution.success(turns) for turns in range(41)], abs=1e-9)


def test_the_optimum_checks_when_it_can_afford_to() -> None:
    solution = solve(CONFIG, 2)
    old = Belief((), (0.4,))
    assert [a.kind for a in solution.optimal(old, 8)] == ["refresh"]
    assert [a.kind for a in solution.optimal(old, 3)] == ["next"]
    # Ties go to the shorter episode: a checked value is answered at once, whatever is left.
    known = Belief((), (0.0, 0.0, 0.0))
    assert all([a.kind for a in solution.optimal(known, t)] == ["answer"] for t in range(1, 41))


def test_the_instrument_sees_budget_dependence() -> None:
    """The criterion by which the parameters were chosen."""
    grids = {hops: budgets(CONFIG, hops) for hops in CONFIG.hops}
    optimum = np.mean([[solve(CONFIG, h).success(t) for t in g] for h, g in grids.items()], axis=0)
    generous = np.mean(
        [[solve(CONFIG, h).success(t, as_if=g[-1]) for t in g] for h, g in grids.items()], axis=0
    )
    assert 0.15 < optimum[0] < 0.25
    assert 0.95 < optimum[-1] < 1
    assert (optimum - generous >= 0.15).sum() >= 3
    assert optimum[-1] == pytest.approx(generous[-1], abs=1e-12)


# --- Simulation ---------------------------------------------------------------------------------


def runs_of(agent: str, n: int, ratio: int) -> list[Run]:
    tasks = desk_tasks(n, 11, "rl_test")
    return [Run(task, agent, budgets(CONFIG, task.hops)[ratio]) for task in tasks]


def z_score(total: float, variance: float) -> float:
    return total / np.sqrt(variance)


@pytest.mark.parametrize(("agent", "budget"), [("optimal", "own"), ("generous", "largest")])
@pytest.mark.parametrize("ratio", range(len(CONFIG.budget_ratios)))
def test_simulated_success_is_the_exact_one(agent: str, budget: str, ratio: int) -> None:
    runs = runs_of(agent, 400, ratio)
    traces = play(runs, seed=0)
    exact = []
    for run in runs:
        largest = budgets(CONFIG, run.task.hops)[-1] if budget == "largest" else None
        exact.append(solve(CONFIG, run.task.hops).success(run.max_turns, as_if=largest))
    p = np.array(exact)
    successes = sum(trace.outcome.success is True for trace in traces)
    assert abs(z_score(successes - p.sum(), (p * (1 - p)).sum())) < 4


def test_no_agent_beats_the_optimum() -> None:
    for agent in AGENTS:
        for ratio in (0, 2, 4):
            runs = runs_of(agent, 100, ratio)
            p = np.array([solve(CONFIG, run.task.hops).success(run.max_turns) for run in runs])
            successes = sum(trace.outcome.success is True for trace in play(runs, seed=1))
            assert z_score(successes - p.sum(), (p * (1 - p)).sum()) < 4, agent


@pytest.mark.parametrize("agent", sorted(AGENTS))
def test_the_value_after_an_action_is_q_on_average(agent: str) -> None:
    """E[V(s') | s, a] = Q(s, a), for wise and unwise actions alike."""
    traces = [annotate(trace) for trace in play(runs_of(agent, 300, 3), seed=2)]
    surprises = np.concatenate(
        [trace.states("v", "labels")[1:] - trace.step_labels("q") for trace in traces]
    )
    assert abs(z_score(surprises.sum(), (surprises**2).sum())) < 4
    assert all((trace.step_labels("advantage") <= 1e-12).all() for trace in traces)


def test_values_along_optimal_play_are_a_martingale() -> None:
    traces = [annotate(trace) for trace in play(runs_of("optimal", 600, 2), seed=3)]
    longest = max(trace.n_steps for trace in traces) + 1
    values = np.array(
        [np.pad(v, (0, longest - len(v)), mode="edge")
         for v in (trace.states("v", "labels") for trace in traces)]
    )  # fmt: skip
    drift = values - values[:, :1]
    error = drift[:, 1:].std(axis=0) / np.sqrt(len(traces))
    assert (np.abs(drift[:, 1:].mean(axis=0)) < 4 * error).all()
    assert all(not (trace.step_labels("optimal") == 0).any() for trace in traces)


def test_labels_agree_with_each_other() -> None:
    for agent in AGENTS:
        for trace in (annotate(trace) for trace in play(runs_of(agent, 60, 1), seed=4)):
            v, q = trace.states("v", "labels"), trace.step_labels("q")
            optimal = trace.step_labels("optimal")
            assert (np.isnan(optimal) == (v[:-1] == 0)).all()
            assert v[:-1][optimal == 1] == pytest.approx(q[optimal == 1], abs=1e-9)
            assert v[-1] == trace.outcome.reward
            turns = len([m for m in trace.messages if m["role"] == "assistant"])
            assert turns == trace.n_steps <= trace.outcome.max_turns


def test_a_repeated_read_is_worth_a_lost_turn() -> None:
    task = desk_tasks(1, 0, "test")[0]
    tracker = Tracker(text.prompt(task, 9, CONFIG), CONFIG)

    def do(call: text.Call, line: str) -> None:
        message: Message = text.call_message(call)
        tracker.update(message, text.observations(message, line))

    do(text.Call("search", task.name), "found r11 r12 left=8")
    do(text.Call("read", "r11"), f"r11 {task.city} age=4 owner=r13 agent=r14 phone=1 code=2 left=7")
    assert tracker.belief == Belief((), (0.4,))
    again = tracker.action(text.call_message(text.Call("read", "r11")))
    solution = solve(CONFIG, task.hops)
    assert solution.q(tracker.belief, again, 7) == solution.v(tracker.belief, 6)
    assert again not in solution.optimal(tracker.belief, 7)
    do(text.Call("refresh", "r11"), f"r11 {task.city} age=0 owner=r13 agent=r14 phone=1 code=2")
    assert tracker.belief == Belief((), (0.0,))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"outcome": Outcome(success=False)}, "expected outcome.max_turns from"),
        ({"outcome": Outcome(success=False, max_turns=1)}, "expected outcome.max_turns from"),
        ({"outcome": Outcome(max_turns=12)}, "outcome to say whether it was right"),
        (
            {"messages": [{"role": "user", "content": "Hello"}], "steps": []},
            "prompt of a desk task",
        ),
    ],
)
def test_a_trace_that_has_no_value_is_refused(change: dict, complaint: str) -> None:
    trace = play(runs_of("hasty", 1, 4), seed=0)[0]
    assert trace.outcome.status == "completed"
    with pytest.raises(PRMError, match=complaint):
        annotate(msgspec.structs.replace(trace, **change))


def test_a_belief_or_a_budget_of_another_game_is_refused() -> None:
    solution = solve(CONFIG, 2)
    for belief, left in ((Belief((), (0.3,)), 5), (Belief(), 41), (Belief(), -1)):
        with pytest.raises(PRMError, match="expected a belief of this configuration"):
            solution.v(belief, left)
    with pytest.raises(PRMError, match="turns <= as_if"):
        solution.success(9, as_if=8)
