"""GRPO on desk with step rewards, on two cores: teach a base policy, train it, compare both.

    python training/rl/trl_desk.py --out out/rl                         outcome only, a fixed T
    python training/rl/trl_desk.py --out out/mix --budget mix --turns 6 9 12
    python training/rl/trl_desk.py --out out/step --mode baseline --scorer out/desk/model

Prints Pass@(1,T) of the base policy and of the trained one on tasks that neither has seen, with
intervals over tasks. Writes OUT/base, OUT/policy-SEED, and OUT/rollouts-SEED.jsonl.gz, the traces
that were compared, which every command of ``prm`` reads.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from prm import Scorer, ShapingConfig, StepRewardModel, write_traces
from prm.data.atomic import check_new_folder
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.eval.evaluate_budget import evaluate_budget
from prm.rl.budgets import BudgetCurriculum, BudgetMix, BudgetSampler, FixedBudget
from prm.rl.desk.environment import Desk
from prm.rl.desk.grpo import ROLLOUT_TOKENS, STEP_TOKENS, desk_trainer
from prm.rl.desk.policy import Policy, load_policy, save_policy, teach
from prm.rl.desk.world import desk_tasks
from prm.rl.rollout import roll_out
from prm.rl.rollout_record import SamplingConfig, Start


def main() -> None:
    """Teach, train, and compare on tasks that neither policy has seen."""
    asked = arguments()
    if asked.budget == "fixed" and len(asked.turns) > 1:
        raise PRMError(f"--turns {asked.turns}: --budget fixed takes one")
    trained_to = asked.out / f"policy-{asked.seed}"
    check_new_folder(trained_to)
    asked.out.mkdir(parents=True, exist_ok=True)
    base = base_policy(asked.out / "base")
    traces = rollouts_of(base, "base", asked.turns, asked.test_tasks)
    trained = train(base, asked)
    save_policy(trained, trained_to)
    traces += rollouts_of(trained, "trained", asked.turns, asked.test_tasks)
    write_traces(traces, asked.out / f"rollouts-{asked.seed}.jsonl.gz")
    evaluate_budget([str(asked.out / f"rollouts-{asked.seed}.jsonl.gz")], source="rerun")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=0, help="of training, not of the base policy")
    parser.add_argument("--budget", choices=["fixed", "mix", "curriculum"], default="fixed")
    parser.add_argument("--turns", type=int, nargs="+", default=[12], help="one T, or the grid")
    parser.add_argument("--mode", default="terminal", help="of ShapingConfig")
    parser.add_argument("--process-weight", type=float, default=1.0)
    parser.add_argument("--lam", type=float, default=1.0, help="of mode critic")
    parser.add_argument("--scorer", help="folder of a step reward model, for all other modes")
    parser.add_argument("--steps", type=int, default=40, help="updates")
    parser.add_argument("--groups", type=int, default=32, help="tasks of an update")
    parser.add_argument("--rollouts", type=int, default=8, help="of each task")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--test-tasks", type=int, default=500)
    return parser.parse_args()


def base_policy(folder: Path) -> Policy:
    """The base policy, taught once."""
    if not folder.exists():
        began = time.perf_counter()
        save_policy(teach(), folder)
        print(f"{folder}: taught in {time.perf_counter() - began:.0f} s")
    return load_policy(folder)


def train(base: Policy, asked: argparse.Namespace) -> Policy:
    """The base policy after GRPO."""
    samplers: dict[str, type[BudgetSampler]] = {"mix": BudgetMix, "curriculum": BudgetCurriculum}
    fixed = asked.budget == "fixed"
    budget = FixedBudget(asked.turns[0]) if fixed else samplers[asked.budget](asked.turns)
    shaping = ShapingConfig(mode=asked.mode, process_weight=asked.process_weight, lam=asked.lam)
    scorer = None
    if asked.scorer is not None:
        scorer = Scorer(StepRewardModel.from_pretrained(asked.scorer))
    trainer = desk_trainer(
        base,
        asked.out / "trainer",
        budget,
        updates=asked.steps,
        groups=asked.groups,
        rollouts=asked.rollouts,
        learning_rate=asked.learning_rate,
        seed=asked.seed,
        logging_steps=5,
        shaping=shaping,
        scorer=scorer,
        callbacks=[Progress()],
    )
    trainer.train()
    print(f"budgets: {json.dumps(budget.describe())}")
    return Policy(base.model, base.dialogue)


class Progress(TrainerCallback):
    """One line for every log."""

    def __init__(self) -> None:
        self.began = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Print what the last updates were like."""
        if "prm/outcome" in logs:
            # None where no group of the batch had anything to compare.
            share = logs["prm/process_share"] or 0.0
            print(
                f"update {state.global_step:4d}  {time.perf_counter() - self.began:5.0f} s  "
                f"outcome {logs['prm/outcome']:.3f}  steps {logs['prm/steps']:.2f}  "
                f"entropy {logs['entropy']:.3f}  process share {share:.2f}",
                flush=True,
            )


def rollouts_of(policy: Policy, name: str, turns: list[int], n_tasks: int) -> list[Trace]:
    """One rollout of every test task at every T; all policies meet the same luck."""
    starts = [Start(task, limit) for limit in turns for task in desk_tasks(n_tasks, 0, "rl_test")]
    sampling = SamplingConfig(1.0, STEP_TOKENS, ROLLOUT_TOKENS)
    return [
        rollout.trace
        for rollout in roll_out(
            policy.model,
            policy.dialogue,
            Desk(),
            starts,
            sampling=sampling,
            seed=0,
            policy=name,
        )
    ]


if __name__ == "__main__":
    main()
