"""From scores and outcomes of a batch of rollouts to the advantage of every step.

This is ``prm.shaping.shaped_advantages`` for a trainer's batch, in which some rollouts say nothing
(their episode broke): these get no credit and are compared with nothing. Beside the advantages it
says how much of them is the work of the process reward.

Left out: scores (``prm.rl.step_scores``), tokens (``prm.shaping.tokens``), trainers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prm.model.predict import TraceScores
from prm.shaping import Estimator, ShapingConfig, shaped_advantages, step_rewards

Floats = NDArray[np.float64]


class Scored(NamedTuple):
    """What is known of one rollout of S steps."""

    scores: TraceScores
    """(S,) and (S + 1,) scores; not read by mode terminal."""
    outcome: float
    """Terminal reward; NaN if the rollout says nothing about the policy."""
    terminated: bool
    """Whether nothing could have followed; else it was cut, and potentials stand for the rest."""
    group: int
    """The same for the rollouts that are compared."""


class Credit(NamedTuple):
    """The advantages of B rollouts, and what they are made of."""

    advantages: list[Floats]
    """(B,) arrays of (S,): one advantage a step; 0 where a rollout has nothing to be compared
    with."""
    process: Floats
    """(B,) sum of the weighted process rewards of each rollout; 0 in modes that act in the
    advantage alone, NaN where it gets no credit."""
    share: float
    """Of the absolute advantages, the part that comes from the process: Σ|A − A'| / (Σ|A − A'| +
    Σ|A'|), A' being the advantages without process reward; NaN where all are 0."""


def step_credit(
    config: ShapingConfig,
    batch: Sequence[Scored],
    *,
    estimator: Estimator | None = None,
    progress: float = 0.0,
) -> Credit:
    """Advantages of the steps of B rollouts.

    Args:
        config: the mode, its weights and its discount.
        batch: the rollouts; each has a step at least.
        estimator: how rollouts of a group are compared; None is ``outcome`` (GRPO) in mode
            terminal and ``alive_mean`` in all others.
        progress: share of training done, in [0, 1].

    Raises:
        PRMError: as ``shaped_advantages``.
    """
    if estimator is None:
        estimator = "outcome" if config.mode == "terminal" else "alive_mean"
    advantages = [np.zeros(len(row.scores.actions)) for row in batch]
    process = np.full(len(batch), np.nan)
    used = _comparable(config, batch)
    if not used:
        return Credit(advantages, process, float("nan"))
    rows = [batch[index] for index in used]
    lengths = np.array([len(row.scores.actions) for row in rows])
    width = int(lengths.max())
    actions, states = np.full((len(rows), width), np.nan), np.full((len(rows), width + 1), np.nan)
    for place, row in enumerate(rows):
        actions[place, : lengths[place]] = row.scores.actions
        states[place, : lengths[place] + 1] = row.scores.states
    reads_actions = config.mode != "terminal" and not config.reads_states
    shown = {
        "action_scores": actions if reads_actions else None,
        "state_scores": states if config.reads_states else None,
        "terminal_reward": np.array([row.outcome for row in rows]),
        "terminated": np.array([row.terminated for row in rows]),
        "step_mask": np.arange(width) < lengths[:, None],
    }
    group = np.array([row.group for row in rows])

    def advantages_of(config: ShapingConfig) -> Floats:
        found: Floats = shaped_advantages(
            config, **shown, group=group, estimator=estimator, progress=progress
        )
        return found

    blended = advantages_of(config)
    without = advantages_of(
        replace(config, process_weight=0.0, schedule="constant", final_weight=0.0)
    )
    rewards = step_rewards(config, **shown, progress=progress)
    for place, index in enumerate(used):
        advantages[index] = blended[place, : lengths[place]]
        process[index] = rewards.process[place].sum()
    moved = np.abs(blended - without).sum()
    whole = moved + np.abs(without).sum()
    return Credit(advantages, process, float(moved / whole) if whole else float("nan"))


def _comparable(config: ShapingConfig, batch: Sequence[Scored]) -> list[int]:
    """Rollouts with an outcome, and, but for a critic, with company in their group."""
    known = [index for index, row in enumerate(batch) if not np.isnan(row.outcome)]
    if config.mode == "critic":
        return known
    groups, sizes = np.unique([batch[index].group for index in known], return_counts=True)
    size_of = dict(zip(groups.tolist(), sizes.tolist(), strict=True))
    return [index for index in known if size_of[batch[index].group] > 1]


def outcome_scale(
    outcomes: Floats, size: int, scale_rewards: Literal["group", "batch", "none"]
) -> Floats:
    """(B,) what TRL divides the advantages of GRPO by: a standard deviation and 1e-4, or 1.

    Args:
        outcomes: (B,) terminal rewards, groups one after another; NaN = unknown, not counted.
        size: rollouts in a group.
        scale_rewards: TRL's setting.

    >>> outcome_scale(np.array([0.0, 2.0, 1.0, 1.0]), 2, "group").round(4).tolist()
    [1.4143, 1.4143, 0.0001, 0.0001]
    """
    if scale_rewards == "none":
        return np.ones(len(outcomes))
    cells = outcomes.reshape(-1, size if scale_rewards == "group" else len(outcomes))
    known = (~np.isnan(cells)).sum(axis=1, keepdims=True)
    centred = np.nan_to_num(cells - np.nansum(cells, axis=1, keepdims=True) / np.maximum(known, 1))
    square = (centred**2).sum(axis=1, keepdims=True) / np.maximum(known - 1, 1)
    return np.broadcast_to(np.sqrt(square) + 1e-4, cells.shape).reshape(-1)
