"""What is measured of a policy: each measure as a function of the mean columns of its tables.

Columns are means over tasks (or over fixed states), so that a measure can be taken of the data, of
every bootstrap draw and of the jackknife alike; ratios and maxima are taken after the means.

Axes: N tasks, m budgets T, F columns: the tables ``BY_T``, m each; the success of the exact optimum
at each T; the success at each number of links.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from prm.eval.steps import Floats
from prm.rl.desk.solution import solve
from prm.rl.desk.world import DeskConfig
from prm.study.decisions import Decisions
from prm.study.measure import Measured

BY_T = ("success", "steps", "checks", "repeated", "cut", "optimal", "judged", "erred", "recovered")
"""Tables of :class:`Measured` that become columns."""
HOPS = DeskConfig().hops


class Measure(NamedTuple):
    """Something that a policy has, as a function of its mean columns (…, F) -> (…) or (…, m)."""

    label: str
    meaning: str
    read: Callable[[Floats], Floats]
    of_states: bool = False
    """Whether the columns are those of :func:`state_columns`, else of :func:`task_columns`."""
    percent: bool = True
    """Whether it is a share."""
    is_column: bool = False
    """Whether it is the mean of columns that not every task or state has."""
    share: Callable[[Floats], Floats] | None = None
    """The share in [0, 1] whose luck is in the measure. Where all of a policy's runs agree on 0 or
    1, draws know nothing of that luck, and the exact bound of the share stands for it."""
    falls: bool = False
    """Whether the measure falls as the share rises."""


def task_columns(one: Measured) -> Floats:
    """(N, F) of one seed."""
    tables = [np.array(getattr(one, name)).T for name in BY_T]
    n_hops = np.array(one.hops)
    exact = [[solve(DeskConfig(), count).success(limit) for limit in one.turns] for count in HOPS]
    best = np.array([exact[HOPS.index(count)] for count in one.hops])
    success = tables[0].mean(axis=1)
    by_hops = [np.where(n_hops == count, success, np.nan) for count in HOPS]
    return np.concatenate([*tables, best, np.stack(by_hops, axis=1)], axis=1)


def state_columns(one: Decisions) -> Floats:
    """(states, 5); where a mistake cannot be put in, its success is NaN."""
    return np.array(
        [one.optimal_rate, one.value_loss, one.success_rate, one.repeat_rate, one.stray_rate],
        dtype=np.float64,
    ).T


def by_t(name: str) -> Callable[[Floats], Floats]:
    """(…, F) -> (…, m) the columns of one table."""
    place = BY_T.index(name)

    def read(columns: Floats) -> Floats:
        m = (columns.shape[-1] - len(HOPS)) // (len(BY_T) + 1)
        return columns[..., place * m : (place + 1) * m]

    return read


def optimum(columns: Floats) -> Floats:
    """(…, F) -> (…, m) what the exact optimum would have on the same tasks."""
    m = (columns.shape[-1] - len(HOPS)) // (len(BY_T) + 1)
    return columns[..., len(BY_T) * m : (len(BY_T) + 1) * m]


def regret(columns: Floats) -> Floats:
    """(…, F) -> (…, m) success of the exact optimum minus the policy's."""
    return optimum(columns) - by_t("success")(columns)


def _over_t(part: str, weight: str) -> Callable[[Floats], Floats]:
    def read(columns: Floats) -> Floats:
        return _ratio(by_t(part)(columns).sum(axis=-1), by_t(weight)(columns).sum(axis=-1))

    return read


def _at_worst(columns: Floats) -> Floats:
    """(…, F) -> (…) success at the T of the largest regret."""
    place = regret(columns).argmax(axis=-1)
    return np.take_along_axis(by_t("success")(columns), place[..., None], axis=-1)[..., 0]


def hops(columns: Floats) -> Floats:
    """(…, F) -> (…, 3) success on the tasks of each number of hops, mean over T."""
    return columns[..., -len(HOPS) :]


def _of_states(place: int, label: str, meaning: str) -> Measure:
    """One of :func:`state_columns`."""
    return Measure(label, meaning, lambda c: c[..., place], of_states=True, is_column=True)


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
        "worst-case regret",
        "the largest regret over T",
        lambda c: regret(c).max(axis=-1),
        share=_at_worst,
        falls=True,
    ),
    "regret_mean": Measure(
        "mean regret",
        "over T",
        lambda c: regret(c).mean(axis=-1),
        share=lambda c: by_t("success")(c).mean(axis=-1),
        falls=True,
    ),
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
    "single_step": _of_states(
        0,
        "single-step quality",
        "share of exactly optimal actions in fixed states of neutral agents",
    ),
    "loss": _of_states(
        1, "loss of a step", "success given away by one action in those states, V minus Q"
    ),
    "plain": _of_states(2, "success from there", "when the policy goes on from those states"),
    "after_repeat": _of_states(
        3,
        "recovery from a repeat",
        "the same after its last call was made again, with as many turns left",
    ),
    "after_stray": _of_states(
        4,
        "recovery from a stray read",
        "the same after a record off the path was read, with as many turns left",
    ),
}  # fmt: skip


def _ratio(part: Floats, weight: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(weight > 0, part / weight, np.nan))
