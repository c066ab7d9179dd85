"""The parts that the arms of a study share: the base policy and the step reward model.

The step reward model is trained as any user would do it: on traces of scripted agents, of which
only the outcome is known, on tasks that neither RL nor the evaluation sees.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from prm.data.atomic import atomic_folder
from prm.data.diagnostics import Diagnostics
from prm.data.files import write_traces
from prm.data.labels import label_traces
from prm.data.labels.maker import LabelOptions
from prm.data.trace import Trace
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.play import Run, play
from prm.rl.desk.policy import PolicyConfig, save_policy, teach
from prm.rl.desk.world import DeskConfig, desk_tasks
from prm.study.config import StudyConfig

OUTCOME = "outcome"
"""Name of the labels."""


def teach_base(config: StudyConfig, folder: Path, turns_shown: bool) -> None:
    """Teach the base policy and save it."""
    save_policy(teach(PolicyConfig(steps=config.base.steps, show_turns=turns_shown)), folder)


def train_scorer(config: StudyConfig, folder: Path) -> None:
    """Train a small decoder from scratch to tell from a state how the episode will end."""
    from prm.model.build import DecoderConfig
    from prm.training.config import OptimizerConfig, TrainConfig
    from prm.training.train import train

    size = config.scorer
    with tempfile.TemporaryDirectory() as corpus, atomic_folder(folder) as whole:
        path = Path(corpus) / "scripted.parquet"
        write_traces(_scripted(config), path)
        train(
            TrainConfig(
                data=[str(path)],
                out=str(whole),
                label=OUTCOME,
                state_label=OUTCOME,
                decoder=DecoderConfig(layers=size.layers, width=size.width, vocabulary=1024),
                optimizer=OptimizerConfig(learning_rate=size.learning_rate),
                batch_tokens=4096,
                trainer={"max_epochs": size.epochs},
            )
        )


def _scripted(config: StudyConfig) -> list[Trace]:
    """Traces of every scripted agent at the budgets of the evaluation, labelled by outcome.

    Where some arms do not show the turns left, neither do the traces of every other task.
    """
    rng = np.random.default_rng(0)
    tasks = desk_tasks(config.scorer.tasks, 1, "train")
    kinds = config.kinds_of_base
    traces = []
    for place, shown in enumerate(kinds):
        runs = [
            Run(task, name, int(rng.choice(config.evaluation.turns)), sample)
            for task in tasks[place :: len(kinds)]
            for sample, name in enumerate(AGENTS)
        ]
        traces += play(runs, 1, DeskConfig(show_turns=shown), thoughts=True)
    options = LabelOptions(name=OUTCOME, gamma=1.0, threshold=None)
    return list(label_traces(traces, "outcome", options, Diagnostics()))
