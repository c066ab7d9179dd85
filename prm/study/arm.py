"""One arm of a study with one seed: train the base policy, run it on the tasks of the evaluation.

Everything that the report reads is in the folder of the arm: ``rollouts.jsonl.zst``, the runs at
every T; ``log.jsonl``, what the trainer logged at each update; ``policy``, the weights.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec

from prm.data.atomic import atomic_folder
from prm.data.files import write_traces
from prm.data.trace import Trace
from prm.rl.desk.environment import Desk
from prm.rl.desk.grpo import ROLLOUT_TOKENS, STEP_TOKENS, desk_trainer
from prm.rl.desk.policy import Policy, load_policy, save_policy
from prm.rl.desk.world import desk_tasks
from prm.rl.rollout import roll_out
from prm.rl.rollout_record import SamplingConfig, Start
from prm.rl.step_scores import ScoreTraces
from prm.study.config import BASE, RUNS, Arm, StudyConfig
from prm.study.scores import oracle, placebo

AT_ONCE = 1000
"""Rollouts that are sampled side by side in the evaluation."""
SEED_KEY = "training_seed"
"""Key of ``meta`` with the seed of the arm."""


def train_arm(
    config: StudyConfig, arm: Arm, seed: int, base: Path, scorer: Path | None, folder: Path
) -> None:
    """Train one arm with one seed and evaluate it; ``folder`` appears when all is done."""
    policy = load_policy(base)
    training = config.training
    began = time.perf_counter()
    with atomic_folder(folder) as path:
        trainer = desk_trainer(
            policy,
            path / "trainer",
            arm.budget.sampler(),
            updates=training.updates,
            groups=training.groups,
            rollouts=training.rollouts,
            learning_rate=training.learning_rate,
            temperature=training.temperature,
            seed=seed,
            shaping=arm.shaping_config(),
            estimator=arm.estimator,
            scorer=scores_of(arm, scorer),
        )
        trainer.train()
        seconds = time.perf_counter() - began
        save_policy(policy, path / "policy")
        (path / "log.jsonl").write_text(
            "".join(json.dumps(entry) + "\n" for entry in trainer.state.log_history)
        )
        write_traces(evaluated(policy, arm.name, seed, config), path / RUNS)
        (path / "arm.json").write_text(
            json.dumps({"arm": arm.name, "seed": seed, "seconds": seconds})
        )


def evaluate_base(config: StudyConfig, base: Path, folder: Path) -> None:
    """Run the base policy on the tasks of the evaluation."""
    with atomic_folder(folder) as path:
        write_traces(evaluated(load_policy(base), BASE, 0, config), path / RUNS)


def evaluated(policy: Policy, name: str, seed: int, config: StudyConfig) -> list[Trace]:
    """The runs of a policy: every task ``samples`` times anew at every T.

    All policies meet the same tasks and the same luck of the environment; their own randomness is
    that of the seed.
    """
    grid = config.evaluation
    starts = [
        Start(task, turns, sample)
        for turns in grid.turns
        for task in desk_tasks(grid.tasks, 0, "rl_test")
        for sample in range(grid.samples)
    ]
    sampling = SamplingConfig(config.training.temperature, STEP_TOKENS, ROLLOUT_TOKENS)
    traces = []
    for first in range(0, len(starts), AT_ONCE):
        rollouts = roll_out(
            policy.model,
            policy.dialogue,
            Desk(),
            starts[first : first + AT_ONCE],
            sampling=sampling,
            seed=seed,
            policy=name,
        )
        traces += [_of_seed(rollout.trace, seed) for rollout in rollouts]
    return traces


def scores_of(arm: Arm, scorer: Path | None) -> ScoreTraces | None:
    """Who scores in this arm."""
    from prm.model.network import StepRewardModel
    from prm.rl.step_scores import trace_scores
    from prm.scoring.scorer import Scorer

    if arm.shaping_config().mode == "terminal":
        return None
    if arm.scores == "oracle":
        return oracle()
    assert scorer is not None
    score = trace_scores(Scorer(StepRewardModel.from_pretrained(str(scorer))))
    return placebo(score) if arm.scores == "placebo" else score


def _of_seed(trace: Trace, seed: int) -> Trace:
    return msgspec.structs.replace(
        trace, id=f"{trace.id}-s{seed}", meta=trace.meta | {SEED_KEY: seed}
    )
