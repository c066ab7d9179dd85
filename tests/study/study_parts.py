"""Policies that were never trained, with numbers of our choosing, for tests of the report."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from prm.rl.desk.solution import solve
from prm.rl.desk.world import DeskConfig
from prm.study.decisions import Decisions
from prm.study.findings import Policies
from prm.study.measure import Measured

TURNS = [6, 8, 14]


def measured(
    success: Mapping[int, float], *, checks: float = 1.0, steps: float = 6.0, seed: int = 0
) -> Measured:
    """A policy whose success at each T is near the one given, over 60 tasks."""
    n = 60
    rng = np.random.default_rng(seed)
    hops = [2 + task % 3 for task in range(n)]

    def table(value: float) -> list[list[float]]:
        return [[value + rng.normal(0, 0.01) for _ in range(n)] for _ in TURNS]

    return Measured(
        tasks=[f"task {task}" for task in range(n)],
        turns=TURNS,
        hops=hops,
        success=[np.clip(success[t] + rng.normal(0, 0.02, n), 0, 1).tolist() for t in TURNS],
        steps=table(steps),
        checks=table(checks),
        repeated=table(0.1),
        cut=table(0.2),
        optimal=table(4.0),
        judged=table(5.0),
        erred=table(0.5),
        recovered=table(0.1),
    )


def decisions(optimal: float, recovery: float, *, seed: int = 0) -> Decisions:
    """A policy with this single-step quality and this success after an injected action."""
    n = 40
    rng = np.random.default_rng(seed)
    return Decisions(
        states=[f"state {state}" for state in range(n)],
        samples=4,
        optimal_rate=[optimal + rng.normal(0, 0.01) for _ in range(n)],
        value_loss=[0.1] * n,
        success_rate=[recovery + 0.1 + rng.normal(0, 0.01) for _ in range(n)],
        repeat_rate=[recovery + rng.normal(0, 0.01) if state % 4 else None for state in range(n)],
        stray_rate=[recovery + rng.normal(0, 0.01) if state % 3 else None for state in range(n)],
    )


def exact() -> Measured:
    """The exact optimum, with its success on each task as it is in expectation."""
    one = measured(dict.fromkeys(TURNS, 0.0), checks=2.0)
    solutions = {count: solve(DeskConfig(), count) for count in set(one.hops)}
    success = [[solutions[count].success(t) for count in one.hops] for t in TURNS]
    return Measured(
        **{name: getattr(one, name) for name in one.__struct_fields__} | {"success": success}
    )


def policies(
    runs: Mapping[str, list[Measured]], states: Mapping[str, list[Decisions]] | None = None
) -> Policies:
    """All together, with few resamples."""
    return Policies(runs, states or {}, resamples=200)
