"""Pass@(K,T) and pass^K: what a policy solves with K trajectories of at most T turns each.

Of n trajectories of a task, c succeed within T turns. Drawing K of them without replacement,

    Pass@(K,T) = P(at least one succeeds) = 1 - C(n - c, K) / C(n, K)      (Chen et al. 2021, arXiv
    pass^(K,T) = P(all succeed)           =     C(c, K)     / C(n, K)       2107.03374; Yao et al.
                                                                            2024, arXiv 2406.12045)

both unbiased for n >= K and not defined (NaN) below. Over tasks the mean is taken; a task without
K trajectories is left out and counted. At K = n the estimator is 1 or 0 and its variance largest.

Counts come from two sources, which are types of their own because they measure different things:
:class:`CutCounts`, trajectories sampled once at a generous budget and cut at each T (monotone in T
by construction, and no measure of a policy that knows its budget), and :class:`RerunCounts`,
trajectories sampled anew at each T.

Axes: N tasks, T budgets, K numbers of trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prm.data.trace import Trace
from prm.errors import PRMError, plural
from prm.eval.rows import numbered
from prm.eval.steps import Floats, Ints

MAX_T = 1_000_000
"""Turns; no run is longer, and a larger number is a mistake."""


def pass_at_kt(successes: Ints, samples: Ints, k: Sequence[int]) -> Floats:
    """Pass@(K,T) of each task.

    Args:
        successes: (N, T) trajectories c that succeed within each budget.
        samples: (N, T) trajectories n, or (N,) when they are the same at every budget.
        k: (K,) each at least 1.

    Returns:
        (N, K, T) in [0, 1]; NaN where n < K.

    Raises:
        ValueError: a count that is negative, or c > n, or a K below 1.

    >>> pass_at_kt(np.array([[0, 1, 2]]), np.array([4]), k=[1, 2]).round(3)
    array([[[0.   , 0.25 , 0.5  ],
            [0.   , 0.5  , 0.833]]])
    """
    successes, samples = _checked(successes, samples, k)
    return 1 - _all_drawn_from(samples - successes, samples, k)


def pass_hat_kt(successes: Ints, samples: Ints, k: Sequence[int]) -> Floats:
    """pass^(K,T) of each task; arguments and result as for :func:`pass_at_kt`.

    >>> pass_hat_kt(np.array([[0, 1, 2, 4]]), np.array([4]), k=[2]).round(3)
    array([[[0.   , 0.   , 0.167, 1.   ]]])
    """
    successes, samples = _checked(successes, samples, k)
    return _all_drawn_from(successes, samples, k)


def _checked(successes: Ints, samples: Ints, k: Sequence[int]) -> tuple[Ints, Ints]:
    successes, samples = np.asarray(successes), np.asarray(samples)
    samples = np.broadcast_to(samples[:, None] if samples.ndim == 1 else samples, successes.shape)
    if (successes < 0).any() or (successes > samples).any():
        raise ValueError("expected 0 <= successes <= samples in every cell")
    if not len(k) or any(size < 1 or size != int(size) for size in k):
        raise ValueError(f"expected whole numbers K of 1 or more, found {list(k)}")
    return successes, samples


def _all_drawn_from(part: Ints, whole: Ints, k: Sequence[int]) -> Floats:
    """(N, K, T) C(part, K) / C(whole, K): all K drawn from ``whole`` lie in ``part``.

    The ratio is the product of (m - K) / m over m = whole, whole - 1, …, part + 1, so the ratios
    of one ``whole`` for all parts are one cumulative product; few different ``whole`` occur.
    """
    found = np.full((len(part), len(k), part.shape[1]), np.nan)
    for n in np.unique(whole).tolist():
        here = whole == n
        for place, size in enumerate(k):
            if size > n:
                continue
            m = np.arange(n, 0, -1)
            ratios = np.concatenate([[1.0], np.cumprod(np.maximum(m - size, 0) / m)])
            found[:, place, :][here] = ratios[n - part[here]]
    return found


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """Counts of one policy over the tasks that it was run on."""

    policy: str
    tasks: tuple[str, ...]
    """(N,) ids, sorted."""
    t: tuple[int, ...]
    """(T,) budgets in turns, ascending."""
    samples: Ints
    """(N, T) trajectories with a known outcome."""
    successes: Ints
    """(N, T) those that succeed within the budget."""
    turns: Floats
    """(N, T) mean of min(turns, T) over the trajectories; NaN where there is none."""
    n_skipped: int
    """Trajectories without success information, left out."""


class CutCounts(_Counts):
    """From trajectories sampled once at a generous budget, cut at each T."""


class RerunCounts(_Counts):
    """From trajectories sampled anew at each T."""


Counts = CutCounts | RerunCounts


def cut_counts(policy: str, traces: Sequence[Trace], t: Sequence[int] | None = None) -> CutCounts:
    """Count the successes of a policy's trajectories within each budget T, cut afterwards.

    A success counts within T when the whole trajectory has at most T steps.

    Args:
        policy: its name.
        traces: its trajectories; those without success information are skipped and counted.
        t: budgets. None = Fibonacci numbers up to the budget of the runs, and that budget.

    Raises:
        PRMError: no trajectory has success information, or a T is above the budget that the runs
            had: what they would have done with more turns cannot be known.
    """
    known = with_success(policy, traces)
    allowed = [limit for trace in known if (limit := turn_limit(trace)) is not None]
    budget = min(allowed) if allowed else max(trace.n_steps for trace in known)
    grid = default_grid(budget) if t is None else _grid(t)
    if allowed and grid[-1] > budget:
        run = next(trace for trace in known if turn_limit(trace) == budget)
        raise PRMError(
            f"T = {grid[-1]} is above the {plural(budget, 'turn')} that run {run.id!r} of policy "
            f"{policy!r} was allowed; what it would have done with more cannot be known from cut "
            f"runs (choose --t up to {budget}, or give runs made at each T)"
        )
    lengths = np.array([trace.n_steps for trace in known])
    within = lengths[:, None] <= np.array(grid)
    success = np.array([bool(trace.outcome.success) for trace in known])[:, None] & within
    table = _count(known, success, np.ones_like(within), grid)
    return CutCounts(policy=policy, n_skipped=len(traces) - len(known), **table)


def turn_limit(trace: Trace) -> int | None:
    """The turns that a run was allowed; a run stopped by its limit tells it. None = unknown."""
    if trace.outcome.max_turns is None and trace.outcome.status == "out_of_turns":
        return trace.n_steps
    return trace.outcome.max_turns


def rerun_counts(
    policy: str, traces: Sequence[Trace], t: Sequence[int] | None = None
) -> RerunCounts:
    """Count the successes of a policy's trajectories that were sampled at each budget T.

    The budget of a trajectory is its ``outcome.max_turns``.

    Args:
        policy: its name.
        traces: its trajectories; those without success information are skipped and counted.
        t: budgets to report, each among those of the runs. None = all of them.

    Raises:
        PRMError: no trajectory has success information, one has no budget, or none was run at
            a T that is asked for.
    """
    known = with_success(policy, traces)
    for trace in known:
        if trace.outcome.max_turns is None:
            raise PRMError(
                f"run {trace.id!r} of policy {policy!r} has no outcome.max_turns, so the budget "
                f"that it was run at is not known (use --source cut for runs at one budget)"
            )
    budget = np.array([trace.outcome.max_turns for trace in known])
    ran = tuple(np.unique(budget).tolist())
    grid = ran if t is None else _grid(t)
    missing = [value for value in grid if value not in ran]
    if missing:
        raise PRMError(
            f"policy {policy!r} has no run at T = {missing[0]}; it was run at "
            f"{', '.join(map(str, ran))}"
        )
    at = budget[:, None] == np.array(grid)
    lengths = np.array([trace.n_steps for trace in known])
    success = np.array([bool(trace.outcome.success) for trace in known]) & (lengths <= budget)
    table = _count(known, success[:, None] & at, at, grid)
    return RerunCounts(policy=policy, n_skipped=len(traces) - len(known), **table)


def default_grid(budget: int) -> tuple[int, ...]:
    """Fibonacci numbers below ``budget`` turns, and ``budget``: even steps on a log scale.

    >>> default_grid(10)
    (1, 2, 3, 5, 8, 10)
    """
    if budget > MAX_T:
        raise PRMError(f"a run was allowed {budget} turns; expected {MAX_T:,} at most")
    grid = [1, 2]
    while grid[-1] < budget:
        grid.append(grid[-1] + grid[-2])
    return tuple(sorted({value for value in grid if value < budget} | {budget}))


def _grid(t: Sequence[int]) -> tuple[int, ...]:
    grid = tuple(sorted(set(t)))
    if not grid or grid[0] < 1 or grid[-1] > MAX_T:
        raise PRMError(f"expected turn budgets T of 1 to {MAX_T:,}, found {list(t)}")
    return grid


def with_success(policy: str, traces: Sequence[Trace]) -> list[Trace]:
    """Those whose success is known and says something about the policy."""
    known = [t for t in traces if t.outcome.valid and t.outcome.success is not None]
    if not known:
        raise PRMError(
            f"none of the {plural(len(traces), 'run')} of policy {policy!r} says whether it "
            f"succeeded (outcome.success); --success-at R makes success from the reward"
        )
    return known


def _count(
    traces: Sequence[Trace],
    success: NDArray[np.bool_],
    used: NDArray[np.bool_],
    grid: tuple[int, ...],
) -> dict[str, Any]:
    """The tables of :class:`_Counts` from B trajectories; ``success`` and ``used`` are (B, T)."""
    tasks, number = numbered([trace.task_id for trace in traces])

    def total(values: NDArray[Any]) -> Floats:
        cells = np.zeros((len(tasks), len(grid)))
        np.add.at(cells, number, values)
        return cells

    samples = total(used)
    turns = np.minimum(np.array([trace.n_steps for trace in traces])[:, None], np.array(grid))
    with np.errstate(invalid="ignore"):
        mean_turns = total(np.where(used, turns, 0)) / samples
    return {
        "tasks": tuple(tasks),
        "t": grid,
        "samples": samples.astype(int),
        "successes": total(success).astype(int),
        "turns": mean_turns,
    }
