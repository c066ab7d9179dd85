"""Tiny runs of TRL's trainers, with every batch and every gradient kept."""

from __future__ import annotations

import gc
import json
import warnings
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from prm.data.trace import Message, Trace
from prm.model.predict import TraceScores
from prm.rl.budgets import BudgetMix
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.dialogue import DeskDialogue, desk_tokenizer
from prm.rl.desk.environment import Desk
from prm.rl.desk.play import Run, play
from prm.rl.desk.world import Task, desk_tasks
from prm.rl.environment import Transition
from prm.rl.rollout_record import Rollout
from prm.rl.trl import EnvironmentRollouts, StepGRPOTrainer
from prm.shaping import Estimator, ShapingConfig, shaped_advantages

# Trainers collect garbage several times a run, and most of what there is to walk is modules.
gc.freeze()

TASKS = desk_tasks(6, 0, "rl_train")
GROUP = 4
_PLAYED = play(
    [Run(task, name, 9, i) for i, name in enumerate(AGENTS) for task in TASKS[:2]], seed=0
)
DIALOGUE = DeskDialogue(desk_tokenizer(_PLAYED))


class Lottery(Desk):
    """A desk that ends and pays by lot, since an untrained policy never succeeds."""

    def step(self, actions: Sequence[Message | None]) -> Transition:
        transition = super().step(actions)
        for index, (action, episode) in enumerate(zip(actions, self._episodes, strict=True)):
            lot = zlib.crc32(json.dumps(action, sort_keys=True).encode())
            if action is not None and lot % 4 == 0:
                episode.terminated = transition.terminated[index] = True
                transition.truncated[index] = False
            if action is not None:
                transition.rewards[index] = lot % 5 / 4 if episode.ended else 0.0
        return transition


@cache
def _taught() -> LlamaForCausalLM:
    """Taught for a moment, so that some of its steps end by themselves and are calls."""
    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(DIALOGUE.tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=1_000,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=DIALOGUE.tokenizer.eos_token_id,
            pad_token_id=DIALOGUE.pad_id,
        )
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for trace in _PLAYED * 3:
        ids, written = (torch.tensor(part)[None] for part in DIALOGUE.encode(trace))
        network(input_ids=ids, labels=ids.masked_fill(~written, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return network


def policy() -> LlamaForCausalLM:
    """A tiny policy with the same weights every time."""
    return deepcopy(_taught())


def settings(folder: Path, **changed: Any) -> GRPOConfig:
    """One update of three groups of four, unless changed."""
    plain: dict[str, Any] = {
        "per_device_train_batch_size": 12,
        "num_generations": GROUP,
        "temperature": 1.2,
        "max_steps": 1,
        "logging_steps": 1,
        "optim": "sgd",
        "learning_rate": 0.1,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 3,
        "scale_rewards": "none",
    }
    return GRPOConfig(str(folder), **{**plain, **changed})


def sampled(**changed: Any) -> EnvironmentRollouts[Task]:
    """Rollouts of the lottery at T of 2 or 5, cut in all ways there are."""
    given: dict[str, Any] = {
        "environment": Lottery(),
        "dialogue": DIALOGUE,
        "tasks": TASKS,
        "budget": BudgetMix([2, 5]),
        "max_step_tokens": 12,
        "max_tokens": 80,
    }
    return EnvironmentRollouts(**{**given, **changed})


def noise(traces: Sequence[Trace]) -> list[TraceScores]:
    """Scores in [0, 1] that depend on nothing but the name of the trace; a few are missing."""
    found = []
    for trace in traces:
        rng = np.random.default_rng([*trace.id.encode()])
        actions, states = rng.random(trace.n_steps), rng.random(trace.n_steps + 1)
        states[rng.random(trace.n_steps + 1) < 0.1] = np.nan
        found.append(TraceScores(actions, states))
    return found


def advantages_of_group(
    shaping: ShapingConfig,
    scores: Sequence[TraceScores],
    outcomes: Sequence[float],
    terminated: Sequence[bool],
    estimator: Estimator = "alive_mean",
) -> list[list[float]]:
    """What ``shaped_advantages`` gives the steps of the traces of one group."""
    lengths = [len(one.actions) for one in scores]
    width = max(lengths)

    def padded(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
        return np.pad(values, (0, width - len(values)), constant_values=np.nan)

    actions = np.array([padded(one.actions, width) for one in scores])
    states = np.array([padded(one.states, width + 1) for one in scores])
    laid = shaped_advantages(
        shaping,
        action_scores=None if shaping.reads_states else actions,
        state_scores=states if shaping.reads_states else None,
        terminal_reward=np.array(outcomes),
        terminated=np.array(terminated),
        step_mask=np.arange(width) < np.array(lengths)[:, None],
        group=np.zeros(len(scores), dtype=int),
        estimator=estimator,
    )
    return [row[:length] for row, length in zip(laid.tolist(), lengths, strict=True)]


class Gradients(TrainerCallback):  # type: ignore[misc]
    """Keeps the gradient of every update, before it is clipped."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        self.found.append(torch.cat(grads).clone())


class Watched(StepGRPOTrainer):
    """Keeps the rows and the tensors of every batch of rollouts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.batches: list[tuple[list[dict[str, Any]], dict[str, torch.Tensor]]] = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        self.batches.append((inputs, dict(output)))
        return output

    @property
    def sampled(self) -> list[Rollout]:
        """The rollouts of all batches, one after another."""
        return [row["rollout"] for rows, _ in self.batches for row in rows]

    def logged(self, name: str) -> list[float]:
        """All values of ``prm/name``."""
        name = f"prm/{name}"
        return [row[name] for row in self.state.log_history if name in row]


def watched(args: GRPOConfig, shaping: ShapingConfig | None = None, **kwargs: Any) -> Watched:
    """A trainer of ours that has done nothing yet."""
    rollouts = kwargs.pop("rollouts", None) or sampled()
    kwargs = {"model": policy(), "processing_class": DIALOGUE.tokenizer} | kwargs
    return Watched(args=args, shaping=shaping, rollouts=rollouts, **kwargs)


def trained(args: GRPOConfig, shaping: ShapingConfig | None = None, **kwargs: Any) -> Watched:
    """A trainer of ours that has done its updates."""
    trainer = watched(args, shaping, **kwargs)
    trainer.train()
    return trainer


def gradients_of(build: Callable[..., GRPOTrainer], *args: Any, **kwargs: Any) -> torch.Tensor:
    """(updates, parameters) gradients of a run of either trainer."""
    watch = Gradients()
    kwargs = {"processing_class": DIALOGUE.tokenizer} | kwargs
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using 'rollout_func'")
        trainer = build(policy(), *args, callbacks=[watch], **kwargs)
    trainer.train()
    return torch.stack(watch.found)


def advantages_of(
    trainer: Watched, shaping: ShapingConfig, *, cut: bool = False, estimator: Any = "alive_mean"
) -> list[list[float]]:
    """The advantages of the steps of all rollouts, one group of valid ones at a time.

    0 for those that are not valid, and for one that is alone, unless a critic judges it.
    """
    found: list[list[float]] = []
    everything = trainer.sampled
    for first in range(0, len(everything), GROUP):
        group = everything[first : first + GROUP]
        valid = [rollout for rollout in group if rollout.trace.outcome.valid]
        if len(valid) == 1 and shaping.mode != "critic":
            valid = []
        if not valid:
            found += [[0.0] * rollout.trace.n_steps for rollout in group]
            continue
        traces = [rollout.trace for rollout in valid]
        laid = advantages_of_group(
            shaping,
            noise(traces),
            [trace.outcome.reward for trace in traces],
            [not cut or trace.outcome.status != "out_of_turns" for trace in traces],
            estimator,
        )
        rows = iter(laid)
        found += [
            next(rows) if rollout.trace.outcome.valid else [0.0] * rollout.trace.n_steps
            for rollout in group
        ]
    return found
