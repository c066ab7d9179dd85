"""The numbers that ``StepGRPOTrainer`` logs of a batch of rollouts of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prm.rl.credit import Credit, Scored
from prm.shaping import ShapingConfig


class Row(NamedTuple):
    """What processes tell each other of a rollout."""

    scored: Scored
    max_turns: int | None
    success: bool | None
    valid: bool


def numbers(rows: Sequence[Row], credit: Credit, shaping: ShapingConfig) -> dict[str, float]:
    """Means over the batch by the name that they are logged under; NaN where nothing is known."""
    scores = [row.scored.scores for row in rows]
    read = [found.states if shaping.reads_states else found.actions for found in scores]
    found = {
        "outcome": _mean([row.scored.outcome for row in rows]),
        "score": _mean(np.concatenate(read)),
        "process": _mean(credit.process),
        "process_share": credit.share,
        "steps": _mean([len(row.scored.scores.actions) for row in rows]),
        "invalid": float(sum(not row.valid for row in rows)),
    }
    for limit in sorted({row.max_turns for row in rows if row.max_turns is not None}):
        known = [row.success for row in rows if row.max_turns == limit and row.success is not None]
        found[f"success/T={limit}"] = _mean(known)
        found[f"rollouts/T={limit}"] = float(len(known))
    return found


def success_of_groups(rows: Sequence[Row], size: int) -> NDArray[np.float64]:
    """(B / size,) success rate of each group; NaN where none of its rollouts says."""
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    return np.array([_mean([r.success for r in g if r.success is not None]) for g in groups])


def _mean(values: object) -> float:
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else float("nan")
