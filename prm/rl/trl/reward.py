"""``StepRewardFunction``: step scores for TRL's stock trainer, as one float a trajectory.

What is lost beside ``StepGRPOTrainer``: a reward function returns one number for a trajectory, and
TRL gives every token of it the same advantage. So the steps share the sum of their rewards, and
which of them earned it is not learned from. Modes that act in the advantage of single steps, or
whose rewards sum to a constant, would do nothing at all and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prm.errors import PRMError
from prm.rl.step_scores import ScoreTraces, checked_scores, trace_scores
from prm.rl.trl.traces import trace_of
from prm.scoring.scorer import Scorer
from prm.shaping import ShapingConfig, step_rewards

_NOTHING_LEFT = {
    "terminal": "it pays no process reward",
    "potential": "its rewards sum to the potential of the prompt, the same for a whole group",
    "baseline": "it acts in the advantage of each step",
    "critic": "it acts in the advantage of each step",
}


class StepRewardFunction:
    """The process reward of a trajectory, for ``GRPOTrainer(reward_funcs=[outcome, this])``.

    The reward is the sum of the weighted process rewards of the steps, discounted by
    ``shaping.gamma``; TRL adds the outcome of the other functions. The weight follows its schedule
    with the progress of training.

    Args:
        scorer: a step reward model, or any function of traces.
        shaping: mode progress, sum, clip, delta, clip_delta or min_form.
        tools: what the trainer was given as ``tools``, for scorers that read their schemas.

    Raises:
        PRMError: a mode that would do nothing, a setting that is not read; when called, scores that
            do not fit their traces.
    """

    __name__ = "step_reward"

    def __init__(
        self,
        scorer: Scorer | ScoreTraces,
        shaping: ShapingConfig,
        *,
        tools: Sequence[Callable[..., Any]] = (),
    ) -> None:
        from transformers.utils.chat_template_utils import get_json_schema

        if shaping.mode in _NOTHING_LEFT:
            raise PRMError(
                f"mode {shaping.mode!r}: {_NOTHING_LEFT[shaping.mode]}, so as one number for a "
                f"trajectory it would do nothing; use StepGRPOTrainer"
            )
        for name in ("normalise", "terminal_weight"):
            if getattr(shaping, name) != getattr(ShapingConfig, name):
                raise PRMError(
                    f"{name} {getattr(shaping, name)}: a reward function sees no group and no "
                    f"outcome; use GRPOConfig.reward_weights, or StepGRPOTrainer"
                )
        self.shaping = shaping
        self._score = trace_scores(scorer) if isinstance(scorer, Scorer) else scorer
        self._tools = [get_json_schema(tool) for tool in tools] or None

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        trainer_state: Any = None,
        **columns: Any,
    ) -> list[float]:
        """(b,) rewards; TRL calls this with keyword arguments."""
        traces = [
            trace_of(prompt, completion, id=f"completion {row}", tools=self._tools)
            for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        progress = 0.0
        if trainer_state is not None and trainer_state.max_steps > 0:
            progress = min(trainer_state.global_step / trainer_state.max_steps, 1.0)
        return [
            self._reward(scores.actions, progress)
            for scores in checked_scores(self._score, traces, self.shaping)
        ]

    def _reward(self, actions: Any, progress: float) -> float:
        shaped = step_rewards(
            self.shaping,
            action_scores=actions,
            terminal_reward=0.0,
            terminated=True,
            progress=progress,
        )
        return float(shaped.process @ self.shaping.gamma ** np.arange(len(actions)))
