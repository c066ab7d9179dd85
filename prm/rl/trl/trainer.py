"""``StepGRPOTrainer``: TRL's GRPO with an advantage for every step.

The steps of every rollout are scored, blended with the outcome as ``ShapingConfig`` says, compared
within their group, and laid on the tokens of the step. All else is TRL's: the loss, the optimiser,
logging, checkpoints, processes. Tool results and padding get no advantage, and TRL masks them out
of the loss. Rollouts come from TRL itself (``tools``, ``environment_factory``), or from
``EnvironmentRollouts``, which also gives each group of rollouts a budget of its own; a
``rollout_func`` of yours with several steps returns :class:`Rollout` objects as ``rollout``.

Logged beside TRL's own numbers, by batch of rollouts:

    prm/outcome             mean terminal reward
    prm/score               mean score that the mode reads
    prm/process             mean sum of the weighted process rewards; 0 in baseline and critic
    prm/process_share       part of the advantages that is the work of the process, in [0, 1]
    prm/process_weight      after its schedule
    prm/steps               mean number of steps
    prm/invalid             rollouts that say nothing, since their episode broke
    prm/success/T=…         success rate at each budget, and prm/rollouts/T=…, out of how many
    prm/log_prob_difference mean |log-probability when drawn − when differentiated|, on policy
    prm/seconds/…           sampling (by EnvironmentRollouts) and scoring

Written against TRL 1.16, of which it overrides seven methods. Left out: the VESPO loss, whose
weights are for one advantage a trajectory, and TRL's scaling of rewards except in mode terminal
(``ShapingConfig.normalise`` has it).
"""

from __future__ import annotations

import itertools
import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from numpy.typing import NDArray
from transformers.utils.chat_template_utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.predict import TraceScores
from prm.rl.credit import Credit, Scored, outcome_scale, step_credit
from prm.rl.rollout_record import Rollout
from prm.rl.step_scores import ScoreTraces, checked_scores, trace_scores, with_scores
from prm.rl.trl.batches import by_length, may_sort
from prm.rl.trl.checks import check_settings
from prm.rl.trl.report import Row, numbers, success_of_groups
from prm.rl.trl.rollouts import EnvironmentRollouts, environment_reward
from prm.rl.trl.traces import trace_of
from prm.scoring.scorer import Scorer
from prm.shaping import Estimator, ShapingConfig, Span, broadcast_over_step, spans_from_mask

Floats = NDArray[np.float64]
_log = logging.getLogger(__name__)
_TOO_FAR = 0.1
"""A mean difference of log-probabilities that rounding does not explain, not even bfloat16's."""


class _Batch(NamedTuple):
    """What a generation brought: b rollouts of this process, B of all."""

    inputs: list[dict[str, Any]]
    prompts: list[Any]
    completions: list[Any]
    cut: list[bool]
    """(b,) whether the completion ran out of tokens."""
    outcomes: Floats
    """(B,) terminal rewards; NaN where nothing is known."""


class StepGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO with an advantage for every step.

    Args:
        model, reward_funcs, args, **kwargs: as for ``GRPOTrainer``. The weighted sum of the reward
            functions is the outcome; with ``rollouts`` it is the reward of the environment unless
            there are functions, which find the rollouts in the column ``rollout``.
        shaping: how scores and outcomes are blended. Mode ``terminal`` is GRPO as TRL has it.
        scorer: scores the steps, without seeing outcomes: a step reward model, or any function of
            traces. In mode ``terminal`` its scores are logged only.
        rollouts: samples an environment of many episodes; its tasks are the dataset.
        estimator: how rollouts of a group are compared; see ``prm.rl.credit.step_credit``.
        turn_limit: what running out of turns is to a potential: end where the limit is part of the
            task; cut where the last score stands for what was cut off.
        on_traces: is given the traces of each batch of this process, with their scores.

    Raises:
        PRMError: settings that contradict each other, at once; during training, scores that do
            not fit their traces.
    """

    _buffered_inputs: Any
    """TRL's: the micro-batches of the last generation."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *,
        shaping: ShapingConfig | None = None,
        scorer: Scorer | ScoreTraces | None = None,
        rollouts: EnvironmentRollouts[Any] | None = None,
        estimator: Estimator | None = None,
        turn_limit: Literal["end", "cut"] = "end",
        on_traces: Callable[[list[Trace]], None] | None = None,
        **kwargs: Any,
    ) -> None:
        self.shaping = shaping or ShapingConfig()
        self.rollouts, self.estimator, self.on_traces = rollouts, estimator, on_traces
        self._cut = turn_limit == "cut"
        self._score = trace_scores(scorer) if isinstance(scorer, Scorer) else scorer
        self._batch: _Batch | None = None
        self._numbers = itertools.count()
        self._log_probs: torch.Tensor | None = None
        args = args or GRPOConfig("step-grpo")
        check_settings(args, self.shaping, scorer)
        if rollouts is not None:
            rollouts.check(args)
            for name in ("tools", "environment_factory", "rollout_func"):
                if kwargs.get(name):
                    raise PRMError(f"{name}: given beside rollouts, which sample everything")
            kwargs["rollout_func"] = rollouts
            kwargs.setdefault("train_dataset", rollouts.dataset())
            reward_funcs = reward_funcs or environment_reward
        with warnings.catch_warnings():
            # That the hook is experimental is for those to know who write such functions.
            warnings.filterwarnings("ignore", "You are using 'rollout_func'", UserWarning)
            super().__init__(model, reward_funcs, args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As TRL has it; every evaluation draws the same budgets and the same luck."""
        if self.rollouts is not None:
            self.rollouts.begin_evaluation()
        found: dict[str, float] = super().evaluate(*args, **kwargs)
        return found

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """TRL's, which in a resumed run would begin again with the order of the first epoch."""
        sampler = super()._get_train_sampler(dataset)

        def set_epoch(epoch: int) -> None:
            sampler.generator.manual_seed(sampler.seed)
            for _ in range(epoch):
                torch.randperm(sampler.num_samples, generator=sampler.generator)

        if sampler.shuffle:
            sampler.set_epoch = set_epoch
        return sampler

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> torch.Tensor:
        rewards: torch.Tensor = super()._calculate_rewards(
            inputs, prompts, completions, completion_ids_list
        )
        broken = ["rollout" in row and not row["rollout"].trace.outcome.valid for row in inputs]
        rewards[torch.tensor(gather_object(broken), device=rewards.device)] = math.nan
        outcomes = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        outcomes[rewards.isnan().all(dim=1)] = math.nan
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        cut = [ids[-1] not in ends for ids in completion_ids_list]
        self._batch = _Batch(inputs, prompts, completions, cut, outcomes.double().cpu().numpy())
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        batch, self._batch = self._batch, None
        assert batch is not None
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        traces, spans = self._steps(batch, mask.bool().cpu().numpy())
        began = time.perf_counter()
        scores = self._scores(traces)
        seconds = {"scoring": time.perf_counter() - began}
        if self.rollouts is not None:
            seconds["sampling"] = self.rollouts.seconds
        size = self.num_generations if self.model.training else self.num_generations_eval
        first = self.accelerator.process_index * len(traces)
        rows: list[Row] = gather_object(
            [
                Row(
                    Scored(found, batch.outcomes[row], self._terminated(trace), row // size),
                    trace.outcome.max_turns,
                    trace.outcome.success,
                    trace.outcome.valid,
                )
                for row, (trace, found) in enumerate(zip(traces, scores, strict=True), start=first)
            ]
        )
        credit = step_credit(
            self.shaping,
            [row.scored for row in rows],
            estimator=self.estimator,
            progress=self._progress,
        )
        scale = np.ones(len(rows))
        if self.shaping.mode == "terminal":
            scale = outcome_scale(
                self.shaping.terminal_weight * batch.outcomes, size, self.scale_rewards
            )
        laid = np.zeros(mask.shape)
        for row, own in enumerate(spans):
            if own:
                step_values = credit.advantages[first + row] / scale[first + row]
                laid[row] = broadcast_over_step(step_values, own, mask.shape[1])
        output["advantages"] = torch.tensor(laid, dtype=torch.float32, device=mask.device) * mask
        self._tell(rows, credit, seconds, size)
        if self.on_traces is not None:
            self.on_traces([with_scores(*pair) for pair in zip(traces, scores, strict=True)])
        return output

    def _steps(
        self, batch: _Batch, mask: NDArray[np.bool_]
    ) -> tuple[list[Trace], list[list[Span]]]:
        """(b,) traces, and the spans of their steps in the completion; [] where all is masked."""
        if "rollout" in batch.inputs[0]:
            recorded: list[Rollout] = [row["rollout"] for row in batch.inputs]
            starts = [rollout.spans[0][0] for rollout in recorded]
            return [rollout.trace for rollout in recorded], [
                [(begin - start, end - start) for begin, end in rollout.spans]
                for rollout, start in zip(recorded, starts, strict=True)
            ]
        traces, spans = [], [spans_from_mask(row) for row in mask]
        first, number = self.accelerator.process_index * len(mask), next(self._numbers)
        for row, said in enumerate(zip(batch.prompts, batch.completions, strict=True)):
            id = f"{self.state.global_step}-{number}-{first + row}"
            trace = trace_of(*said, id=id, tools=self._schemas(row), cut=batch.cut[row])
            if spans[row] and len(spans[row]) != trace.n_steps:
                raise PRMError(
                    f"completion {id}: expected {trace.n_steps} runs of tokens in the mask, one "
                    f"for each assistant message, found {len(spans[row])}"
                )
            traces.append(trace)
        return traces, spans

    def _schemas(self, row: int) -> list[dict[str, Any]] | None:
        tools = self.tools
        if self.environment_factories is not None:
            tools = self._env_tools[self._batch_environments[row]]
        return [get_json_schema(tool) for tool in tools] if tools else None

    def _scores(self, traces: Sequence[Trace]) -> list[TraceScores]:
        if self._score is None:
            unknown = [np.full(trace.n_steps + 1, math.nan) for trace in traces]
            return [TraceScores(states[1:], states) for states in unknown]
        return checked_scores(self._score, traces, self.shaping)

    def _terminated(self, trace: Trace) -> bool:
        return not (self._cut and trace.outcome.status in ("out_of_turns", "out_of_time"))

    @property
    def _progress(self) -> float:
        return float(min(self.state.global_step / max(self.state.max_steps, 1), 1.0))

    def _tell(
        self, rows: Sequence[Row], credit: Credit, seconds: dict[str, float], size: int
    ) -> None:
        """Log what the batch was, and tell an adaptive budget how its groups fared."""
        training = self.model.training
        metrics = self._metrics["train" if training else "eval"]
        found = numbers(rows, credit, self.shaping)
        found["process_weight"] = self.shaping.weight_at(self._progress)
        found |= {f"seconds/{name}": value for name, value in seconds.items()}
        for name, value in found.items():
            metrics[f"prm/{name}"].append(value)
        if training and self.rollouts is not None:
            self.rollouts.observe(success_of_groups(rows, size))

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's micro-batches, dealt out by length where that leaves the loss as it is."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is before or not may_sort(self.args):
            return inputs
        self._buffered_inputs = by_length(
            self._buffered_inputs, self.args.gradient_accumulation_steps
        )
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._log_probs = found[0].detach()
        return found

    def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        drawn = inputs.get("sampling_per_token_logps")
        # Where TRL has no old log-probabilities, the policy is still the one that was sampled.
        if drawn is not None and "old_per_token_logps" not in inputs:
            assert self._log_probs is not None
            mask = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).bool()
            far = (self._log_probs - drawn)[mask].abs().nanmean().item()
            self._metrics["train" if self.model.training else "eval"][
                "prm/log_prob_difference"
            ].append(far)
            if far > _TOO_FAR:
                _log.warning(
                    "step %s: log-probabilities differ by %.3f on average between sampling and "
                    "training: tokens are not drawn from the distribution that is differentiated "
                    "(dropout? another temperature?)",
                    self.state.global_step,
                    far,
                )
        return loss
