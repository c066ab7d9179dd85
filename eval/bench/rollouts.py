"""Throughput of roll_out against Hugging Face's generate, on desk, with the same policy.

    python eval/bench/rollouts.py [--policy FOLDER] [--rollouts 64 256 512] [--turns 14]

Groups of 8 rollouts of a task, with the same budget T and the same luck in the environment.

* roll_out: one cache of keys and values for the whole episode, so every token is read once.
* generate, batched: turn by turn for all episodes that are going on, padded on the left, with a
  cache within the turn. What came before the turn is read again.
* generate, one by one: the same with a single episode, timed on a few and scaled.

All draw from the same distribution (temperature 1, no top-k, no top-p), with uniforms of their own,
so rates of success may differ by chance only; the difference is given with its interval, over
tasks. One process; every round takes a turn of each, the first round, a small one, warms up, and
the median of the others is reported.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import transformers

from prm.data.trace import Message
from prm.eval.bootstrap import Resampled, combined, resample_means
from prm.eval.intervals import bca, exact_where_all_agree, max_t_band
from prm.eval.steps import Floats
from prm.rl.desk.environment import Desk
from prm.rl.desk.policy import Policy, PolicyConfig, load_policy, teach
from prm.rl.desk.world import Task, desk_tasks
from prm.rl.rollout import roll_out
from prm.rl.rollout_record import SamplingConfig, Start

GROUP = 8
SAMPLING = SamplingConfig(temperature=1.0, max_step_tokens=16, max_tokens=1024)
BRIEFLY = PolicyConfig(steps=60, n_tasks=300)
"""How a policy is taught where none is given: it writes calls, and fails."""
ONE_BY_ONE = 8
"""Rollouts that are timed one by one."""
RESAMPLES = 10_000


class Played(NamedTuple):
    """B rollouts."""

    rewards: Floats
    """(B,)"""
    written: int
    """Tokens that the policy wrote."""
    turns: int
    seconds: float = float("nan")


Play = Callable[[Policy, Sequence[Start[Task]], int], Played]


def by_roll_out(policy: Policy, starts: Sequence[Start[Task]], seed: int) -> Played:
    """The library."""
    found = roll_out(policy.model, policy.dialogue, Desk(), starts, sampling=SAMPLING, seed=seed)
    return Played(
        np.array([rollout.rewards.sum() for rollout in found]),
        sum(int(rollout.token_mask.sum()) for rollout in found),
        sum(rollout.trace.n_steps for rollout in found),
    )


def by_generate(policy: Policy, starts: Sequence[Start[Task]], seed: int) -> Played:
    """Turn by turn, all episodes that are going on in one call of ``generate``."""
    torch.manual_seed(seed)
    dialogue, desk = policy.dialogue, Desk()
    tasks, limits, samples = zip(*starts, strict=True)
    prompts, tools = desk.reset(tasks, limits, samples)
    ids = [dialogue.prompt(messages, tools) for messages in prompts]
    going_on, rewards = list(range(len(starts))), np.zeros(len(starts))
    written = turns = 0
    for turn in range(max(limits)):
        if not going_on:
            break
        actions: list[Message | None] = [None] * len(starts)
        steps = generated(policy, [ids[index] for index in going_on])
        for index, step in zip(going_on, steps, strict=True):
            ids[index] += step
            actions[index] = dialogue.parse(step, turn)
        written, turns = written + sum(map(len, steps)), turns + len(steps)
        transition = desk.step(actions)
        rewards += transition.rewards
        ended = transition.terminated | transition.truncated
        going_on = [index for index in going_on if not ended[index]]
        for index in going_on:
            stopped = ids[index][-1] in dialogue.stop_ids
            ids[index] += dialogue.follow(transition.observations[index], stopped=stopped)
    return Played(rewards, written, turns)


def generated(policy: Policy, histories: Sequence[Sequence[int]]) -> list[list[int]]:
    """A step for each history, up to and with its stop token."""
    pad, stops = policy.dialogue.pad_id, policy.dialogue.stop_ids
    width = max(map(len, histories))
    ids = torch.tensor([[*[pad] * (width - len(own)), *own] for own in histories])
    mask = torch.tensor([[*[0] * (width - len(own)), *[1] * len(own)] for own in histories])
    found = policy.model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        temperature=SAMPLING.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=SAMPLING.max_step_tokens,
        eos_token_id=sorted(stops),
        pad_token_id=pad,
    )
    steps = []
    for row in found[:, width:].tolist():
        ends = [place for place, token in enumerate(row) if token in stops]
        steps.append(row[: ends[0] + 1] if ends else row)
    return steps


def one_by_one(policy: Policy, starts: Sequence[Start[Task]], seed: int) -> Played:
    """The same, with one episode after another."""
    parts = [by_generate(policy, [start], seed + row) for row, start in enumerate(starts)]
    return Played(
        np.concatenate([part.rewards for part in parts]),
        sum(part.written for part in parts),
        sum(part.turns for part in parts),
    )


WAYS: dict[str, Play] = {
    "roll_out": by_roll_out,
    "generate, batched": by_generate,
    "generate, one by one": one_by_one,
}


def measure(policy: Policy, starts: Sequence[Start[Task]], repeats: int) -> dict[str, list[Played]]:
    """``repeats`` times all rollouts in every way; one by one only a few of them."""
    found: dict[str, list[Played]] = {name: [] for name in WAYS}
    for seed in range(repeats):
        for name, play in WAYS.items():
            some = starts[:ONE_BY_ONE] if play is one_by_one else starts
            began = time.perf_counter()
            played = play(policy, some, seed)
            found[name].append(played._replace(seconds=time.perf_counter() - began))
    return found


def rates(played: Sequence[Played]) -> tuple[float, float]:
    """Rollouts and written tokens per second, each the median over the repeats."""
    return (
        statistics.median(len(one.rewards) / one.seconds for one in played),
        statistics.median(one.written / one.seconds for one in played),
    )


def speed_rows(found: dict[str, list[Played]], n_rollouts: int) -> list[str]:
    """A row of the table for every way."""
    ours = rates(found["roll_out"])
    lines = []
    for name, played in found.items():
        own = rates(played)
        seconds = statistics.median(one.seconds for one in played)
        scaled = n_rollouts / len(played[0].rewards)
        lines.append(
            f"| {n_rollouts} | {name} | {scaled * seconds:.2f}{' (scaled)' if scaled > 1 else ''} "
            f"| {own[0]:.0f} | {own[1]:.0f} | {ours[0] / own[0]:.1f} | {ours[1] / own[1]:.1f} |"
        )
    return lines


def success_lines(found: dict[str, list[Played]], rng: np.random.Generator) -> list[str]:
    """The rate of success of both, and of their difference, with intervals over tasks."""
    names = ("roll_out", "generate, batched")
    by_task = [
        np.stack([one.rewards.reshape(-1, GROUP) for one in found[name]], axis=1).mean(axis=(1, 2))
        for name in names
    ]
    drawn = resample_means([one[None, :, None] for one in by_task], resamples=RESAMPLES, rng=rng)
    n_rollouts = sum(len(one.rewards) for one in found[names[0]])
    lines = [
        f"Success of {n_rollouts} rollouts each of {len(by_task[0])} tasks, [95 % intervals over "
        f"tasks]:",
        "",
    ]
    for name, one in zip(names, drawn, strict=True):
        low, high = exact_where_all_agree(*bca(one), one.value, np.array([len(by_task[0])]))
        lines.append(f"* {name}: {one.value[0]:.3f} [{low[0]:.3f}, {high[0]:.3f}]")
    return [*lines, f"* {_difference(combined(np.subtract, *drawn))}"]


def _difference(difference: Resampled) -> str:
    band = max_t_band(difference)
    value, low, high = difference.value[0], band.low[0], band.high[0]
    if np.isnan(low):
        return f"difference: {value:+.3f}, without an interval: it is the same on all tasks"
    holds = "holds 0" if low <= 0 <= high else "does NOT hold 0"
    return f"difference: {value:+.3f} [{low:+.3f}, {high:+.3f}], which {holds}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput of roll_out against generate.")
    parser.add_argument("--policy", help="folder of save_policy; else one is taught for a moment")
    parser.add_argument("--rollouts", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--turns", type=int, default=14, help="the budget T")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    if min(asked.rollouts) < GROUP or any(n % GROUP for n in asked.rollouts) or asked.repeats < 1:
        parser.error(f"expected rollouts in groups of {GROUP}, and a repeat at least")
    torch.set_num_threads(asked.threads)
    policy = load_policy(asked.policy) if asked.policy else teach(BRIEFLY)
    tasks = desk_tasks(max(asked.rollouts) // GROUP, 0, "validation")
    starts = [Start(task, asked.turns, sample) for task in tasks for sample in range(GROUP)]
    before = os.getloadavg()
    measure(policy, starts[:GROUP], 1)
    found = {n: measure(policy, starts[:n], asked.repeats) for n in sorted(asked.rollouts)}
    load = " and ".join(f"{value:.1f}" for value in (before[0], os.getloadavg()[0]))
    most = max(found)
    per_rollout = statistics.mean(one.turns for one in found[most]["roll_out"]) / most
    print(
        f"Desk at T = {asked.turns}, {per_rollout:.1f} turns a rollout; a policy of "
        f"{policy.model.num_parameters() / 1e6:.2f} M parameters, "
        f"{'trained' if asked.policy else 'hardly taught: it fails'}; median of {asked.repeats}\n"
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}; {asked.threads} threads, {os.cpu_count()} cores, load "
        f"{load} (1 min, before and after)\n\n"
        "| rollouts | | s | rollouts a second | written tokens a second | roll_out, × rollouts "
        "a second | roll_out, × tokens a second |\n|---|---|---|---|---|---|---|"
    )
    for n, played in found.items():
        print("\n".join(speed_rows(played, n)))
    print("\n" + "\n".join(success_lines(found[most], np.random.default_rng(0))))


if __name__ == "__main__":
    main()
