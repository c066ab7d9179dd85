"""What a potential does to the variance of advantages, on desk, where the true value is known.

    python eval/bench/shaping_variance.py [--tasks 300] [--samples 16] [--resamples 2000] [--seed 1]

Scripted agents play groups of episodes of the same task, under a budget of 1.5 times the shortest
episode. The advantage is that of mode ``baseline``: (outcome - w Φ_i) - its mean over the episodes
of the group that have a step i; at w = 0 that is outcome only. Its variance is its mean square over
all steps of all groups. Potentials:

* *true value*: V of the exact solution, which is P(success) from here under optimal play: the value
  of agent ``optimal`` itself, and that of a better agent for the others;
* *random*: a uniform number in [0, 1] for each value and number of turns left, a function of the
  state that knows nothing.

A ratio to outcome only is a quadratic in w, so its least value and where it lies are exact.
Intervals are BCa, by bootstrap of tasks.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from prm.data.trace import Trace
from prm.eval.bootstrap import combined, resample_means
from prm.eval.intervals import bca
from prm.eval.steps import Floats
from prm.rl.desk.play import Run, annotate, play
from prm.rl.desk.world import MAX_TURNS, DeskConfig, budgets, desk_tasks
from prm.shaping.advantages import shaped_advantages
from prm.shaping.config import ShapingConfig

AGENTS = ("optimal", "optimal-slips", "hint-reader", "careful")
BUDGET = 2
"""Column of the budget grid: 1.5 times the shortest episode."""
POTENTIALS = ("true value", "random")
WEIGHTS = (1.0, 0.5, 0.1)
TASKS, SAMPLES, RESAMPLES, SEED = 300, 16, 2000, 1


READING = (
    "* The random potential is not free: numbers that know nothing add w² times their own variance "
    "to that of the advantage. They do not bend the gradient (above), they drown it. A quarter of "
    "the weight costs a sixteenth.",
    "* The last column is the weight that a control variate would be given, from the same data: "
    "about 1 for a value that is calibrated, about 0 for one that knows nothing. It tells which of "
    "the two a model is, before anything is trained with it.",
    "* A value removes what is known before the step. What the step itself and the luck after it "
    "decide remains, which is most of the variance in every row.",
)


class Variance(NamedTuple):
    """One agent, one potential: variance of the advantage over that of outcome only."""

    agent: str
    potential: str
    success: float
    outcome_only: float
    """Mean square of the advantage at w = 0."""
    ratio: Floats
    """(weights,) at WEIGHTS."""
    low: Floats
    high: Floats
    best_weight: float
    """Where the ratio is least, and its value there."""
    best_ratio: float


class Group(NamedTuple):
    """Episodes as arrays: (B,) and (B, S), state arrays (B, S+1)."""

    task: np.ndarray
    outcome: Floats
    step_mask: np.ndarray
    potentials: dict[str, Floats]


def episodes(agent: str, tasks: int, samples: int, seed: int) -> list[Trace]:
    """``samples`` annotated episodes of each task, those of a task side by side."""
    config = DeskConfig()
    runs = [
        Run(task, agent, budgets(config, task.hops)[BUDGET], sample)
        for task in desk_tasks(tasks, seed=seed, split="validation")
        for sample in range(samples)
    ]
    return [annotate(trace) for trace in play(runs, seed=seed)]


def grouped(traces: list[Trace], samples: int, rng: np.random.Generator) -> Group:
    """The traces as padded arrays, with both potentials."""
    steps = np.array([trace.n_steps for trace in traces])
    value = np.full((len(traces), steps.max() + 1), np.nan)
    for row, trace in enumerate(traces):
        value[row, : steps[row] + 1] = np.array(trace.state_labels["v"], dtype=np.float64)
    limits = np.array([trace.outcome.max_turns or 0 for trace in traces])
    left = limits[:, None] - np.arange(steps.max() + 1)
    values, index = np.unique(value, return_inverse=True)
    random = rng.random((len(values), MAX_TURNS + 1))[index.reshape(value.shape), left]
    return Group(
        task=np.arange(len(traces)) // samples,
        outcome=np.array([float(trace.outcome.success is True) for trace in traces]),
        step_mask=np.arange(steps.max()) < steps[:, None],
        potentials={"true value": value, "random": np.where(np.isnan(value), np.nan, random)},
    )


def advantages(group: Group, potential: str, weight: float) -> Floats:
    """(B, S) of mode ``baseline``."""
    return np.asarray(
        shaped_advantages(
            ShapingConfig(mode="baseline", process_weight=weight),
            state_scores=group.potentials[potential],
            terminal_reward=group.outcome,
            terminated=np.ones(len(group.task), np.bool_),
            step_mask=group.step_mask,
            group=group.task,
        )
    )


def measure(agent: str, tasks: int, samples: int, resamples: int, seed: int) -> list[Variance]:
    """One :class:`Variance` for each potential."""
    rng = np.random.default_rng(seed)
    group = grouped(episodes(agent, tasks, samples, seed), samples, rng)
    found = []
    for potential in POTENTIALS:
        shifted = [advantages(group, potential, weight) for weight in (0.0, *WEIGHTS)]
        squares = np.stack([(one**2).sum(axis=1) for one in shifted], axis=1)
        by_task = squares.reshape(tasks, samples, -1).sum(axis=1)
        (means,) = resample_means([by_task[None]], resamples=resamples, rng=rng)
        ratio = combined(lambda mean: mean[..., 1:] / mean[..., :1], means)
        low, high = bca(ratio)
        potential_part = shifted[0] - shifted[1]  # WEIGHTS starts with 1
        covariance = (shifted[0] * potential_part).sum()
        best = covariance / (potential_part**2).sum()
        found.append(
            Variance(
                agent,
                potential,
                success=float(group.outcome.mean()),
                outcome_only=float(squares[:, 0].sum() / group.step_mask.sum()),
                ratio=ratio.value,
                low=low,
                high=high,
                best_weight=float(best),
                best_ratio=float(1 - best * covariance / squares[:, 0].sum()),
            )
        )
    return found


def report(tasks: int, samples: int, resamples: int, seed: int) -> str:
    """The table in Markdown, with what was required and how it came out."""
    found = [one for agent in AGENTS for one in measure(agent, tasks, samples, resamples, seed)]
    columns = " | ".join(f"w = {weight:g}" for weight in WEIGHTS)
    lines = [
        "## The variance of advantages",
        "",
        f"Variance of the advantage under `baseline` over that of outcome only, on desk: {tasks} "
        f"tasks x {samples} episodes, budget 1.5 x the shortest episode, [95 % BCa intervals by "
        "task].",
        "",
        f"| agent | success | outcome only | potential | {columns} | least, at w |",
        "|---|---|---|---|" + "---|" * len(WEIGHTS) + "---|",
    ]
    for one in found:
        cells = [
            f"{ratio:.3f} [{low:.3f}, {high:.3f}]"
            for ratio, low, high in zip(one.ratio, one.low, one.high, strict=True)
        ]
        lines.append(
            f"| {one.agent} | {one.success:.3f} | {one.outcome_only:.4f} | {one.potential} | "
            f"{' | '.join(cells)} | {one.best_ratio:.3f}, {one.best_weight:.2f} |"
        )
    lines += ["", *_verdicts(found), "", *READING, "", "```"]
    command = "python eval/bench/shaping_variance.py"
    lines += [
        f"{command} --tasks {tasks} --samples {samples} --resamples {resamples} --seed {seed}",
        "```",
        "",
    ]
    return "\n".join(lines)


def _verdicts(found: list[Variance]) -> list[str]:
    """What was required, and for how many agents it came out so."""
    lines = []
    for column, weight in enumerate(WEIGHTS):
        lower = [one.high[column] < 1 for one in found if one.potential == "true value"]
        no_worse = [one.low[column] <= 1 for one in found if one.potential == "random"]
        lines.append(
            f"* w = {weight:g}: required of the true value, lower than outcome only: "
            f"{_met(lower)}; of the random one, not higher by more than the sampling error: "
            f"{_met(no_worse)}."
        )
    return lines


def _met(held: list[bool]) -> str:
    return "met" if all(held) else f"NOT met ({sum(held)} of {len(held)} agents)"


def main() -> None:
    parser = argparse.ArgumentParser(description="Variance of advantages on desk.")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--resamples", type=int, default=RESAMPLES)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    print(report(args.tasks, args.samples, args.resamples, args.seed))


if __name__ == "__main__":
    main()
