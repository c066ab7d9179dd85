"""Make the committed results anew: ``python eval/results/make.py [NAME…]``.

Each function writes its results beside this file; without names, all of them run.

* desk_budget: desk_budget.json (the numbers) and desk_budget.png.
* coverage: coverage.md, in some five minutes.
* shaping: shaping.md, in under two minutes.
* shaping_trace: shaping_trace.png, from the scores in shaping_trace.json.
* desk: the tables in desk.md; trains two small models into out/, in some eight minutes.
* intercode: the table in intercode.md, from the scored traces that the commands there make; they
  take an hour and need the published logs, so without them the table is left as it is.
* shaping_paid: shaping_paid.md, from the scored traces of both.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tempfile
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
from prm.data.files import read_traces
from prm.data.trace import Trace
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.play import Run, play
from prm.rl.desk.solution import solve
from prm.rl.desk.world import DeskConfig, Task, budgets, desk_tasks
from prm.shaping import ShapingConfig, step_rewards

HERE = Path(__file__).parent
BENCH = HERE.parent / "bench"
ROOT = HERE.parents[1]
INTERCODE_SCORED = ROOT / "out" / "intercode" / "scored.jsonl.gz"
OUTCOME_SCORED = ROOT / "out" / "intercode-outcome" / "scored.jsonl.gz"


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


def shaping() -> None:
    """What shaping does to the gradient (shaping_gradient.py) and its variance (…_variance.py)."""
    gradient = runpy.run_path(str(BENCH / "shaping_gradient.py"))
    variance = runpy.run_path(str(BENCH / "shaping_variance.py"))
    settings = (variance[name] for name in ("TASKS", "SAMPLES", "RESAMPLES", "SEED"))
    page = "\n".join(
        [
            "# Shaping: the gradient that is left, and its variance\n",
            gradient["report"](gradient["SEEDS"]),
            variance["report"](*settings),
        ]
    )
    with atomic_output(HERE / "shaping.md") as file:
        file.write(page.encode())


def shaping_trace() -> None:
    """What each mode pays the steps of one real trace, from its scores in shaping_trace.json."""
    trace = json.loads((HERE / "shaping_trace.json").read_text())
    scores = np.array(trace["action_scores"])
    # The model scores actions alone: a state has the score of the action before it.
    states = np.concatenate([[0.0], scores])
    modes = ("potential", "progress", "sum", "clip", "delta", "min_form")
    figure, panels = plt.subplots(
        2, 3, figsize=(10, 5.6), sharex=True, sharey=True, layout="constrained"
    )
    steps = np.arange(len(scores))
    for axes, mode in zip(panels.flat, modes, strict=True):
        config = ShapingConfig(mode=mode)
        paid = step_rewards(
            config,
            action_scores=scores,
            state_scores=states,
            terminal_reward=trace["terminal_reward"],
            terminated=True,
        )
        outcome = paid.rewards - paid.process
        axes.bar(steps, paid.process, width=0.6, color="tab:blue", label="process")
        below = np.maximum(paid.process, 0)
        axes.bar(steps, outcome, bottom=below, width=0.6, color="tab:orange", label="outcome")
        axes.plot(steps, paid.returns, "o-", color="0.25", ms=4, lw=1, label="return to go")
        axes.axhline(0, color="0.4", lw=0.8)
        kept = "keeps the optimal policy" if config.invariant else "does not keep it"
        axes.set_title(f"{mode}: {kept}", fontsize=10)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    labels = [f"{a}\n{p:.2f}" for a, p in zip(trace["actions"], scores, strict=True)]
    for axes in panels[-1]:
        axes.set_xticks(steps, labels, rotation=90, fontsize=8)
    panels[0, 0].legend(frameon=False, fontsize=8, loc="lower left")
    figure.suptitle("One trace, six ways to pay it (below: actions and their scores)", fontsize=11)
    with atomic_output(HERE / "shaping_trace.png") as file:
        figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    plt.close(figure)


def shaping_paid() -> None:
    """What each mode pays long failures and short successes, with the models of the other pages."""
    parts = [
        "# What each mode pays",
        "",
        "Mean process reward of a trace (all weights 1, γ = 1) with the models of "
        "[desk.md](desk.md) and [intercode.md](intercode.md), on their held-out tasks. Last: how "
        "often a long failure, drawn at random, is paid more process reward than a short success.",
    ]
    for title, scored, long, short in (
        ("desk: scores say how likely an action is optimal", _desk_scored("optimal"), 10, 7),
        ("InterCode: scores say how likely the task is to be solved", OUTCOME_SCORED, 8, 3),
        ("InterCode: scores say how likely an action solves the task", INTERCODE_SCORED, 8, 3),
    ):
        if not scored.is_file():
            print(
                f"shaping_paid: left as it is; the pages say how to make {scored.relative_to(ROOT)}"
            )
            return
        parts += _paid(title, list(read_traces([str(scored)])), long, short)
    parts += [
        "",
        "* `sum` pays a policy for going on. Where most steps look sensible, as on desk, long "
        "failures are paid more than short successes are, outcome included. Where a score says "
        "how promising things are, ten steps of little promise still collect more process reward "
        "than three good ones. Only where a score says that this very action solves the task has a "
        "failure little to collect.",
        "* `potential` pays nothing for length: the sum is −Φ of the first state, the same for all "
        "traces of a task.",
        "* `clip` pays failures least because they are long; short successes are charged too.",
        "",
        "The second model is a small decoder from scratch on `prm label --method outcome` (files "
        "as in intercode.md; out/outcome/ holds the labelled ones):",
        "",
        "```",
        "prm train --data out/outcome/train.jsonl.gz \\",
        "    --validation out/outcome/validation.jsonl.gz \\",
        "    --label outcome --state-label outcome --out out/intercode-outcome/model \\",
        "    --decoder '{layers: 2, width: 96, heads: 3, vocabulary: 2048}' \\",
        "    --encoding '{max_length: 1024, max_task_tokens: 64, max_action_tokens: 64, "
        "max_observation_tokens: 32}' \\",
        "    --optimizer.learning-rate 0.0015 --trainer '{max_epochs: 2, precision: bf16-mixed}'",
        "```",
    ]
    with atomic_output(HERE / "shaping_paid.md") as file:
        file.write(("\n".join(parts) + "\n").encode())


def _paid(title: str, traces: list[Trace], long: int, short: int) -> list[str]:
    """The section of one set of traces."""
    known = [trace for trace in traces if trace.outcome.success is not None]
    failures = [t for t in known if not t.outcome.success and t.n_steps >= long]
    successes = [t for t in known if t.outcome.success and t.n_steps <= short]
    lines = [
        "",
        f"## {title}",
        "",
        f"{len(failures)} failures of {long} steps or more, {len(successes)} successes of {short} "
        f"or fewer.",
        "",
        "| mode | long failures | short successes | with the outcome | failure paid more |",
        "|---|---|---|---|---|",
    ]
    for mode in ("potential", "progress", "sum", "clip", "delta", "clip_delta", "min_form"):
        config = ShapingConfig(mode=mode)
        fail, win = ([_process_paid(config, t) for t in each] for each in (failures, successes))
        more = np.mean(np.array(fail)[:, None] > np.array(win)[None])
        lost, won = np.mean(fail), np.mean(win)
        cells = (
            mode,
            f"{lost:.2f}",
            f"{won:.2f}",
            f"{lost:.2f}, {won + 1:.2f}",
            f"{100 * more:.0f} %",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _process_paid(config: ShapingConfig, trace: Trace) -> float:
    """Its process reward; a state without a score has that of the action before it."""
    actions, states = trace.step_scores("prm"), trace.states("prm")
    if np.isnan(states).all():
        states = np.concatenate([[0.0], actions])
    paid = step_rewards(
        config,
        action_scores=actions,
        state_scores=states,
        terminal_reward=float(trace.outcome.success is True),
        terminated=True,
    )
    return round(float(paid.process.sum()), 9)


def _desk_scored(label: str) -> Path:
    """The scored test tasks of the model of ``label``, which is trained where there is none."""
    folder = ROOT / "out" / f"desk-{label}"
    scored = folder / "scored.jsonl.gz"
    if not scored.is_file():
        model = folder / "model"
        _prm("train", "--config", "training/desk.yaml", "--label", label, "--out", model)
        _prm("score", "data/desk/test.parquet", "--model", model, "--out", scored)
    return scored


def desk() -> None:
    """The embedded corpus: a model of optimal actions and one of the exact Q, on the test tasks."""
    for label in ("optimal", "q"):
        options = ("--rank-label", "q", "--state-label", "v", "--train", "data/desk/train.parquet")
        _fill_in(
            "desk.md", f"## --label {label}", _desk_scored(label), "--label", "optimal", *options
        )


def intercode() -> None:
    """The table of intercode.md, if its commands have been run."""
    folder = ROOT / "out" / "intercode"
    scored = folder / "scored.jsonl.gz"
    if not scored.is_file():
        print(f"intercode: left as it is; intercode.md says how to make {scored.relative_to(ROOT)}")
        return
    train = [str(folder / f"{split}.jsonl.gz") for split in ("train", "validation")]
    _fill_in(
        "intercode.md", "## Result", scored, "--label", "executed", "--train", json.dumps(train)
    )


def _prm(*arguments: object) -> None:
    command = [sys.executable, "-m", "prm", *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, check=True)


def _fill_in(page: str, after: str, scored: Path, *options: str) -> None:
    """Replace the block of code that follows ``after`` by what ``prm eval steps`` prints."""
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "table.txt"
        _prm("eval", "steps", scored, *options, "--out", printed)
        table = printed.read_text()
    text = (HERE / page).read_text()
    start = text.index("```\n", text.index(after)) + len("```\n")
    end = text.index("```", start)
    with atomic_output(HERE / page) as file:
        file.write((text[:start] + table + text[end:]).encode())


def _write(name: str, numbers: dict[str, Any], figure: Figure) -> None:
    with atomic_output(HERE / f"{name}.json") as file:
        file.write((json.dumps(numbers, indent=1) + "\n").encode())
    with atomic_output(HERE / f"{name}.png") as file:
        figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    plt.close(figure)


RESULTS = {
    "desk_budget": desk_budget,
    "coverage": coverage,
    "shaping": shaping,
    "shaping_trace": shaping_trace,
    "desk": desk,
    "intercode": intercode,
    "shaping_paid": shaping_paid,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or RESULTS:
        RESULTS[name]()
