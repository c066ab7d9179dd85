"""What shaping does to the expected policy gradient, by enumeration: nothing is sampled.

    python eval/bench/shaping_gradient.py [--seeds 200]

A small agent takes at most three turns: stop, good or bad. It ends by stopping, or with its third
turn: the turn limit is part of the task, so every end is a true one. Its policy is a softmax with
one row of logits for each history, drawn at random like P(success) of each end, the potential of
each history (ends included) and the score of each action: what the scores say is arbitrary.

**The trick.** Action probabilities are drawn as multiples of 1/10. So a group of 1,000 traces holds
each of the 15 possible traces exactly as often as it is likely, and the mean over that group of
Σ_i A_i ∇ log π(a_i | s_i), with the advantages A of the library, is the expected policy gradient in
the limit of infinite groups, to rounding. The truth comes from another way: ∂E[R]/∂logit(s, a) =
P(s) π(a | s) (Q(s, a) - V(s)) (Sutton et al. 2000), by backward recursion over the histories.

**Cuts.** The same agent, but the collector stops each trace after two turns, whatever the agent
wanted: the traces that stopped before ended by themselves, the others are cut. If what the
potential pays at the cut, w Φ, is the true value there, a trace that keeps it has the gradient of
the uncut task (for the turns that were seen), whatever the potential says elsewhere; zeroed, the
agent learns to hurry. In general the gradient is that of a task in which a cut trace is worth
w Φ(last state): keeping the potential is a claim about what was cut off, so it can mislead there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from prm.shaping.advantages import Estimator, group_advantages, shaped_advantages
from prm.shaping.config import Mode, Normalise, ShapingConfig

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

STOP, GOOD, BAD = range(3)
TURNS = 3
GRAIN = 10
"""Action probabilities are multiples of 1 / GRAIN."""
WEIGHTS = (0.1, 1.0, 5.0)
LAMBDAS = (1.0, 0.95, 0.9, 0.5, 0.0)
TURN_REWARD = 0.5
"""Paid for each turn but a stop, where estimators are compared on rewards inside the trace."""
KEEPING: tuple[Mode, ...] = ("terminal", "potential", "baseline", "critic")
CHANGING: tuple[Mode, ...] = ("progress", "sum", "clip", "delta", "clip_delta", "min_form")
SEEDS = 200
ANY_SCORE = (-1e3, 1e3)


READING = (
    "* `potential`, `baseline` and `critic` at λ = 1 keep the gradient whatever the scores say. "
    "Normalised by group they do so in this limit; in a small group a trace is divided by a "
    "deviation that contains it.",
    "* A turn limit that belongs to the task is a true end. Taken for a cut, a trace that ran out "
    "of turns is paid w Φ of where it stood.",
    "* Keeping the potential at a cut is a claim about what was cut off: right if w Φ is the value "
    "there, misleading if not. `baseline` makes no such claim and takes a cut trace at its reward, "
    "so scores cannot mislead it; neither can they repair the cut.",
    "* Rewards inside the trace (0.5 for each turn but a stop) keep their gradient under the alive "
    "mean, the trace mean and GiGPO with the history as anchor. Centring rewards instead of "
    "returns, over all steps or at each index, subtracts more from longer traces.",
    "* Under `outcome` potential shaping does not mislead because it cancels: all traces of a "
    "group begin in the same state.",
)


class Agent(NamedTuple):
    """A random agent and task, of at most D turns. H histories, those before a turn first."""

    histories: list[tuple[int, ...]]
    """(H,) the actions so far."""
    policy: Floats
    """(U, 3) action probabilities in the U histories in which the agent acts."""
    reward: Floats
    """(H,) P(success) of each history as an end, a multiple of 1 / GRAIN."""
    potential: Floats
    """(H,) in [0, 1], arbitrary."""
    scores: Floats
    """(U, 3) in [0, 1], of each action, arbitrary."""


class Traces(NamedTuple):
    """A group of B traces that holds each possible trace as often as it is likely."""

    state: Ints
    """(B, S+1) the history before each step, and after the last one; 0 at padding."""
    action: Ints
    """(B, S)"""
    step_mask: Bools
    """(B, S)"""
    last: Ints
    """(B,) the history at the end."""


def histories_of(turns: int) -> list[tuple[int, ...]]:
    """All sequences of actions; those after which the agent acts come first, by their length."""
    acting: list[tuple[int, ...]] = [()]
    for history in acting:
        if len(history) < turns - 1:
            acting += [(*history, action) for action in (GOOD, BAD)]
    after = [(*history, action) for history in acting for action in range(3)]
    return acting + [history for history in after if history not in set(acting)]


def agent_of(seed: int) -> Agent:
    """An agent drawn at random."""
    rng = np.random.default_rng(seed)
    histories = histories_of(TURNS)
    acting = 2**TURNS - 1
    policy = (1 + rng.multinomial(GRAIN - 3, [1 / 3] * 3, size=acting)) / GRAIN
    return Agent(
        histories,
        policy,
        reward=rng.integers(GRAIN + 1, size=len(histories)) / GRAIN,
        potential=rng.random(len(histories)),
        scores=rng.random((acting, 3)),
    )


def after(agent: Agent) -> Ints:
    """(U, 3) the history that each action leads to."""
    places = {history: place for place, history in enumerate(agent.histories)}
    acting = agent.histories[: len(agent.policy)]
    return np.array([[places[*history, action] for action in range(3)] for history in acting])


def cut(agent: Agent, turns: int = TURNS - 1) -> Agent:
    """The agent whose traces are cut after ``turns`` turns, with nothing paid for a cut trace."""
    histories = histories_of(turns)
    acting = 2**turns - 1
    kept = [agent.histories.index(history) for history in histories]
    was_cut = [place < len(agent.policy) for place in kept[acting:]]
    reward = agent.reward[kept]
    reward[acting:][was_cut] = 0
    return Agent(
        histories, agent.policy[:acting], reward, agent.potential[kept], agent.scores[:acting]
    )


def values_of(agent: Agent, turn_reward: float = 0.0, gamma: float = 1.0) -> tuple[Floats, Floats]:
    """Q (U, 3) and V (H,) of the policy, 0 after the end, by backward recursion."""
    following = after(agent)
    acting = len(agent.policy)
    q, v = np.zeros((acting, 3)), np.zeros(len(agent.histories))
    paid = np.array([0.0, turn_reward, turn_reward])
    for history in reversed(range(acting)):
        onward = following[history]
        ends = onward >= acting
        q[history] = paid + np.where(ends, agent.reward[onward], gamma * v[onward])
        v[history] = agent.policy[history] @ q[history]
    return q, v


def true_gradient(agent: Agent, turn_reward: float = 0.0, gamma: float = 1.0) -> Floats:
    """(U, 3) gradient of the expected return by the logits."""
    q, v = values_of(agent, turn_reward, gamma)
    acting = len(agent.policy)
    prob = np.zeros(len(agent.histories))
    prob[0] = 1
    for history, onward in enumerate(after(agent)):
        prob[onward] = prob[history] * agent.policy[history]
    turns = [len(history) for history in agent.histories[:acting]]
    visits = prob[:acting] * gamma ** np.array(turns)
    return visits[:, None] * agent.policy * (q - v[:acting, None])


def traces_of(agent: Agent) -> Traces:
    """The group; its size is GRAIN to the power of the most turns."""
    places = {history: place for place, history in enumerate(agent.histories)}
    acting = len(agent.policy)
    ends = agent.histories[acting:]
    steps = max(map(len, ends))
    n = len(ends)
    state, action = np.zeros((n, steps + 1), dtype=np.int64), np.zeros((n, steps), dtype=np.int64)
    prob = np.ones(n)
    for row, end in enumerate(ends):
        action[row, : len(end)] = end
        state[row, : len(end) + 1] = [places[end[:turn]] for turn in range(len(end) + 1)]
        for turn, taken in enumerate(end):
            prob[row] *= agent.policy[state[row, turn], taken]
    length = np.array([len(end) for end in ends])
    times = np.rint(prob * GRAIN**steps).astype(np.int64)
    assert times.sum() == GRAIN**steps
    rows = np.repeat(np.arange(n), times)
    return Traces(
        state[rows],
        action[rows],
        np.arange(steps) < length[rows, None],
        acting + rows,
    )


def gradients(agent: Agent, traces: Traces, advantages: Floats, gamma: float = 1.0) -> Floats:
    """(B, U, 3) the policy gradient of each trace of the group, step i discounted by γ^i."""
    n_traces, steps = traces.action.shape
    state = traces.state[:, :-1]
    score = np.eye(3)[traces.action] - agent.policy[np.where(traces.step_mask, state, 0)]
    score *= (traces.step_mask * advantages * gamma ** np.arange(steps))[..., None]
    found = np.zeros((n_traces, len(agent.policy), 3))
    rows = np.arange(n_traces)
    for step in range(steps):
        there = traces.step_mask[:, step]
        np.add.at(found, (rows[there], state[there, step]), score[there, step])
    return found


def shaped(
    agent: Agent,
    traces: Traces,
    config: ShapingConfig,
    *,
    potential: Floats | None = None,
    terminated: Bools | None = None,
    outcome: Floats | None = None,
) -> Floats:
    """(B, S) the library's advantages.

    Unless said otherwise the potential is the arbitrary one, every end is a true one, and the
    outcome is its expectation.
    """
    potential = agent.potential if potential is None else potential
    state = traces.state[:, :-1]
    return np.asarray(
        shaped_advantages(
            config,
            action_scores=agent.scores[np.where(traces.step_mask, state, 0), traces.action],
            state_scores=potential[traces.state],
            terminal_reward=agent.reward[traces.last] if outcome is None else outcome,
            terminated=np.ones(len(traces.last), bool) if terminated is None else terminated,
            step_mask=traces.step_mask,
            group=np.zeros(len(traces.last), np.int64),
        )
    )


def rewarded(
    agent: Agent, traces: Traces, estimator: Estimator, step_rewards: Floats | None = None
) -> Floats:
    """(B, S) advantages of step rewards (TURN_REWARD a turn if None) and the outcome."""
    if step_rewards is None:
        step_rewards = TURN_REWARD * (traces.action != STOP) * traces.step_mask
    length = traces.step_mask.sum(axis=1)
    rewards = step_rewards.copy()
    rewards[np.arange(len(length)), length - 1] += agent.reward[traces.last]
    return np.asarray(
        group_advantages(
            rewards,
            traces.step_mask,
            np.zeros(len(length), np.int64),
            estimator=estimator,
            anchor=traces.state[:, :-1] if estimator == "gigpo" else None,
        )
    )


def cosine(a: Floats, b: Floats) -> float:
    """Of two arrays of numbers."""
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


Table = dict[str, dict[str, float]]
"""Rows of columns."""

OVER_WEIGHT = "Modes, over the process weight w"
OVER_LAMBDA = "Critic at w = 1, over λ"
OVER_ESTIMATOR = "Estimators of a group"
OVER_CUT = "Traces cut after two turns, over w"


def cosines(seed: int) -> dict[str, Table]:
    """Cosine of the expected gradient with the true one, for one random agent, as four tables."""
    agent = agent_of(seed)
    traces = traces_of(agent)
    truth = true_gradient(agent)

    def of(advantages: Floats, target: Floats = truth) -> float:
        return cosine(gradients(agent, traces, advantages).mean(axis=0), target)

    def row(
        mode: Mode, normalise: Normalise = "none", terminated: Bools | None = None
    ) -> dict[str, float]:
        found = {}
        for weight in WEIGHTS:
            config = ShapingConfig(mode=mode, process_weight=weight, normalise=normalise)
            found[f"w = {weight:g}"] = of(shaped(agent, traces, config, terminated=terminated))
        return found

    stopped = np.array([history[-1:] == (STOP,) for history in agent.histories])[traces.last]
    over_weight: Table = {mode: row(mode) for mode in KEEPING}
    over_weight |= {
        "potential, normalised by group": row("potential", "group"),
        "potential, no end zeroed": row("potential", terminated=np.zeros_like(stopped)),
        "potential, the turn limit taken for a cut": row("potential", terminated=stopped),
    }
    over_weight |= {mode: row(mode) for mode in CHANGING}

    _, value = values_of(agent)
    over_lambda = {
        name: {
            f"λ = {lam:g}": of(
                shaped(agent, traces, ShapingConfig(mode="critic", lam=lam), potential=potential)
            )
            for lam in LAMBDAS
        }
        for name, potential in (("true value", value), ("arbitrary value", agent.potential))
    }

    paid = true_gradient(agent, TURN_REWARD)
    potential_rewards = np.where(traces.step_mask, np.diff(agent.potential[traces.state]), 0.0)
    last = np.arange(len(traces.last)), traces.step_mask.sum(axis=1) - 1
    potential_rewards[last] = -agent.potential[traces.state[last]]
    over_estimator = {
        name: {
            f"{TURN_REWARD:g} a turn": of(rewarded(agent, traces, name), paid),
            "potential, w = 1": of(rewarded(agent, traces, name, potential_rewards)),
        }
        for name in get_args(Estimator)
    }
    return {
        OVER_WEIGHT: over_weight,
        OVER_LAMBDA: over_lambda,
        OVER_ESTIMATOR: over_estimator,
        OVER_CUT: dict(_cuts(agent, value)),
    }


def _cuts(agent: Agent, value: Floats) -> Iterator[tuple[str, dict[str, float]]]:
    """The cosines with the true gradient of the uncut task, for the turns before the cut."""
    short = cut(agent)
    traces = traces_of(short)
    truth = true_gradient(agent)[: len(short.policy)]
    value = np.array([value[agent.histories.index(history)] for history in short.histories])
    ended = np.array([history[-1:] == (STOP,) for history in short.histories])[traces.last]

    def row(mode: Mode, terminated: Bools, *, truthful: bool) -> dict[str, float]:
        found = {}
        for weight in WEIGHTS:
            config = ShapingConfig(mode=mode, process_weight=weight, score_range=ANY_SCORE)
            potential = short.potential.copy()
            if truthful:
                potential[len(short.policy) :] = value[len(short.policy) :] / weight
            advantages = shaped(short, traces, config, potential=potential, terminated=terminated)
            mean = gradients(short, traces, advantages).mean(axis=0)
            found[f"w = {weight:g}"] = cosine(mean, truth)
        return found

    all_ended = np.ones_like(ended)
    yield "potential, w Φ true at the cut", row("potential", ended, truthful=True)
    yield "critic, w Φ true at the cut", row("critic", ended, truthful=True)
    yield "potential, arbitrary at the cut", row("potential", ended, truthful=False)
    yield "potential, the cut zeroed", row("potential", all_ended, truthful=True)
    yield "baseline (a cut is worth its reward, 0)", row("baseline", ended, truthful=True)


def gradient_variance(seed: int) -> dict[str, float]:
    """Total variance of the gradient of one trace over that of outcome only, exact, one agent.

    Outcomes are 0 or 1 here: each trace of the group is there GRAIN times, with its share of wins.
    """
    agent = agent_of(seed)
    traces = traces_of(agent)
    n_traces = len(traces.last)
    traces = Traces._make(np.repeat(array, GRAIN, axis=0) for array in traces)
    wins = np.rint(GRAIN * agent.reward[traces.last])
    outcome = (np.tile(np.arange(GRAIN), n_traces) < wins).astype(np.float64)
    _, value = values_of(agent)

    def variance(weight: float, potential: Floats) -> float:
        config = ShapingConfig(mode="baseline", process_weight=weight)
        advantages = shaped(agent, traces, config, potential=potential, outcome=outcome)
        return float(gradients(agent, traces, advantages).var(axis=0).sum())

    unshaped = variance(0.0, value)
    found = {"true value, w = 1": variance(1.0, value) / unshaped}
    for weight in (1.0, 0.5, 0.1):
        found[f"arbitrary, w = {weight:g}"] = variance(weight, agent.potential) / unshaped
    return found


def report(seeds: int) -> str:
    """The tables in Markdown: median over random agents, and 5th to 95th percentile."""
    found = [cosines(seed) for seed in range(seeds)]
    variances = [{"": gradient_variance(seed)} for seed in range(seeds)]
    lines = [
        "## The expected gradient",
        "",
        f"Cosine of the expected policy gradient with the true one, for {seeds} random agents with "
        "arbitrary scores (three turns; stop, good or bad): median (5th to 95th percentile), and "
        "**1.0000** where it is 1 to nine digits for every one of them. Nothing is sampled, groups "
        "are infinite: see the header of `eval/bench/shaping_gradient.py`.",
        "",
    ]
    for name in found[0]:
        lines += [f"**{name}**", "", *_table([tables[name] for tables in found]), ""]
    lines += [
        "**Variance of the gradient of one trace** under `baseline`, over that of outcome only, "
        f"with outcomes of 0 and 1 (the same {seeds} agents, exact)",
        "",
        "| " + " | ".join(variances[0][""]) + " |",
        "|" + "---|" * len(variances[0][""]),
        "| " + " | ".join(_cells(variances, "")) + " |",
        "",
        *READING,
        "",
        "```",
        f"python eval/bench/shaping_gradient.py --seeds {seeds}",
        "```",
        "",
    ]
    return "\n".join(lines)


def _table(found: list[Table]) -> list[str]:
    columns = list(next(iter(found[0].values())))
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    return lines + [f"| {row} | {' | '.join(_cells(found, row))} |" for row in found[0]]


def _cells(found: list[Mapping[str, dict[str, float]]] | list[Table], row: str) -> list[str]:
    cells = []
    for column in found[0][row]:
        values = np.array([table[row][column] for table in found])
        low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
        exact = np.abs(values - 1).max() < 1e-9
        cells.append("**1.0000**" if exact else f"{middle:.3f} ({low:.3f} to {high:.3f})")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description="Expected policy gradients, by enumeration.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="random agents")
    print(report(parser.parse_args().seeds))


if __name__ == "__main__":
    main()
