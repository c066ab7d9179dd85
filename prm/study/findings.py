"""The policies of a study, resampled together: measures and their differences with intervals.

Pure: tables of ``measure`` and ``decisions`` in, estimates out; what there is to measure is in
``prm.study.measures``. Tasks are drawn for all policies
alike, and training seeds, where there are three or more, for each policy on its own, so that
differences are paired by task. The same for the neutral states, each of another task.

Axes: S seeds, N tasks, m budgets T, F columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from prm.errors import PRMError
from prm.eval.bootstrap import Resampled, combined, resample_means
from prm.eval.estimate import Estimate
from prm.eval.intervals import bca, exact_reach, max_t_band
from prm.eval.steps import Floats
from prm.study.decisions import Decisions
from prm.study.measure import Measured
from prm.study.measures import Measure, by_t, state_columns, task_columns


class Policies:
    """All policies of a study, resampled together.

    Args:
        measured: one for each seed of each policy, all on the same tasks and budgets.
        decisions: the same, all on the same neutral states; {} where they were not measured.
        resamples: draws of tasks and seeds, at least 20; 0 for no intervals.
        seed: of the draws.

    Raises:
        PRMError: policies that were run on other tasks or budgets.
    """

    def __init__(
        self,
        measured: Mapping[str, Sequence[Measured]],
        decisions: Mapping[str, Sequence[Decisions]],
        *,
        resamples: int,
        seed: int = 0,
    ) -> None:
        first = next(iter(measured.values()))[0]
        self.turns, self.n_tasks = tuple(first.turns), len(first.tasks)
        for name, seeds in measured.items():
            for one in seeds:
                if (one.tasks, one.turns) != (first.tasks, first.turns):
                    raise PRMError(
                        f"policy {name!r} was run on other tasks or budgets T than the others: "
                        f"expected {len(first.tasks)} tasks from {first.tasks[0]!r} at T = "
                        f"{first.turns}, found {len(one.tasks)} from {one.tasks[0]!r} at T = "
                        f"{one.turns}"
                    )
        by_task = {name: _stacked(map(task_columns, seeds)) for name, seeds in measured.items()}
        by_state = {name: _stacked(map(state_columns, seeds)) for name, seeds in decisions.items()}
        self._by_task = _resampled(by_task, resamples, seed)
        self._by_state = _resampled(by_state, resamples, seed) if by_state else {}
        self._task_counts = _counts_of(by_task)
        self._state_counts = _counts_of(by_state)
        self.n_states = len(next(iter(decisions.values()))[0].states) if decisions else 0
        self.n_seeds = {name: len(seeds) for name, seeds in measured.items()}

    @property
    def names(self) -> list[str]:
        return list(self._by_task)

    def of(self, name: str, measure: Measure) -> Resampled:
        """A measure of one policy."""
        return combined(measure.read, self._table(measure)[name])

    def estimate(self, name: str, measure: Measure) -> list[Estimate]:
        """With BCa intervals; one number, or one for each T."""
        estimates = self._estimates(self.of(name, measure), measure)
        if measure.share is None:
            return estimates
        shares = _each(self.of(name, measure._replace(read=measure.share)))
        reach = float(exact_reach(np.array(self.n_tasks)))
        return [
            _reaching(estimate, float(share.value), reach, measure.falls)
            for estimate, share in zip(estimates, shares, strict=True)
        ]

    def difference(self, a: str, b: str, measure: Measure) -> list[Estimate]:
        """``a`` minus ``b``, with symmetric intervals (:func:`max_t_band` of each alone)."""
        return self.combination(measure, lambda x, y: measure.read(x) - measure.read(y), a, b)

    def combination(
        self, measure: Measure, function: Callable[..., Floats], *names: str
    ) -> list[Estimate]:
        """Any function of the columns of policies, with symmetric intervals.

        Where all runs of a policy agree, draws know nothing of its luck: the interval is wider by
        the exact bound of a share of tasks.
        """
        found = combined(function, *(self._table(measure)[name] for name in names))
        estimates = [_symmetric(one, self._n(measure)) for one in _each(found)]
        alike = 0 if measure.of_states else sum(map(self._all_agree, names))
        reach = alike * float(exact_reach(np.array(self.n_tasks)))
        return [one._replace(low=one.low - reach, high=one.high + reach) for one in estimates]

    def _all_agree(self, name: str) -> bool:
        """Whether all runs of a policy fail at every T, or all succeed."""
        success = by_t("success")(self._by_task[name].value)
        return bool((success == 0).all() or (success == 1).all())

    def has(self, name: str, measure: Measure) -> bool:
        """Whether the policy has it."""
        return name in self._table(measure)

    def _estimates(self, found: Resampled, measure: Measure) -> list[Estimate]:
        estimates = []
        for one in _each(found):
            low, high = map(float, bca(one))
            if low == high:  # all draws agree: they say nothing about other tasks
                low = high = float("nan")
            estimates.append(Estimate(float(one.value), low, high, self._n(measure), 0))
        if measure.is_column:
            counts = np.atleast_1d(measure.read(self._counts(measure)))
            estimates = [
                estimate._replace(n=int(n)) for estimate, n in zip(estimates, counts, strict=True)
            ]
        return estimates

    def _counts(self, measure: Measure) -> Floats:
        """(F,) tasks or states that have each column."""
        return self._state_counts if measure.of_states else self._task_counts

    def _table(self, measure: Measure) -> dict[str, Resampled]:
        return self._by_state if measure.of_states else self._by_task

    def _n(self, measure: Measure) -> int:
        return self.n_states if measure.of_states else self.n_tasks


def _resampled(tables: dict[str, Floats], resamples: int, seed: int) -> dict[str, Resampled]:
    drawn = resample_means(
        list(tables.values()), resamples=resamples, rng=np.random.default_rng(seed)
    )
    return dict(zip(tables, drawn, strict=True))


def _stacked(tables: Iterable[Floats]) -> Floats:
    return np.stack(list(tables))


def _counts_of(tables: dict[str, Floats]) -> Floats:
    """(F,) rows that have each column, of any policy: which do is the same for all."""
    if not tables:
        return np.zeros(0)
    return np.asarray((~np.isnan(next(iter(tables.values()))[0])).sum(axis=0), dtype=np.float64)


def _reaching(estimate: Estimate, share: float, reach: float, falls: bool) -> Estimate:
    """The interval with the exact bound of a share that is 0 or 1."""
    if share not in (0, 1):
        return estimate
    low, high = (
        estimate.value if math.isnan(end) else end for end in (estimate.low, estimate.high)
    )
    if (share == 1) == falls:
        return estimate._replace(low=low, high=high + reach)
    return estimate._replace(low=low - reach, high=high)


def _symmetric(found: Resampled, n: int) -> Estimate:
    low, high, _ = max_t_band(found)
    return Estimate(float(found.value), float(low), float(high), n, 0)


def _each(found: Resampled) -> list[Resampled]:
    """One for each entry of a statistic of shape () or (m,)."""
    if found.value.ndim == 0:
        return [found]
    return [combined(lambda v, i=i: v[..., i], found) for i in range(found.value.shape[-1])]


def as_json(estimates: list[Estimate]) -> Any:
    """One number, or a list."""
    found = [one.as_json() for one in estimates]
    return found[0] if len(found) == 1 else found
