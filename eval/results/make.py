"""Make the committed results anew: ``python eval/results/make.py [NAME…]``.

Each function writes its results beside this file; without names, all of them run.

* desk_budget: desk_budget.json (the numbers) and desk_budget.png.
* coverage: coverage.md, in some five minutes.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binomtest

from prm.data.atomic import atomic_output
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.play import Run, play
from prm.rl.desk.solution import solve
from prm.rl.desk.world import DeskConfig, Task, budgets, desk_tasks

HERE = Path(__file__).parent
BENCH = HERE.parent / "bench"


def desk_budget() -> None:
    """Desk: success over the budget for the optimum, the generous optimum and scripted agents.

    The two optima are exact; the others are simulated, one episode on each of 400 tasks a number
    of hops, with 95 % Wilson intervals. Every number of hops weighs the same.
    """
    config = DeskConfig()
    grids = {hops: budgets(config, hops) for hops in config.hops}
    by_hops: dict[int, list[Task]] = defaultdict(list)
    for task in desk_tasks(1500, seed=1, split="validation"):
        by_hops[task.hops].append(task)
    tasks = [task for hops in config.hops for task in by_hops[hops][:400]]
    assert len(tasks) == 400 * len(config.hops)

    def exact(*, generous: bool) -> list[dict[str, float]]:
        table = [
            [solve(config, hops).success(t, as_if=grid[-1] if generous else None) for t in grid]
            for hops, grid in grids.items()
        ]
        return [{"value": round(float(value), 4)} for value in np.mean(table, axis=0)]

    def simulated(agent: str) -> list[dict[str, float]]:
        cells = []
        for column in range(len(config.budget_ratios)):
            runs = [Run(task, agent, grids[task.hops][column]) for task in tasks]
            wins = sum(trace.outcome.success is True for trace in play(runs, seed=1))
            low, high = binomtest(wins, len(runs)).proportion_ci(method="wilson")
            cell = {"value": wins / len(runs), "low": low, "high": high, "n": len(runs)}
            cells.append({name: round(float(number), 4) for name, number in cell.items()})
        return cells

    success = {"optimal": exact(generous=False), "generous": exact(generous=True)}
    success |= {agent: simulated(agent) for agent in AGENTS if agent not in success}
    numbers = {
        "ratios": config.budget_ratios,
        "turns": {str(hops): grid for hops, grid in grids.items()},
        "exact": ["optimal", "generous"],
        "success": success,
    }
    _write("desk_budget", numbers, _draw_desk_budget(config.budget_ratios, success))


def _draw_desk_budget(
    ratios: tuple[float, ...], success: dict[str, list[dict[str, float]]]
) -> Figure:
    figure, axes = plt.subplots(figsize=(8.5, 5), layout="constrained")
    curves = {name: [cell["value"] for cell in cells] for name, cells in success.items()}
    axes.fill_between(ratios, curves["generous"], curves["optimal"], color="tab:blue", alpha=0.08)
    colours = iter(plt.get_cmap("tab20").colors[2:])
    markers = iter("ovs^D<>phX")
    for name, curve in sorted(curves.items(), key=lambda item: -item[1][-1]):
        if name == "optimal":
            axes.plot(ratios, curve, color="tab:blue", lw=2.5, label="optimum (exact)")
        elif name == "generous":
            label = f"optimum for {ratios[-1]:g}x, cut (exact)"
            axes.plot(ratios, curve, color="tab:blue", lw=2.5, ls="--", label=label)
        else:
            cells = success[name]
            errors = [
                [cell["value"] - cell["low"] for cell in cells],
                [cell["high"] - cell["value"] for cell in cells],
            ]
            style = {"color": next(colours), "marker": next(markers), "ms": 4, "lw": 1}
            axes.errorbar(ratios, curve, yerr=errors, label=name, capsize=2, **style)
    axes.set_xticks(ratios)
    axes.set_xlabel("budget T / shortest possible episode (rounded up to whole turns)")
    axes.set_ylabel("success within T turns")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.3)
    axes.set_title(
        "desk: checking more pays under a generous budget, fails under a tight one", fontsize=11
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


def coverage() -> None:
    """Coverage of the intervals by simulation (eval/bench/coverage.py); some five minutes."""
    bench = runpy.run_path(str(BENCH / "coverage.py"))
    found = bench["measure"](bench["DATASETS"], bench["RESAMPLES"], bench["SEED"])
    with atomic_output(HERE / "coverage.md") as file:
        file.write(bench["report"](found).encode())


def _write(name: str, numbers: dict[str, Any], figure: Figure) -> None:
    with atomic_output(HERE / f"{name}.json") as file:
        file.write((json.dumps(numbers, indent=1) + "\n").encode())
    with atomic_output(HERE / f"{name}.png") as file:
        figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    plt.close(figure)


RESULTS = {"desk_budget": desk_budget, "coverage": coverage}

if __name__ == "__main__":
    for name in sys.argv[1:] or RESULTS:
        RESULTS[name]()
