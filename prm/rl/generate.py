"""``prm generate``: write the annotated traces of an embedded environment.

The corpora under ``data/`` are exactly what this command writes with its defaults.
"""

from __future__ import annotations

import sys

import numpy as np

from prm.data.atomic import new_outputs
from prm.data.files import write_traces
from prm.errors import PRMError, plural, printable
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.play import Run, annotate, play
from prm.rl.desk.world import DeskConfig, Split, budgets, desk_tasks


def generate(
    environment: str,
    /,
    *,
    seed: int = 0,
    out: str,
    train: int = 500,
    validation: int = 80,
    test: int = 160,
    samples: int = 6,
) -> None:
    """Write the traces of scripted agents with their exact labels: new files OUT/{split}.parquet.

    ENVIRONMENT is ``desk``. The same seed gives the same bytes. Labels of a step: ``q``,
    ``advantage``, ``optimal``; of a state: ``v``.

    Args:
        environment: ``desk``.
        seed: Seed of tasks and agents, 0 or more.
        out: Folder to write to; it is made if it is not there.
        train: Tasks of the split ``train``.
        validation: Tasks of the split ``validation``.
        test: Tasks of the split ``test``.
        samples: Traces of each task, every one by another agent and with a budget of its own.
    """
    if environment != "desk":
        raise PRMError(f"generate: expected the environment 'desk', found {environment!r}")
    if seed < 0 or min(train, validation, test) < 1:
        raise PRMError("generate: expected a seed of 0 or more and at least 1 task in each split")
    if not 1 <= samples <= len(AGENTS):
        raise PRMError(
            f"generate: expected 1 to {len(AGENTS)} samples (one an agent), found {samples}"
        )
    counts: dict[Split, int] = {"train": train, "validation": validation, "test": test}
    paths = new_outputs(out, [f"{split}.parquet" for split in counts])
    for path, (split, n_tasks) in zip(paths, counts.items(), strict=True):
        runs = _runs(n_tasks, samples, seed, split)
        written = plural(write_traces(map(annotate, play(runs, seed)), path), "trace")
        tasks = plural(n_tasks, "task")
        print(f"{printable(str(path))}: {written} of {tasks}", file=sys.stderr)


def _runs(n_tasks: int, samples: int, seed: int, split: Split) -> list[Run]:
    """Who acts on which task with which budget: every sample of a task by another agent."""
    config = DeskConfig()
    rng = np.random.default_rng(seed)
    names = tuple(AGENTS)
    runs = []
    for task in desk_tasks(n_tasks, seed, split):
        agents = rng.permutation(len(names))[:samples]
        limits = rng.choice(budgets(config, task.hops), size=samples)
        runs += [
            Run(task, names[agent], int(limit), sample)
            for sample, (agent, limit) in enumerate(zip(agents, limits, strict=True))
        ]
    return runs
