"""One policy of a study: train an arm with one seed, or take a known agent, and run it.

Everything that the report reads is in the folder of the policy:

    rollouts.jsonl.zst  the runs at every T
    training.jsonl.zst  traces of every fifth update, with their scores; an arm's alone
    log.jsonl           what the trainer logged at each update; an arm's alone
    policy/             the weights; an arm's alone
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from prm.data.atomic import atomic_folder
from prm.data.files import write_traces
from prm.data.trace import Trace
from prm.rl.desk.environment import Desk
from prm.rl.desk.grpo import ROLLOUT_TOKENS, STEP_TOKENS, desk_trainer
from prm.rl.desk.play import Run, play
from prm.rl.desk.policy import Policy, load_policy, save_policy
from prm.rl.desk.world import DeskConfig, Task, desk_tasks
from prm.rl.rollout import roll_out
from prm.rl.rollout_record import SamplingConfig, Start
from prm.rl.step_scores import ScoreTraces
from prm.study.config import Arm, StudyConfig
from prm.study.layout import ARM, LOG, POLICY, RUNS, TRAINING
from prm.study.scores import oracle, placebo

AT_ONCE = 1000
"""Rollouts that are sampled side by side in the evaluation."""
SEED_KEY, UPDATE_KEY = "training_seed", "update"
"""Keys of ``meta``: the seed of the arm, and in training the number of updates made before."""
KEPT_EVERY = 5
"""Of so many updates, one has its traces kept."""


def train_arm(
    config: StudyConfig, arm: Arm, seed: int, base: Path, scorer: Path | None, folder: Path
) -> None:
    """Train one arm with one seed and run it; ``folder`` appears when all is done."""
    policy, desk = load_policy(base), DeskConfig(show_turns=arm.turns_shown)
    training = config.training
    kept: list[Trace] = []
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
            desk=desk,
            shaping=arm.shaping_config(),
            estimator=arm.estimator,
            scorer=scores_of(arm, scorer, desk),
            on_traces=_keeper(kept),
        )
        trainer.train()
        seconds = time.perf_counter() - began
        save_policy(policy, path / POLICY)
        log = [entry for entry in trainer.state.log_history if "prm/outcome" in entry]
        (path / LOG).write_text("".join(json.dumps(entry) + "\n" for entry in log))
        write_traces(kept, path / TRAINING)
        write_traces(evaluated(policy, arm.name, seed, config, desk), path / RUNS)
        (path / ARM).write_text(
            json.dumps({"arm": arm.name, "seed": seed, "seconds": round(seconds, 1)})
        )


def run_base(config: StudyConfig, name: str, base: Path, desk: DeskConfig, folder: Path) -> None:
    """Run a base policy on the tasks of the evaluation."""
    with atomic_folder(folder) as path:
        write_traces(evaluated(load_policy(base), name, 0, config, desk), path / RUNS)


def run_scripted(config: StudyConfig, name: str, agent: str, folder: Path) -> None:
    """Run an agent of ``prm.rl.desk.agents`` on the tasks of the evaluation."""
    runs = [Run(start.task, agent, start.max_turns, start.sample) for start in _starts(config)]
    traces = [
        msgspec.structs.replace(
            trace,
            id=f"{name}-{trace.id}-{run.max_turns}",
            policy=name,
            meta=trace.meta | {"sample": run.sample},
        )
        for trace, run in zip(play(runs, 0, thoughts=True), runs, strict=True)
    ]
    with atomic_folder(folder) as path:
        write_traces([_of_seed(trace, 0) for trace in traces], path / RUNS)


def evaluated(
    policy: Policy, name: str, seed: int, config: StudyConfig, desk: DeskConfig
) -> list[Trace]:
    """The runs of a policy: every task ``samples`` times anew at every T.

    All policies meet the same tasks and the same luck of the environment; their own randomness is
    that of the seed.
    """
    starts = _starts(config)
    sampling = SamplingConfig(config.training.temperature, STEP_TOKENS, ROLLOUT_TOKENS)
    traces = []
    for first in range(0, len(starts), AT_ONCE):
        rollouts = roll_out(
            policy.model,
            policy.dialogue,
            Desk(desk),
            starts[first : first + AT_ONCE],
            sampling=sampling,
            seed=seed,
            policy=name,
        )
        traces += [_of_seed(rollout.trace, seed) for rollout in rollouts]
    return traces


def scores_of(arm: Arm, scorer: Path | None, desk: DeskConfig) -> ScoreTraces | None:
    """Who scores in this arm."""
    from prm.model.network import StepRewardModel
    from prm.rl.step_scores import trace_scores
    from prm.scoring.scorer import Scorer

    if arm.shaping_config().mode == "terminal":
        return None
    if arm.scores == "oracle":
        return oracle(desk)
    assert scorer is not None
    score = trace_scores(Scorer(StepRewardModel.from_pretrained(str(scorer))))
    return placebo(score) if arm.scores == "placebo" else score


def _starts(config: StudyConfig) -> list[Start[Task]]:
    grid = config.evaluation
    return [
        Start(task, turns, sample)
        for turns in grid.turns
        for task in desk_tasks(grid.tasks, 0, "rl_test")
        for sample in range(grid.samples)
    ]


def _keeper(kept: list[Trace]) -> Callable[[list[Trace]], None]:
    """Keeps the traces of every fifth batch of rollouts, one being sampled for each update."""
    updates = 0

    def keep(traces: list[Trace]) -> None:
        nonlocal updates
        if updates % KEPT_EVERY == 0:
            kept.extend(
                msgspec.structs.replace(trace, meta=trace.meta | {UPDATE_KEY: updates})
                for trace in traces
            )
        updates += 1

    return keep


def _of_seed(trace: Trace, seed: int) -> Trace:
    return msgspec.structs.replace(
        trace, id=f"{trace.id}-s{seed}", meta=trace.meta | {SEED_KEY: seed}
    )
