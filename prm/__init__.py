"""Step-level reward models for tool-calling agents.

Axes, used everywhere: N tasks, n samples a task, S steps a trace, B traces a batch, L tokens.
Names load on first use, so that ``import prm`` stays fast (no torch until a model is needed).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prm.data.diagnostics import Diagnostics as Diagnostics
    from prm.data.files import read_traces as read_traces
    from prm.data.files import write_traces as write_traces
    from prm.data.split import split_by_task as split_by_task
    from prm.data.tables import to_dataset as to_dataset
    from prm.data.trace import Outcome as Outcome
    from prm.data.trace import Step as Step
    from prm.data.trace import Trace as Trace
    from prm.errors import PRMError as PRMError
    from prm.errors import RecordError as RecordError
    from prm.eval.budget_report import budget_report as budget_report
    from prm.eval.budget_runs import BudgetOptions as BudgetOptions
    from prm.eval.estimate import Estimate as Estimate
    from prm.eval.pass_at_kt import pass_at_kt as pass_at_kt
    from prm.eval.pass_at_kt import pass_hat_kt as pass_hat_kt
    from prm.model.network import StepRewardModel as StepRewardModel
    from prm.scoring.scorer import Scorer as Scorer
    from prm.shaping.advantages import shaped_advantages as shaped_advantages
    from prm.shaping.config import ShapingConfig as ShapingConfig
    from prm.shaping.modes import StepRewards as StepRewards
    from prm.shaping.modes import step_rewards as step_rewards
    from prm.training.config import TrainConfig as TrainConfig
    from prm.training.train import train as train

_HOMES = {
    "BudgetOptions": "prm.eval.budget_runs",
    "Diagnostics": "prm.data.diagnostics",
    "Estimate": "prm.eval.estimate",
    "Outcome": "prm.data.trace",
    "PRMError": "prm.errors",
    "RecordError": "prm.errors",
    "Scorer": "prm.scoring.scorer",
    "ShapingConfig": "prm.shaping.config",
    "Step": "prm.data.trace",
    "StepRewardModel": "prm.model.network",
    "StepRewards": "prm.shaping.modes",
    "Trace": "prm.data.trace",
    "TrainConfig": "prm.training.config",
    "budget_report": "prm.eval.budget_report",
    "pass_at_kt": "prm.eval.pass_at_kt",
    "pass_hat_kt": "prm.eval.pass_at_kt",
    "read_traces": "prm.data.files",
    "shaped_advantages": "prm.shaping.advantages",
    "split_by_task": "prm.data.split",
    "step_rewards": "prm.shaping.modes",
    "to_dataset": "prm.data.tables",
    "train": "prm.training.train",
    "write_traces": "prm.data.files",
}

__all__ = list(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'prm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
