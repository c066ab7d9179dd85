"""Settings of ``StepGRPOTrainer`` that contradict each other, found before anything runs."""

from __future__ import annotations

from trl import GRPOConfig

from prm.errors import PRMError
from prm.rl.step_scores import ScoreTraces
from prm.scoring.scorer import Scorer
from prm.shaping import ShapingConfig


def check_settings(
    args: GRPOConfig, shaping: ShapingConfig, scorer: Scorer | ScoreTraces | None
) -> None:
    """Raise a :class:`PRMError` with one sentence for the first contradiction."""
    mode = shaping.mode
    if scorer is not None and not (isinstance(scorer, Scorer) or callable(scorer)):
        raise PRMError(f"scorer: expected a Scorer or a function of traces, found {scorer!r:.60}")
    if mode != "terminal":
        kind = "state" if shaping.reads_states else "action"
        if scorer is None:
            raise PRMError(f"mode {mode!r} needs {kind} scores: expected a scorer, found none")
        if isinstance(scorer, Scorer) and kind not in scorer.model.config.readouts:
            raise PRMError(
                f"mode {mode!r} needs {kind} scores, and the model has read-outs for "
                f"{' and '.join(scorer.model.config.readouts)} only"
            )
        if args.scale_rewards != "none":
            raise PRMError(
                f"scale_rewards {args.scale_rewards!r}: expected 'none' in mode {mode!r}: where "
                f"all outcomes of a group agree, the process reward alone would be blown up to "
                f"full size (ShapingConfig(normalise='group') scales each stream by itself)"
            )
    elif args.scale_rewards != "none" and shaping.normalise == "group":
        raise PRMError(
            f"scale_rewards {args.scale_rewards!r} beside normalise 'group': the outcomes would be "
            f"divided by their standard deviation twice; leave one of them at 'none'"
        )
    if args.multi_objective_aggregation != "sum_then_normalize":
        raise PRMError(
            f"multi_objective_aggregation {args.multi_objective_aggregation!r}: expected "
            f"'sum_then_normalize': the outcome is one number, the sum of the reward functions"
        )
    if args.loss_type == "vespo":
        raise PRMError("loss_type 'vespo': its weights are for one advantage a trajectory")
