"""Samplers of the turn budget T: one T for each group of rollouts.

``FixedBudget``       always the same T.
``BudgetMix``         T drawn from a grid with weights, which may follow where success moves.
``BudgetCurriculum``  T that rises with training, by the schedules that were published.

A group is the n rollouts of one task that a group estimator compares, so all of them get one T:
else a rollout would be blamed for having had fewer turns. Every sampler takes exactly one number
per group from the generator, so that arms of a study that differ in nothing else draw the same
tasks.

A budget is a number of turns, or with ``unit="shortest"`` a multiple of the shortest successful
episode of the task, rounded up; in that unit one grid serves tasks of different lengths.

Left out: budgets in tokens or seconds, and a T that changes within a group.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prm.errors import PRMError

Unit = Literal["turns", "shortest"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class BudgetSampler(ABC):
    """Draws levels of a grid with the shares that a subclass says, and counts them.

    Attributes:
        levels: (K,) budgets, in ``unit``.
        drawn: (K,) groups that have got each level so far.
    """

    def __init__(self, levels: Sequence[float], unit: Unit) -> None:
        if unit not in get_args(Unit):
            raise PRMError(f"unit {unit!r}: expected one of {', '.join(get_args(Unit))}")
        if not levels:
            raise PRMError("budgets: expected at least one, found none")
        for level in levels:
            _check_level(level, unit)
        self.levels = np.array(levels, dtype=np.float64)
        self.unit: Unit = unit
        self.drawn: Ints = np.zeros(len(levels), dtype=np.int64)

    @abstractmethod
    def shares(self, *, step: int, progress: float) -> Floats:
        """(K,) probability of each level, at this point of training."""

    def sample(
        self,
        n_groups: int,
        *,
        step: int,
        progress: float,
        rng: np.random.Generator,
        shortest: ArrayLike | None = None,
    ) -> Ints:
        """(n_groups,) turns T, one for all rollouts of a group.

        Args:
            n_groups: how many groups are about to be rolled out.
            step: updates done before this one, from 0.
            progress: share of training done, in [0, 1].
            rng: takes ``n_groups`` numbers from it, whatever the sampler.
            shortest: (n_groups,) turns of the shortest successful episode of each task; read by
                ``unit="shortest"`` alone.

        Raises:
            PRMError: a number out of its range, or ``shortest`` missing or of another length.
        """
        if n_groups < 1 or step < 0:
            raise PRMError(
                f"budgets: expected at least 1 group and a step of at least 0, found {n_groups} "
                f"and {step}"
            )
        if not 0 <= progress <= 1:
            raise PRMError(f"progress {progress}: expected the share of training done, in [0, 1]")
        cumulated = np.cumsum(self.shares(step=step, progress=progress))
        uniforms = rng.random(n_groups) * cumulated[-1]
        chosen = np.searchsorted(cumulated, uniforms, side="right")
        turns = self._turns(chosen, shortest)
        self._count(chosen)
        return turns

    def describe(self) -> dict[str, Any]:
        """Plain values for a log: the kind, the grid, its unit, and the groups drawn by level."""
        drawn = {
            f"{level:g}": count
            for level, count in zip(self.levels.tolist(), self.drawn.tolist(), strict=True)
        }
        return {"kind": type(self).__name__, "unit": self.unit, "drawn": drawn}

    def _count(self, chosen: Ints) -> None:
        self.drawn += np.bincount(chosen, minlength=len(self.levels))

    def _turns(self, chosen: Ints, shortest: ArrayLike | None) -> Ints:
        levels = self.levels[chosen]
        if self.unit == "turns":
            return levels.astype(np.int64)
        if shortest is None:
            raise PRMError(
                "unit 'shortest': expected the shortest episode of each task, found none: a "
                "multiple of it is no number of turns by itself"
            )
        lengths = np.asarray(shortest)
        if lengths.shape != chosen.shape or not (np.isfinite(lengths) & (lengths >= 1)).all():
            raise PRMError(
                f"shortest: expected {len(chosen)} finite numbers of at least 1, one for each "
                f"group, found {lengths.tolist()}"
            )
        return turns_of(levels, lengths)


class FixedBudget(BudgetSampler):
    """The same budget for every group.

    >>> budget = FixedBudget(10)
    >>> budget.sample(3, step=0, progress=0.0, rng=np.random.default_rng(0))
    array([10, 10, 10])
    >>> budget.describe()
    {'kind': 'FixedBudget', 'unit': 'turns', 'drawn': {'10': 3}}
    """

    def __init__(self, level: float, *, unit: Unit = "turns") -> None:
        super().__init__([level], unit)

    def shares(self, *, step: int, progress: float) -> Floats:
        """All on the one level."""
        return np.ones(1)


class BudgetMix(BudgetSampler):
    """A budget drawn for each group, with weights.

    With ``adapt`` above 0 that share of the groups follows the movement of success (the rest keep
    the weights, so that no budget is left without rollouts). By the online rule of teacher-student
    curricula (Matiisen et al. 2017, arXiv 1707.00183, algorithm 1): each time a level is observed,
    Q <- rate · (success - success of the last time) + (1 - rate) · Q, and the share of a level
    goes as |Q|. A fall counts as much as a rise: what is being forgotten is to be practised.
    With few groups a level, chance moves success too, most where it is near one half.

    Args:
        levels: (K,) different budgets, in ``unit``.
        weights: (K,) relative shares, at least 0; equal ones if None.
        unit: turns, or shortest for multiples of a task's shortest successful episode.
        adapt: share of the groups that follows success, in [0, 1); 0 keeps the weights alone.
        rate: of the average of the movement, in (0, 1].

    >>> mix = BudgetMix([5, 10, 20], [1, 1, 2])
    >>> mix.sample(8, step=0, progress=0.0, rng=np.random.default_rng(0))
    array([20, 10,  5,  5, 20, 20, 20, 20])
    >>> ratios = BudgetMix([1.0, 1.5], unit="shortest")
    >>> rng = np.random.default_rng(0)
    >>> ratios.sample(3, step=0, progress=0.0, rng=rng, shortest=[5, 5, 7])
    array([8, 5, 7])
    """

    def __init__(
        self,
        levels: Sequence[float],
        weights: Sequence[float] | None = None,
        *,
        unit: Unit = "turns",
        adapt: float = 0.0,
        rate: float = 0.1,
    ) -> None:
        super().__init__(levels, unit)
        if len(set(levels)) != len(levels):
            raise PRMError(f"budgets {_listed(levels)}: expected different ones, give more weight")
        if not 0 <= adapt < 1:
            raise PRMError(
                f"adapt {adapt:g}: expected a share in [0, 1): the rest of the groups keep the "
                f"weights, so that success is seen at every budget"
            )
        if not 0 < rate <= 1:
            raise PRMError(f"rate {rate:g}: expected a number in (0, 1]")
        self.adapt, self.rate = adapt, rate
        self.weights = _normalised([1.0] * len(levels) if weights is None else weights, levels)
        self._success: Floats = np.full(len(levels), np.nan)
        self._movement: Floats = np.zeros(len(levels))
        self._waiting: Ints | None = None

    def shares(self, *, step: int, progress: float) -> Floats:
        """The weights, and their mixture with the movement of success where that is followed."""
        movement = np.abs(self._movement)
        if self.adapt == 0 or movement.sum() == 0:
            return self.weights
        moved: Floats = movement / movement.sum()
        return (1 - self.adapt) * self.weights + self.adapt * moved

    def observe(self, success: ArrayLike) -> None:
        """Take in the success of the groups of the last ``sample``, in its order.

        Args:
            success: (n_groups,) success rate of each group in [0, 1]; NaN where it is unknown.

        Raises:
            PRMError: no draw is waiting for its success, another number of groups, or a rate
                outside [0, 1].
        """
        rates = np.asarray(success, dtype=np.float64)
        if self._waiting is None:
            raise PRMError("observe: every draw has been observed already: call sample first")
        if rates.shape != self._waiting.shape:
            raise PRMError(
                f"success: expected one rate for each of the {len(self._waiting)} groups of the "
                f"last draw, found shape {rates.shape}"
            )
        if ((rates < 0) | (rates > 1)).any():
            raise PRMError("success: expected rates in [0, 1], or NaN where unknown")
        for level in range(len(self.levels)):
            known = rates[(self._waiting == level) & ~np.isnan(rates)]
            if len(known):
                self._move(level, float(known.mean()))
        self._waiting = None

    def describe(self) -> dict[str, Any]:
        """As for every sampler, and the shares as they are now."""
        shares = self.shares(step=0, progress=0.0)
        return super().describe() | {"shares": shares.tolist(), "adapt": self.adapt}

    def _count(self, chosen: Ints) -> None:
        super()._count(chosen)
        self._waiting = chosen

    def _move(self, level: int, success: float) -> None:
        if not math.isnan(self._success[level]):
            change = success - self._success[level]
            self._movement[level] += self.rate * (change - self._movement[level])
        self._success[level] = success


class BudgetCurriculum(BudgetSampler):
    """Caps that rise with training: the next one every ``every`` updates, then the last one.

    ScalingInter-RL (arXiv 2509.08755, ``StepRoundsScheduler``) is caps 10, 20, 30 and every 100;
    ``multiplicative`` and ``additive`` are the schedules of TTI (arXiv 2506.07976).

    Args:
        caps: rising budgets, in ``unit``.
        every: updates at each cap; None divides training equally, by its progress.
        unit: turns, or shortest for multiples of a task's shortest successful episode.

    >>> tti = BudgetCurriculum.multiplicative(10, 30, every=1)
    >>> rng = np.random.default_rng(0)
    >>> [tti.sample(1, step=i, progress=i / 5, rng=rng).item() for i in range(5)]
    [10, 20, 30, 30, 30]
    """

    def __init__(
        self, caps: Sequence[float], every: int | None = None, *, unit: Unit = "turns"
    ) -> None:
        super().__init__(caps, unit)
        if not all(low < high for low, high in pairwise(caps)):
            raise PRMError(f"caps {_listed(caps)}: expected each above the one before it")
        if every is not None and every < 1:
            raise PRMError(f"every {every}: expected at least 1 update at each cap, or None")
        self.every = every

    @classmethod
    def multiplicative(cls, lowest: int, highest: int, *, every: int) -> Self:
        """TTI: clip(lowest · i, highest) turns at iteration i = 1, 2, … of ``every`` updates."""
        _check_bounds(lowest, highest)
        return cls([*range(lowest, highest, lowest), highest], every)

    @classmethod
    def additive(cls, lowest: int, highest: int, *, every: int) -> Self:
        """TTI: one more turn each iteration of ``every`` updates, from lowest to highest."""
        _check_bounds(lowest, highest)
        return cls([*range(lowest, highest + 1)], every)

    def shares(self, *, step: int, progress: float) -> Floats:
        """All on the cap of this step."""
        last = len(self.levels) - 1
        stage = int(progress * len(self.levels)) if self.every is None else step // self.every
        shares: Floats = np.eye(last + 1)[min(stage, last)]
        return shares

    def describe(self) -> dict[str, Any]:
        """As for every sampler, and the updates at each cap."""
        return super().describe() | {"every": self.every}


def turns_of(ratios: ArrayLike, shortest: ArrayLike) -> Ints:
    """Multiples of the shortest episode in turns, rounded up; elementwise.

    What a product is above a whole number by rounding alone does not cost a turn more.

    >>> turns_of([1.0, 1.25, 1.1], [5, 5, 10])
    array([ 5,  7, 11])
    """
    exact = np.asarray(ratios, dtype=np.float64) * np.asarray(shortest)
    turns: Ints = np.ceil(exact.round(9)).astype(np.int64)
    return turns


def _check_level(level: float, unit: Unit) -> None:
    if not (math.isfinite(level) and level >= 1):
        why = "without a turn nothing can be done" if unit == "turns" else "below, none is solvable"
        raise PRMError(f"budget {level:g}: expected at least 1 ({why})")
    if unit == "turns" and level != int(level):
        raise PRMError(
            f"budget {level:g}: expected a whole number of turns; multiples of the shortest "
            f"episode need unit 'shortest'"
        )


def _check_bounds(lowest: int, highest: int) -> None:
    if not 1 <= lowest < highest:
        raise PRMError(f"expected 1 <= lowest < highest, found {lowest} and {highest}")


def _normalised(weights: Sequence[float], levels: Sequence[float]) -> Floats:
    if len(weights) != len(levels):
        raise PRMError(
            f"weights: expected one for each of the {len(levels)} budgets, found {len(weights)}"
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not sum(weights):
        raise PRMError(
            f"weights {_listed(weights)}: expected finite numbers of at least 0, one of them above"
        )
    return np.array(weights, dtype=np.float64) / sum(weights)


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
