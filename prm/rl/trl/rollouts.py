"""Rollouts of an environment as TRL's ``rollout_func``: batched, with a budget T for each group.

``EnvironmentRollouts`` is given to :class:`prm.rl.trl.StepGRPOTrainer`. The rows of the trainer's
dataset are tasks, named by their id as the prompt; for every batch it draws a T for each group of
rollouts, samples all of them at once with ``prm.rl.rollout.roll_out`` from the trainer's model, and
hands on exact ids, the mask of what the policy wrote, and log-probabilities.

Everything follows from the trainer's seed and the number of the batch: T, the environment's luck
(by sample numbers that are never used twice) and the policy's tokens. All processes of a
distributed run draw alike, so rollouts of one group have one T wherever they are sampled.

Left out: sampling by vLLM; more than one environment; what an adaptive budget has seen, in the
checkpoint of a run that is to be resumed.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import NDArray

from prm.errors import PRMError
from prm.rl.budgets import BudgetMix, BudgetSampler
from prm.rl.environment import Environment
from prm.rl.rollout import Dialogue, roll_out
from prm.rl.rollout_record import Rollout, SamplingConfig, Start, TaskT

if TYPE_CHECKING:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

_WHOLE_DISTRIBUTION = {"top_p": (1.0, None), "top_k": (0, None), "min_p": (0.0, None)}
"""Settings of TRL that narrow what is drawn, and their values that do not."""


class EnvironmentRollouts(Generic[TaskT]):
    """Samples the rollouts of a trainer.

    Args:
        environment: it is reset for every batch.
        dialogue: how text becomes tokens.
        tasks: what is trained on; ids must differ.
        budget: draws T for each group of rollouts.
        max_step_tokens: longest step.
        max_tokens: longest rollout, prompt included.
        shortest: from a task to the turns of its shortest successful episode, for budgets in unit
            ``shortest``.
        success_reward: total reward from which a rollout is a success; None = it does not say.

    Attributes:
        seconds: spent on the last batch.
    """

    def __init__(
        self,
        environment: Environment[TaskT],
        dialogue: Dialogue,
        tasks: Sequence[TaskT],
        budget: BudgetSampler,
        *,
        max_step_tokens: int = 64,
        max_tokens: int = 1024,
        shortest: Callable[[TaskT], int] | None = None,
        success_reward: float | None = 1.0,
    ) -> None:
        self.environment, self.dialogue, self.budget = environment, dialogue, budget
        self.tasks = {task.id: task for task in tasks}
        if not tasks or len(self.tasks) != len(tasks):
            raise PRMError(
                f"tasks: expected one at least, each with an id of its own, found {len(tasks)} "
                f"with {len(self.tasks)} different ids"
            )
        if budget.unit == "shortest" and shortest is None:
            raise PRMError("budget in unit 'shortest': expected the argument shortest, found none")
        self.max_step_tokens, self.max_tokens = max_step_tokens, max_tokens
        self.seconds = 0.0
        self._shortest, self._success_reward = shortest, success_reward
        self._generation = self._evaluation = -1

    def dataset(self) -> Dataset:
        """The tasks as a dataset of TRL: one row each, with the id as its ``prompt``."""
        from datasets import Dataset

        return Dataset.from_dict({"prompt": list(self.tasks)})

    def check(self, args: GRPOConfig) -> None:
        """Raise where the trainer would differentiate another distribution than is drawn from."""
        for name, whole in _WHOLE_DISTRIBUTION.items():
            if getattr(args, name) not in whole:
                raise PRMError(
                    f"{name} {getattr(args, name)}: tokens would be drawn from a part of the "
                    f"distribution that is differentiated; leave it at {whole[0]:g}"
                )
        if args.repetition_penalty != 1.0 or args.generation_kwargs:
            raise PRMError(
                "repetition_penalty and generation_kwargs: tokens would be drawn from another "
                "distribution than is differentiated; leave them alone"
            )
        if args.temperature == 0:
            raise PRMError("temperature 0: tokens would not be drawn, and logits divided by 0")
        groups = args.generation_batch_size // args.num_generations
        if groups > len(self.tasks):
            raise PRMError(
                f"tasks: expected {groups} at least, as a batch takes so many groups, found "
                f"{len(self.tasks)}: nothing would be trained"
            )
        if args.use_vllm:
            raise PRMError("use_vllm: these rollouts are sampled from the trainer's own model")
        self._sampling(args)

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """TRL's ``rollout_func``; beside TRL's keys ``rollout``, the list of rollouts."""
        began = time.perf_counter()
        args, processes = trainer.args, trainer.accelerator
        training = trainer.model.training
        if training:
            self._generation = max(self._generation + 1, _batches_before(trainer))
        else:
            self._evaluation += 1
        number = self._generation if training else self._evaluation
        size = trainer.num_generations if training else trainer.num_generations_eval
        seeds = np.random.SeedSequence([args.seed, int(training), number])
        first = processes.process_index * len(prompts)
        tasks = [self._task(prompt) for prompt in prompts]
        turns = self._turns(tasks, size, first, trainer, training, np.random.default_rng(seeds))
        total = len(prompts) * processes.num_processes
        starts = [
            Start(task, limit, number * total + first + row)
            for row, (task, limit) in enumerate(zip(tasks, turns, strict=True))
        ]
        rollouts = roll_out(
            processes.unwrap_model(trainer.model),
            self.dialogue,
            self.environment,
            starts,
            sampling=self._sampling(args),
            seed=int(seeds.generate_state(1)[0]),
            success_reward=self._success_reward,
        )
        self.seconds = time.perf_counter() - began
        return {**_fields(rollouts), "rollout": rollouts}

    def begin_evaluation(self) -> None:
        """Draw in the evaluation to come what was drawn in the one before it."""
        self._evaluation = -1

    def observe(self, success: NDArray[np.float64]) -> None:
        """Tell an adaptive budget the success rate of the groups of the last training batch."""
        if isinstance(self.budget, BudgetMix):
            self.budget.observe(success)

    def _turns(
        self,
        tasks: Sequence[TaskT],
        size: int,
        first: int,
        trainer: GRPOTrainer,
        training: bool,
        rng: np.random.Generator,
    ) -> list[int]:
        """(b,) T of the rollouts of this process, whose first one is number ``first`` of all."""
        n_groups = len(tasks) * trainer.accelerator.num_processes // size
        shortest = None
        if self._shortest is not None:
            # The tasks of other processes are not known here, and T of their groups is not needed.
            lengths = np.ones(n_groups, dtype=np.int64)
            for row, task in enumerate(tasks):
                lengths[(first + row) // size] = self._shortest(task)
            shortest = lengths
        steps = max(trainer.state.max_steps, 1)
        budget = self.budget if training else copy.deepcopy(self.budget)
        drawn = budget.sample(
            n_groups,
            step=trainer.state.global_step,
            progress=min(trainer.state.global_step / steps, 1.0),
            rng=rng,
            shortest=shortest,
        )
        return [int(drawn[(first + row) // size]) for row in range(len(tasks))]

    def _task(self, prompt: str) -> TaskT:
        task = self.tasks.get(prompt) if isinstance(prompt, str) else None
        if task is None:
            raise PRMError(
                f"dataset: expected the id of a task as the prompt of every row, found "
                f"{prompt!s:.60}"
            )
        return task

    def _sampling(self, args: GRPOConfig) -> SamplingConfig:
        return SamplingConfig(args.temperature, self.max_step_tokens, self.max_tokens)


def _batches_before(trainer: GRPOTrainer) -> int:
    """Batches of rollouts that the updates up to now have taken, in this run or the one resumed."""
    args = trainer.args
    micro_batches = trainer.state.global_step * args.gradient_accumulation_steps
    batches: int = math.ceil(micro_batches / (args.steps_per_generation * args.num_iterations))
    return batches


def _fields(rollouts: Sequence[Rollout]) -> dict[str, list[list[Any]]]:
    """What TRL asks for: ids cut into prompt and completion, and the completion's own columns."""
    cuts = [rollout.spans[0][0] for rollout in rollouts]
    return {
        "prompt_ids": [r.ids[:cut].tolist() for r, cut in zip(rollouts, cuts, strict=True)],
        "completion_ids": [r.ids[cut:].tolist() for r, cut in zip(rollouts, cuts, strict=True)],
        "logprobs": [
            np.nan_to_num(r.log_probs[cut:]).tolist() for r, cut in zip(rollouts, cuts, strict=True)
        ],
        "env_mask": [
            r.token_mask[cut:].astype(int).tolist() for r, cut in zip(rollouts, cuts, strict=True)
        ],
    }


def environment_reward(rollout: Sequence[Rollout], **columns: Any) -> list[float]:
    """TRL's reward function of what the environment paid; 0 where an episode broke.

    ``StepGRPOTrainer`` leaves broken episodes out of all comparisons.
    """
    return [r.trace.outcome.reward or 0.0 for r in rollout]
