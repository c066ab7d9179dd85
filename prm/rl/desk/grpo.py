"""GRPO on desk with a small policy on a CPU: the settings that recipes and studies share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prm.rl.budgets import BudgetSampler
from prm.rl.desk.environment import Desk
from prm.rl.desk.world import DeskConfig, desk_tasks

if TYPE_CHECKING:
    from prm.rl.desk.policy import Policy
    from prm.rl.trl import StepGRPOTrainer

STEP_TOKENS, ROLLOUT_TOKENS = 16, 1024
"""Longest step and longest rollout."""
_AT_ONCE = 32
"""Rollouts in a backward pass: small models are bound by memory, so that more would be slower."""


def desk_trainer(
    policy: Policy,
    folder: Path,
    budget: BudgetSampler,
    *,
    updates: int,
    groups: int,
    rollouts: int,
    learning_rate: float,
    seed: int,
    temperature: float = 1.0,
    logging_steps: int = 1,
    desk: DeskConfig | None = None,
    **step_grpo: Any,
) -> StepGRPOTrainer:
    """A trainer of the policy on fresh tasks of the split ``rl_train``; it prints no logs.

    Args:
        policy: it is trained in place.
        folder: the trainer's own, to which nothing is saved.
        budget: draws T for each group.
        updates: each of ``groups`` tasks with ``rollouts`` rollouts each.
        learning_rate: constant, of AdamW.
        seed: of tasks, budgets, luck and tokens.
        temperature: of sampling, and of what is differentiated.
        logging_steps: updates between two entries of ``trainer.state.log_history``.
        desk: the environment's parameters; its default ones if absent.
        **step_grpo: shaping, scorer, estimator, callbacks and others of ``StepGRPOTrainer``.
    """
    from transformers import PrinterCallback
    from trl import GRPOConfig

    from prm.rl.trl import EnvironmentRollouts, StepGRPOTrainer

    size = groups * rollouts
    at_once = math.gcd(size, _AT_ONCE)
    trainer = StepGRPOTrainer(
        policy.model,
        args=GRPOConfig(
            str(folder),
            max_steps=updates,
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=size // at_once,
            num_generations=rollouts,
            learning_rate=learning_rate,
            lr_scheduler_type="constant",
            temperature=temperature,
            scale_rewards="none",
            loss_type="dr_grpo",
            max_completion_length=ROLLOUT_TOKENS,
            # dr_grpo divides by the longest completion there could be: gradients are small.
            max_grad_norm=math.inf,
            logging_steps=logging_steps,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            activation_checkpointing=False,
            bf16=False,
            use_cpu=True,
            seed=seed,
        ),
        processing_class=policy.dialogue.tokenizer,
        rollouts=EnvironmentRollouts(
            Desk(desk),
            policy.dialogue,
            desk_tasks(updates * groups, seed, "rl_train", desk),
            budget,
            max_step_tokens=STEP_TOKENS,
            max_tokens=ROLLOUT_TOKENS,
        ),
        **step_grpo,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
