"""The command ``prm eval budget``: read traces of one or more policies, print, write a report.

Everything that is measured is in ``prm.eval.budget_report``; this file reads and prints.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from prm.data.atomic import atomic_folder, check_new_folder
from prm.data.terminal import PAGE_WIDTH, Row, json_text, read_counted, table
from prm.data.trace import Trace
from prm.errors import PRMError, plural, printable
from prm.eval.budget_report import BudgetReport, budget_report
from prm.eval.budget_runs import BudgetOptions, Source
from prm.eval.budget_statistics import Comparison
from prm.eval.budget_words import SUMMARIES, cell_of, chief_pairs, number, p_value, turns, verdict
from prm.eval.estimate import Estimate
from prm.eval.recovery import PolicyRecovery, RecoveryReport, recovery_report

COLUMNS = 6
"""Budgets side by side; more go in further tables."""


def evaluate_budget(
    traces: list[str],
    /,
    *,
    out: str | None = None,
    source: Source = "auto",
    k: list[int] | None = None,
    t: list[int] | None = None,
    primary: str | None = None,
    against: str | None = None,
    by: str | None = None,
    seed_key: str | None = None,
    success_at: float | None = None,
    target: float = 0.5,
    alpha: float = 0.25,
    label: str | None = None,
    good_at: float = 1.0,
    horizon: str | None = None,
    bootstrap: int = 10_000,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Measure Pass@(K,T) of policies, their robustness to the turn budget, and their differences.

    Pass@(K,T) is the share of tasks of which at least one of K trajectories succeeds within T
    turns. Intervals are 95 %, over tasks; all policies share the same resampled tasks. With --out,
    DIR gets budget.json, figures and report.html.

    Args:
        traces: Files of traces; the policies in them are compared with each other.
        out: New folder for budget.json, figures and report.html.
        source: cut for runs made once and cut at each T, rerun for runs made at each T; auto finds
            out whether a task was run at several budgets (outcome.max_turns).
        k: Numbers of trajectories, such as 1 2 4; powers of two up to the runs of every task if
            absent.
        t: Turn budgets, such as 1 2 3 5 10; the budgets of the runs, or Fibonacci numbers, if
            absent.
        primary: The cell to report first, as K,T; 1 and the largest T if absent.
        against: Policy that all others are compared with; every pair is compared if absent.
        by: Key of meta that groups the tasks, such as hardness.
        seed_key: Key of meta that tells training seeds of one policy apart.
        success_at: A run whose source does not say so succeeded when its reward is at least this.
        target: Success rate whose least budget is reported.
        alpha: Share of the worst budgets that are averaged.
        label: Step label that marks errors, to add recovery after the first error.
        good_at: A step is an error when its label is less than this.
        horizon: Key of meta with a number for each task, such as the optimal length, to add success
            over it; needs --label.
        bootstrap: Number of resamples of the tasks, at least 20; 0 for no intervals.
        seed: Seed of the resamples.
        json: Whether to print what budget.json holds.
    """
    options = BudgetOptions(
        source=source,
        k=None if k is None else tuple(k),
        t=None if t is None else tuple(t),
        primary=cell_of(primary),
        against=against,
        by=by,
        seed_key=seed_key,
        target=target,
        alpha=alpha,
        resamples=bootstrap,
        seed=seed,
    )
    if horizon is not None and label is None:
        raise PRMError("--horizon is part of the recovery report, which needs --label")
    if out is not None:
        check_new_folder(out)
    read = with_success_at(read_counted(traces), success_at)
    measured = budget_report(read, options)
    recovery = (
        None
        if label is None
        else recovery_report(
            read, label=label, good_at=good_at, horizon_key=horizon, resamples=bootstrap, seed=seed
        )
    )
    if out is not None:
        write_report(measured, recovery, Path(out))
    text = as_json(measured, recovery) if json else as_table(measured, recovery)
    sys.stdout.buffer.write(text.encode())


def with_success_at(traces: list[Trace], success_at: float | None) -> list[Trace]:
    """Success from the reward where the source does not tell."""
    if success_at is None:
        return traces
    if not math.isfinite(success_at):
        raise PRMError(f"--success-at: expected a reward, found {success_at:g}")
    replace = msgspec.structs.replace
    return [
        trace
        if trace.outcome.success is not None or trace.outcome.reward is None
        else replace(
            trace,
            outcome=replace(trace.outcome, success=trace.outcome.reward >= success_at),
        )
        for trace in traces
    ]


def write_report(measured: BudgetReport, recovery: RecoveryReport | None, folder: Path) -> None:
    """Write budget.json, figures and report.html to a new folder."""
    # Drawing takes a second to load, and a table on the terminal needs none of it.
    from prm.eval.budget_figures import write_figures
    from prm.eval.budget_page import page

    with atomic_folder(folder) as partial:
        (partial / "budget.json").write_text(as_json(measured, recovery), encoding="utf-8")
        (partial / "report.html").write_text(page(measured, recovery), encoding="utf-8")
        write_figures(measured, partial)
    print(f"prm: wrote budget.json, figures and report.html to {folder}", file=sys.stderr)


def as_json(measured: BudgetReport, recovery: RecoveryReport | None = None) -> str:
    """The report as strict JSON: a number that is not defined, or never reached, is null."""
    values: dict[str, Any] = measured.as_json()
    if recovery is not None:
        values["recovery"] = recovery.as_json()
    return json_text(values)


def as_table(measured: BudgetReport, recovery: RecoveryReport | None = None) -> str:
    """The report for people, 80 columns wide. Policies with long names are numbered."""
    names = {name: f"[{i}]" for i, name in enumerate(measured.policies, start=1)}
    lines = [_heading(measured)]
    for name, one in measured.policies.items():
        runs = f"{plural(one.n_tasks, 'task')}, {plural(one.n_samples, 'run')}"
        seeds = f", {one.n_seeds} seeds" if one.n_seeds > 1 else ""
        lines.append(f"  {names[name]} {printable(name)}: {runs}{seeds}")
    for place, k in enumerate(measured.k):
        for start in range(0, len(measured.t), COLUMNS):
            budgets = measured.t[start : start + COLUMNS]
            heading = (f"Pass@({k},T)", *(f"T = {t}" for t in budgets))
            rows = (
                (
                    names[name],
                    *(number(one.pass_at[place][start + j].value) for j in range(len(budgets))),
                )
                for name, one in measured.policies.items()
            )
            lines.append(table(heading, rows))
    lines.append(table(("", "primary cell", "value"), _primary(measured, names)))
    lines.append(table(("robustness", "", "value"), _robustness(measured, names)))
    lines.append(
        table((f"by {measured.by}", "", "primary cell", "tasks"), _groups(measured, names))
    )
    pairs = chief_pairs(measured)
    if pairs:
        rows = (_compared(c, names) for c in pairs)
        k, t = measured.primary
        heading = ("pair", f"Pass@({k},{t})", "p (Holm)", "area", "one solves, p")
        lines.append(table(heading, rows))
        lines.append("Differences of Pass@ and the simultaneous 95 % band:")
        lines += [f"  {names[c.a]} − {names[c.b]}: {verdict(c, measured, names)}" for c in pairs]
    if len(pairs) < len(measured.comparisons):
        rest = plural(len(measured.comparisons) - len(pairs), "pair")
        lines.append(f"{rest} without a difference that survives: see budget.json")
    if recovery is not None:
        heading = (
            f"errors: {printable(recovery.label)} < {recovery.good_at:g}",
            "",
            "value",
            "runs",
        )
        lines.append(table(heading, _recovery(recovery, names)))
    about = [
        "Intervals: 95 %, tasks resampled. – : not defined, or no interval.",
        f"Target: Pass@(1,T) of {measured.target:g}. Worst budgets: the lowest "
        f"{measured.alpha:.0%} of the grid.",
    ]
    notes = [textwrap.fill(printable(note), PAGE_WIDTH) for note in (*about, *measured.notes)]
    return "\n".join([*(line for line in lines if line), "", *notes, ""])


def _heading(measured: BudgetReport) -> str:
    how = {
        "cut": "runs made once, cut at each T",
        "rerun": "runs made anew at each T",
    }[measured.source]
    return f"{plural(len(measured.policies), 'policy').replace('policys', 'policies')}; {how}"


def _primary(measured: BudgetReport, names: dict[str, str]) -> Iterator[Row]:
    k, t = measured.primary
    cell = measured.k.index(k), measured.t.index(t)
    for name, one in measured.policies.items():
        yield names[name], f"Pass@({k},{t})", str(one.pass_at[cell[0]][cell[1]])
    if k > 1:
        for name, one in measured.policies.items():
            yield names[name], f"pass^({k},{t})", str(one.pass_hat[cell[0]][cell[1]])


def _robustness(measured: BudgetReport, names: dict[str, str]) -> Iterator[Row]:
    for key, summary in SUMMARIES.items():
        heading = summary.label
        for name, one in measured.policies.items():
            estimate = one.robustness.get(key)
            if estimate is None or math.isnan(estimate.value):
                continue
            known = not math.isnan(one.bias.get(key, math.nan))
            bias = f"  (bias {one.bias[key]:+.3f})" if known else ""
            reached = key == "turns_to_reach"
            text = " ".join(turns(estimate, measured.t[-1])) if reached else str(estimate)
            yield heading, names[name], f"{text}{bias}"
            heading = ""
    heading = f"Turns per success, T = {measured.primary[1]}"
    place = measured.t.index(measured.primary[1])
    for name, one in measured.policies.items():
        yield heading, names[name], str(one.steps_per_success[place])
        heading = ""


def _groups(measured: BudgetReport, names: dict[str, str]) -> Iterator[Row]:
    seen = {group: None for one in measured.policies.values() for group in one.groups}
    for group in seen:
        heading = printable(group)
        for name, one in measured.policies.items():
            if group in one.groups:
                estimate = one.groups[group]
                yield heading, names[name], str(estimate), f"{estimate.n:,}"
                heading = ""


def _compared(c: Comparison, names: dict[str, str]) -> Row:
    return (
        f"{names[c.a]} − {names[c.b]}",
        str(c.primary),
        p_value(c.primary_p_holm),
        number(c.area.value, signed=True),
        f"{c.only_a} : {c.only_b}, {p_value(c.solved_p_holm)}",
    )


def _recovery(recovery: RecoveryReport, names: dict[str, str]) -> Iterator[Row]:
    """Recovery at fixed remaining turns, where errors fall, and success over the horizon."""
    columns: dict[str, Callable[[PolicyRecovery], Estimate]] = {
        "share of runs with an error": lambda one: one.error_share,
        "place of the first error (0 to 1)": lambda one: one.first_error_place,
        "success without an error": lambda one: one.success_without_error,
    }
    for place, left in enumerate(recovery.remaining):
        words = f"success after one, {left}+ turns left"
        columns[words] = lambda one, i=place: one.recovery_at_least[i]  # type: ignore[misc]
    for place, value in enumerate(recovery.horizon_values):
        words = f"success at {recovery.horizon_key} = {value:g}"
        columns[words] = lambda one, i=place: one.horizon[i]  # type: ignore[misc]
    for words, column in columns.items():
        heading = printable(words)
        for name, one in recovery.policies.items():
            estimate = column(one)
            yield heading, names[name], str(estimate), f"{estimate.n:,}"
            heading = ""
