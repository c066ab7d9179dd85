"""From traces to counts: which policy, which training seed, which source, which grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from prm.data.trace import Trace
from prm.errors import PRMError
from prm.eval.pass_at_kt import (
    Counts,
    cut_counts,
    default_grid,
    rerun_counts,
    turn_limit,
    with_success,
)
from prm.eval.steps import Bools

Source = Literal["auto", "cut", "rerun"]
UNNAMED = "unnamed policy"


@dataclass(frozen=True)
class BudgetOptions:
    """Options of :func:`budget_report`; contradictions are refused here."""

    source: Source = "auto"
    """cut: runs at one generous budget; rerun: runs at each T; auto: rerun where some policy has
    runs of one task at several budgets."""
    k: tuple[int, ...] | None = None
    """None = 1, 2, 4, … up to the samples of every task."""
    t: tuple[int, ...] | None = None
    """None = the budgets of the runs, or Fibonacci numbers up to that budget."""
    primary: tuple[int, int] | None = None
    """(K, T). None = (least K, largest T)."""
    against: str | None = None
    """The policy that all others are compared with; None = every pair is compared."""
    by: str | None = None
    """Key of ``meta`` that groups the tasks."""
    seed_key: str | None = None
    """Key of ``meta`` that tells the training seeds of a policy apart."""
    target: float = 0.5
    """Pass@(1,T) whose least budget is reported."""
    alpha: float = 0.25
    """Share of the worst budgets in ``worst_share``."""
    resamples: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.k is not None and (not self.k or min(self.k) < 1):
            raise PRMError(f"--k: expected numbers of 1 or more, found {list(self.k)}")
        if not 0 < self.target <= 1:
            raise PRMError(f"--target: expected a success rate in (0, 1], found {self.target:g}")
        if not 0 < self.alpha <= 1:
            raise PRMError(f"--alpha: expected a share in (0, 1], found {self.alpha:g}")
        if self.seed < 0:
            raise PRMError(f"--seed: expected a number >= 0, found {self.seed}")


def runs_by_policy(
    traces: Sequence[Trace], seed_key: str | None
) -> dict[str, dict[str, list[Trace]]]:
    """Policy -> training seed -> trajectories, in the order of their names."""
    if not traces:
        raise PRMError("there is no trace to evaluate")
    runs: dict[str, dict[str, list[Trace]]] = defaultdict(lambda: defaultdict(list))
    ids: set[str] = set()
    seeds: dict[str, Any] = {}
    for trace in traces:
        if trace.id in ids:
            raise PRMError(f"two traces have the id {trace.id!r}, so one run may be counted twice")
        ids.add(trace.id)
        seed = "" if seed_key is None else _meta_name(trace, seed_key, "--seed-key", seeds)
        if trace.policy == UNNAMED:
            raise PRMError(f"trace {trace.id!r}: {UNNAMED!r} stands for traces without a policy")
        runs[UNNAMED if trace.policy is None else trace.policy][seed].append(trace)
    return {policy: dict(sorted(runs[policy].items())) for policy in sorted(runs)}


def count_runs(
    runs: Mapping[str, Mapping[str, Sequence[Trace]]], options: BudgetOptions
) -> dict[str, list[Counts]]:
    """Policy -> counts of each seed, all of one source and on one grid."""
    kinds = {
        policy: options.source
        if options.source != "auto"
        else "rerun"
        if _ran_at_several(trace for seed in seeds.values() for trace in seed)
        else "cut"
        for policy, seeds in runs.items()
    }
    if len(set(kinds.values())) > 1:
        cut, rerun = (
            next(p for p, kind in kinds.items() if kind == which) for which in ("cut", "rerun")
        )
        raise PRMError(
            f"policy {rerun!r} was run anew at several budgets and policy {cut!r} at one; cutting "
            f"runs and running anew measure different things and are not compared (give one kind, "
            f"or say --source)"
        )
    grid = options.t
    if grid is None:
        grid = _shared_budgets(runs) if "rerun" in kinds.values() else _common_grid(runs)
    count = rerun_counts if "rerun" in kinds.values() else cut_counts
    return {
        policy: [count(policy, traces, grid) for traces in seeds.values()]
        for policy, seeds in runs.items()
    }


def _ran_at_several(traces: Iterable[Trace]) -> bool:
    """Whether some task was run at two budgets or more."""
    budgets = defaultdict(set)
    for trace in traces:
        if trace.outcome.max_turns is not None:
            budgets[trace.task_id].add(trace.outcome.max_turns)
    return any(len(found) > 1 for found in budgets.values())


def _shared_budgets(runs: Mapping[str, Mapping[str, Sequence[Trace]]]) -> tuple[int, ...]:
    """The budgets at which every policy was run, and every training seed of it."""
    shared = set.intersection(
        *(set(rerun_counts(policy, t).t) for policy, seeds in runs.items() for t in seeds.values())
    )
    if not shared:
        raise PRMError("no budget was run by every policy, so nothing can be compared (see --t)")
    return tuple(sorted(shared))


def _common_grid(runs: Mapping[str, Mapping[str, Sequence[Trace]]]) -> tuple[int, ...]:
    """Up to the least budget of all runs; where none is known, up to the longest run."""
    known = [
        trace
        for policy, seeds in runs.items()
        for traces in seeds.values()
        for trace in with_success(policy, traces)
    ]
    limits = [limit for trace in known if (limit := turn_limit(trace)) is not None]
    return default_grid(min(limits) if limits else max(trace.n_steps for trace in known))


def flat(counts: Mapping[str, Sequence[Counts]]) -> Iterator[Counts]:
    for seeds in counts.values():
        yield from seeds


def default_k(counts: Mapping[str, Sequence[Counts]]) -> tuple[int, ...]:
    """Powers of two that every task of every policy has samples for."""
    fewest = min(int(c.samples.max(axis=1).min()) for c in flat(counts))
    return tuple(2**i for i in range(max(1, fewest).bit_length()))


def task_groups(traces: Sequence[Trace], tasks: Sequence[str], by: str | None) -> dict[str, Bools]:
    """Value of the key -> (N,) which tasks have it."""
    if by is None:
        return {}
    value: dict[str, str] = {}
    seen: dict[str, Any] = {}
    for trace in traces:
        found = _meta_name(trace, by, "--by", seen)
        if value.setdefault(trace.task_id, found) != found:
            raise PRMError(
                f"--by: task {trace.task_id!r} has {by!r} {value[trace.task_id]!r} in one trace "
                f"and {found!r} in another, so it belongs to no group"
            )
    member = np.array([value.get(task, "") for task in tasks])
    return {name: member == name for name in sorted(set(value.values()), key=_natural)}


def _meta_name(trace: Trace, key: str, option: str, seen: dict[str, Any]) -> str:
    """A value of ``meta`` as a name; ``seen`` are those before, which must be of one kind."""
    if key not in trace.meta:
        known = ", ".join(sorted(trace.meta)) or "none"
        raise PRMError(f"{option}: trace {trace.id!r} has no meta key {key!r}; it has {known}")
    value = trace.meta[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PRMError(
            f"{option}: trace {trace.id!r} has {key!r} {value!r}; expected text or a number"
        )
    name = str(value)
    if type(seen.setdefault(name, value)) is not type(value):
        raise PRMError(
            f"{option}: {key!r} is {value!r} in trace {trace.id!r} and {seen[name]!r} in another, "
            f"text in one and a number in the other; expected one kind"
        )
    return name


def _natural(name: str) -> tuple[bool, float, str]:
    """Numbers in their order, before words."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name
