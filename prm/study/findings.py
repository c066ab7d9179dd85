"""What reinforcement learning changed in each policy, and how far it is from the exact optimum.

Pure: tables of ``measure`` and ``decisions`` in, estimates out. Tasks are drawn for all policies
alike, and training seeds, where there are three or more, for each policy on its own, so that
differences are paired by task. The same for the neutral states, each of another task.

Axes: S seeds, N tasks, m budgets T, F columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prm.errors import PRMError
from prm.eval.bootstrap import Resampled, combined, resample_means
from prm.eval.estimate import Estimate
from prm.eval.intervals import bca, exact_reach, max_t_band
from prm.eval.steps import Floats
from prm.rl.desk.solution import solve
from prm.rl.desk.world import DeskConfig
from prm.study.decisions import Decisions
from prm.study.measure import Measured

BY_T = ("success", "steps", "checks", "repeated", "cut", "optimal", "judged", "erred", "recovered")
"""Tables of :class:`Measured` that become columns, m each; then the success at each number of
hops, and the success of the exact optimum at each T."""
MAX_HOPS = (2, 3, 4)


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
        by_task = {name: _stacked(map(_columns, seeds)) for name, seeds in measured.items()}
        by_state = {name: _stacked(map(_state_columns, seeds)) for name, seeds in decisions.items()}
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
        table = self._table(measure)
        return self.combination(
            measure, lambda x, y: measure.read(x) - measure.read(y), table[a], table[b]
        )

    def combination(
        self, measure: Measure, function: Callable[..., Floats], *inputs: Resampled
    ) -> list[Estimate]:
        """Any function of policies, with symmetric intervals."""
        found = combined(function, *inputs)
        return [_symmetric(one, self._n(measure)) for one in _each(found)]

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


class Measure(NamedTuple):
    """Something that a policy has, as a function of its mean columns (…, F) -> (…) or (…, m)."""

    label: str
    meaning: str
    read: Callable[[Floats], Floats]
    of_states: bool = False
    percent: bool = True
    is_column: bool = False
    """Whether it is the mean of columns that not every task or state has."""
    share: Callable[[Floats], Floats] | None = None
    """The share in [0, 1] whose luck is in the measure. Where all of a policy's runs agree on 0 or
    1, draws know nothing of that luck, and the exact bound of the share stands for it."""
    falls: bool = False
    """Whether the measure falls as the share rises."""


def by_t(name: str) -> Callable[[Floats], Floats]:
    """(…, F) -> (…, m) the columns of one table."""
    place = BY_T.index(name)

    def read(columns: Floats) -> Floats:
        m = (columns.shape[-1] - len(MAX_HOPS)) // (len(BY_T) + 1)
        return columns[..., place * m : (place + 1) * m]

    return read


def optimum(columns: Floats) -> Floats:
    """(…, F) -> (…, m) what the exact optimum would have on the same tasks."""
    m = (columns.shape[-1] - len(MAX_HOPS)) // (len(BY_T) + 1)
    return columns[..., len(BY_T) * m : (len(BY_T) + 1) * m]


def regret(columns: Floats) -> Floats:
    """(…, F) -> (…, m) success of the exact optimum minus the policy's."""
    return optimum(columns) - by_t("success")(columns)


def _over_t(part: str, weight: str) -> Callable[[Floats], Floats]:
    def read(columns: Floats) -> Floats:
        return _ratio(by_t(part)(columns).sum(axis=-1), by_t(weight)(columns).sum(axis=-1))

    return read


def hops(columns: Floats) -> Floats:
    """(…, F) -> (…, 3) success on the tasks of each number of hops, mean over T."""
    return columns[..., -len(MAX_HOPS) :]


MEASURES: dict[str, Measure] = {
    "success": Measure(
        "Pass@(1,T)", "share of runs that succeed", by_t("success"), share=by_t("success")
    ),
    "regret": Measure(
        "regret",
        "success of the exact optimum for T minus the policy's",
        regret,
        share=by_t("success"),
        falls=True,
    ),
    "regret_worst": Measure(
        "worst-case regret", "the largest regret over T", lambda c: regret(c).max(axis=-1)
    ),
    "regret_mean": Measure("mean regret", "over T", lambda c: regret(c).mean(axis=-1)),
    "steps": Measure("turns used", "mean of a run", by_t("steps"), percent=False),
    "checks": Measure("checks", "calls of refresh in a run", by_t("checks"), percent=False),
    "cut": Measure("out of turns", "share of runs that end without an answer", by_t("cut")),
    "repeated": Measure(
        "repeated calls", "share of the steps that only repeat a call", by_t("repeated")
    ),
    "hops": Measure("success by hops", "with 2, 3 and 4 links to follow, mean over T", hops,
        is_column=True,
    ),
    "own_optimal": Measure(
        "optimal actions, own states",
        "share of exactly optimal actions among those taken, all T",
        _over_t("optimal", "judged"),
    ),
    "natural_recovery": Measure(
        "natural recovery",
        "success of runs whose first action that is not optimal leaves two turns or more, all T",
        _over_t("recovered", "erred"),
    ),
    "single_step": Measure(
        "single-step quality",
        "share of exactly optimal actions in fixed states of neutral agents",
        lambda c: c[..., 0],
        of_states=True,
        is_column=True,
    ),
    "loss": Measure(
        "loss of a step",
        "success given away by one action in those states, V minus Q",
        lambda c: c[..., 1],
        of_states=True,
        is_column=True,
    ),
    "plain": Measure(
        "success from there", "when the policy goes on from those states", lambda c: c[..., 2],
        of_states=True,
        is_column=True,
    ),
    "after_repeat": Measure(
        "recovery from a repeat",
        "the same after its last call was made again, with as many turns left",
        lambda c: c[..., 3],
        of_states=True,
        is_column=True,
    ),
    "after_stray": Measure(
        "recovery from a stray read",
        "the same after a record off the path was read, with as many turns left",
        lambda c: c[..., 4],
        of_states=True,
        is_column=True,
    ),
}  # fmt: skip


def _columns(one: Measured) -> Floats:
    """(N, F)"""
    tables = [np.array(getattr(one, name)).T for name in BY_T]
    n_hops = np.array(one.hops)
    exact = [
        [solve(DeskConfig(), count).success(limit) for limit in one.turns] for count in MAX_HOPS
    ]
    best = np.array([exact[MAX_HOPS.index(count)] for count in one.hops])
    success = tables[0].mean(axis=1)
    by_hops = [np.where(n_hops == count, success, np.nan) for count in MAX_HOPS]
    return np.concatenate([*tables, best, np.stack(by_hops, axis=1)], axis=1)


def _state_columns(one: Decisions) -> Floats:
    """(states, 5); where a mistake cannot be put in, its success is NaN."""
    return np.array(
        [one.optimal_rate, one.value_loss, one.success_rate, one.repeat_rate, one.stray_rate],
        dtype=np.float64,
    ).T


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


def _ratio(part: Floats, weight: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(weight > 0, part / weight, np.nan))


def as_json(estimates: list[Estimate]) -> Any:
    """One number, or a list."""
    found = [one.as_json() for one in estimates]
    return found[0] if len(found) == 1 else found
