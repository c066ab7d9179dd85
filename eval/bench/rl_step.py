"""The time of one GRPO step on desk: sampling, scoring, update.

    python eval/bench/rl_step.py [--policy FOLDER] [--rollouts 512] [--at-once 64] [--steps 5]

Groups of 8 rollouts of a task, all with the same budget T, are sampled together, scored, and
learned from in batches of ``--at-once``, whose gradients are summed.

* bare loop: ``roll_out``, batches padded on the right, which need no mask, the policy gradient of
  outcome minus mean of the group, AdamW. No TRL.
* stock: TRL's ``GRPOTrainer`` with ``EnvironmentRollouts`` as its ``rollout_func``.
* ours: ``StepGRPOTrainer``, on the outcome alone, with step scores that cost nothing, and with
  those of a step reward model of the size of ``training/desk.yaml``, with random weights.

One process; every round takes one step of each, the first round warms up, and the median of the
others is reported. All play the same tasks with the same network, and with learning rate 0, so
that it is the same policy throughout. *Update* is all that is neither sampling nor scoring. A
token of a rollout is read once in sampling and once in the update; time is divided by how many
there are, whoever wrote them, without padding.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
import trl
from torch.nn import functional
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from prm.data.trace import Trace, text_of
from prm.model.build import DecoderConfig, from_texts
from prm.model.config import StepRewardConfig
from prm.model.predict import TraceScores
from prm.rl.budgets import FixedBudget
from prm.rl.desk.environment import Desk
from prm.rl.desk.play import Run, play
from prm.rl.desk.policy import Policy, PolicyConfig, load_policy, teach
from prm.rl.desk.world import Task, desk_tasks
from prm.rl.rollout import roll_out
from prm.rl.rollout_record import Rollout, SamplingConfig, Start
from prm.rl.trl import EnvironmentRollouts, StepGRPOTrainer
from prm.rl.trl.rollouts import environment_reward
from prm.scoring.scorer import Scorer
from prm.shaping import ShapingConfig

GROUP = 8
SAMPLING = SamplingConfig(temperature=1.0, max_step_tokens=16, max_tokens=1024)
BRIEFLY = PolicyConfig(steps=60, n_tasks=300)
"""How a policy is taught where none is given: it writes calls, and fails."""


class Step(NamedTuple):
    """One step: its seconds, and what was sampled in it."""

    sampling: float
    scoring: float
    update: float
    tokens: int
    turns: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.sampling + self.scoring + self.update


TakeStep = Callable[[], Step]


def bare(policy: Policy, tasks: Sequence[Task], turns: int, at_once: int) -> TakeStep:
    """The loop without a trainer."""
    model = deepcopy(policy.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    starts = [Start(task, turns, sample) for task in tasks for sample in range(GROUP)]
    seeds = itertools.count()

    def step() -> Step:
        began = time.perf_counter()
        rollouts = roll_out(
            model, policy.dialogue, Desk(), starts, sampling=SAMPLING, seed=next(seeds)
        )
        sampled = time.perf_counter()
        model.train()
        n_written = sum(int(rollout.token_mask.sum()) for rollout in rollouts)
        for first in range(0, len(rollouts), at_once):
            loss = policy_gradient_loss(model, rollouts[first : first + at_once]) / n_written
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        ended = time.perf_counter()
        return Step(sampled - began, 0.0, ended - sampled, *sizes(rollouts))

    return step


def policy_gradient_loss(model: torch.nn.Module, rollouts: Sequence[Rollout]) -> torch.Tensor:
    """-Σ advantage · log-probability over all tokens that the policy wrote; groups are whole."""
    shape = len(rollouts), max(len(rollout.ids) for rollout in rollouts)
    ids, written = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
    for row, rollout in enumerate(rollouts):
        ids[row, : len(rollout.ids)] = torch.from_numpy(rollout.ids)
        written[row, : len(rollout.ids)] = torch.from_numpy(rollout.token_mask).float()
    outcomes = torch.tensor([rollout.rewards.sum() for rollout in rollouts]).view(-1, GROUP)
    advantages = (outcomes - outcomes.mean(dim=1, keepdim=True)).flatten().float()
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1] / SAMPLING.temperature
    losses = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * written[:, 1:] * advantages[:, None]).sum()


def sizes(rollouts: Sequence[Rollout]) -> tuple[int, int]:
    """Tokens and turns of all of them."""
    return sum(len(r.ids) for r in rollouts), sum(r.trace.n_steps for r in rollouts)


class Counted(EnvironmentRollouts[Task]):
    """Rollouts that say how large the last batch was."""

    last = (0, 0)

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """As it was, and counted."""
        found = super().__call__(prompts, trainer)
        self.last = sizes(found["rollout"])
        return found


class Stopwatch(TrainerCallback):
    """Times a step of a trainer from its first token to its update."""

    def __init__(self) -> None:
        self.seconds = self.scoring = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Before anything is sampled."""
        self._began = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """After the optimiser's step."""
        self.seconds = time.perf_counter() - self._began

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """The trainer times its scorer itself; TRL's has none."""
        self.scoring = kwargs["logs"].get("prm/seconds/scoring", self.scoring)


def trained(
    kind: type[GRPOTrainer],
    policy: Policy,
    tasks: Sequence[Task],
    turns: int,
    at_once: int,
    folder: str,
    **kwargs: Any,
) -> TakeStep:
    """A trainer that takes one step at a time."""
    rollouts = Counted(
        Desk(),
        policy.dialogue,
        tasks,
        FixedBudget(turns),
        max_step_tokens=SAMPLING.max_step_tokens,
        max_tokens=SAMPLING.max_tokens,
    )
    if kind is StepGRPOTrainer:
        kwargs["rollouts"] = rollouts
    else:
        kwargs |= {"rollout_func": rollouts, "train_dataset": rollouts.dataset()}
    watch = Stopwatch()
    args = GRPOConfig(
        folder,
        max_steps=1,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=GROUP * len(tasks) // at_once,
        num_generations=GROUP,
        learning_rate=0.0,
        temperature=SAMPLING.temperature,
        scale_rewards="none",
        loss_type="dr_grpo",
        max_completion_length=SAMPLING.max_tokens,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        activation_checkpointing=False,
        bf16=False,
        use_cpu=True,
        disable_tqdm=True,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using 'rollout_func'")
        trainer = kind(
            deepcopy(policy.model),
            args=args,
            processing_class=policy.dialogue.tokenizer,
            callbacks=[watch],
            **kwargs,
        )
    trainer.remove_callback(PrinterCallback)

    def step() -> Step:
        trainer.train()
        update = watch.seconds - rollouts.seconds - watch.scoring
        return Step(rollouts.seconds, watch.scoring, update, *rollouts.last)

    return step


def free_scores(traces: Sequence[Trace]) -> list[TraceScores]:
    """Scores that say how far an episode has come, and cost nothing."""
    return [
        TraceScores(np.linspace(0, 1, trace.n_steps), np.linspace(0, 1, trace.n_steps + 1))
        for trace in traces
    ]


def random_scorer(turns: int) -> Scorer:
    """A step reward model as ``training/desk.yaml`` makes it, before it is trained."""
    tasks = desk_tasks(200, 0, "train")
    texts = [
        text_of(message.get("content"))
        for trace in play([Run(task, "careful", turns) for task in tasks], seed=0)
        for message in trace.messages
    ]
    lengths = {"max_length": 1024, "max_task_tokens": 320}
    lengths |= {"max_action_tokens": 96, "max_observation_tokens": 96}
    decoder = DecoderConfig(layers=3, width=96, heads=3, vocabulary=1024)
    return Scorer(from_texts(texts, config=StepRewardConfig(encoding=lengths), decoder=decoder))


def arms(
    policy: Policy, tasks: Sequence[Task], turns: int, at_once: int, folder: str
) -> dict[str, TakeStep]:
    """What is compared, by its name; the trainers write to ``folder``."""
    given = (policy, tasks, turns, at_once)

    def ours(**kwargs: Any) -> TakeStep:
        return trained(StepGRPOTrainer, *given, folder, **kwargs)

    shaping, scorer = ShapingConfig(mode="baseline"), random_scorer(turns)
    size = scorer.model.num_parameters() / 1e6
    return {
        "bare loop": bare(*given),
        "stock": trained(GRPOTrainer, *given, folder, reward_funcs=environment_reward),
        "ours, outcome only": ours(shaping=ShapingConfig(mode="terminal")),
        "ours, free scores": ours(shaping=shaping, scorer=free_scores),
        f"ours, a step reward model of {size:.1f} M": ours(shaping=shaping, scorer=scorer),
    }


def measure(found: dict[str, TakeStep], steps: int) -> dict[str, list[Step]]:
    """``steps`` steps of each, by turns, after one that is not counted."""
    taken: dict[str, list[Step]] = {name: [] for name in found}
    for _ in range(1 + steps):
        for name, step in found.items():
            taken[name].append(step())
    return {name: own[1:] for name, own in taken.items()}


def report(taken: dict[str, list[Step]], rollouts: int) -> str:
    """The table in Markdown."""
    typical = {name: median_step(own) for name, own in taken.items()}
    lines = [
        "| | s a step | fastest – slowest | sampling | scoring | update | tokens a rollout "
        "| µs a token | × bare loop | × stock |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, step in typical.items():
        times = [one.seconds for one in taken[name]]
        lines.append(
            f"| {name} | {step.seconds:.2f} | {min(times):.2f} – {max(times):.2f} | "
            f"{step.sampling:.2f} | {step.scoring:.2f} | {step.update:.2f} | "
            f"{step.tokens / rollouts:.0f} | {1e6 * step.seconds / step.tokens:.1f} | "
            f"{step.seconds / typical['bare loop'].seconds:.2f} | "
            f"{step.seconds / typical['stock'].seconds:.2f} |"
        )
    return "\n".join(lines)


def median_step(steps: Sequence[Step]) -> Step:
    """The step whose seconds are the median, so that its parts add up."""
    return sorted(steps, key=lambda step: step.seconds)[(len(steps) - 1) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description="The time of one GRPO step on desk.")
    parser.add_argument("--policy", help="folder of save_policy; else one is taught for a moment")
    parser.add_argument("--rollouts", type=int, default=512, help=f"of a step; groups of {GROUP}")
    parser.add_argument("--at-once", type=int, default=64, help="rollouts in a backward pass")
    parser.add_argument("--turns", type=int, default=14, help="the budget T")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    if asked.at_once < GROUP or asked.at_once % GROUP or asked.rollouts % asked.at_once:
        parser.error(f"--at-once: expected whole groups of {GROUP} and a divisor of --rollouts")
    if asked.rollouts < 1 or asked.steps < 1:
        parser.error("expected rollouts and steps")
    torch.set_num_threads(asked.threads)
    policy = load_policy(asked.policy) if asked.policy else teach(BRIEFLY)
    tasks = desk_tasks(asked.rollouts // GROUP, 0, "rl_train")
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        taken = measure(arms(policy, tasks, asked.turns, asked.at_once, folder), asked.steps)
    load = " and ".join(f"{value:.1f}" for value in (before[0], os.getloadavg()[0]))
    per_rollout = statistics.mean(one.turns for one in taken["bare loop"]) / asked.rollouts
    print(
        f"{asked.rollouts} rollouts ({len(tasks)} tasks × {GROUP}) at T = {asked.turns}, "
        f"{per_rollout:.1f} turns each, {asked.at_once} at once; a policy of "
        f"{policy.model.num_parameters() / 1e6:.2f} M parameters, "
        f"{'trained' if asked.policy else 'hardly taught: it fails'}; median of {asked.steps}\n"
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, trl {trl.__version__}; {asked.threads} threads, "
        f"{os.cpu_count()} cores, load {load} (1 min, before and after)\n"
    )
    print(report(taken, asked.rollouts))


if __name__ == "__main__":
    main()
