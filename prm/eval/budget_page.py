"""The report of ``prm eval budget`` as one HTML page that needs nothing else.

Surfaces and differences are tables whose cells are coloured, so that their numbers can be selected,
read aloud and scrolled on a small screen; curves over T are a figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import partial

from prm.errors import plural
from prm.eval.budget_figures import curves_figure, largest_difference
from prm.eval.budget_report import BudgetReport
from prm.eval.budget_statistics import Comparison, PolicyBudget
from prm.eval.budget_words import (
    NOT_DEFINED,
    SUMMARIES,
    bounds,
    listed,
    number,
    p_value,
    turns,
    verdict,
)
from prm.eval.estimate import Estimate
from prm.eval.figure_parts import as_svg
from prm.eval.html_parts import (
    Group,
    cell,
    document,
    estimate_cell,
    items,
    name,
    picture,
    section,
    table,
    text,
)
from prm.eval.recovery import RecoveryReport
from prm.eval.recovery_page import recovery_section

Cells = list[list[Estimate]]

METHOD = """<dl>
<dt>Pass@(K,T) and pass^(K,T)</dt>
<dd>Of n runs of a task, c succeed within T turns. Pass@(K,T) is the chance that of K of them at
least one succeeds, 1 − C(n−c, K) / C(n, K); pass^(K,T) that all K do, C(c, K) / C(n, K). Both are
means over tasks; a task with fewer than K runs is left out of the cell.</dd>
<dt>Intervals</dt>
<dd>95 %, from resampled tasks: all runs of a task stay together, all policies and cells share the
same draws, and training seeds are drawn first where there are several. Those of Pass@ and pass^
hold for one cell at a time.</dd>
<dt>Simultaneous band</dt>
<dd>The band of a pair holds over all cells of the grid at once; the p-value of a cell is adjusted
for all of them. A difference survives when its band excludes 0. A cell in which all draws agree has
no band.</dd>
<dt>Primary cell</dt>
<dd>One cell, to be chosen before looking (--primary), has an interval and a p-value of its own;
Holm's adjustment is for the number of pairs, as it is for the solved sets.</dd>
<dt>Solved sets</dt>
<dd>The tasks that only one policy of a pair solves within the largest T with any of its runs;
exact McNemar test.</dd>
</dl>"""


def page(report: BudgetReport, recovery: RecoveryReport | None = None) -> str:
    """The whole page as text; what comes from data is escaped."""
    return document("Success within a turn budget", lead(report), sections(report, recovery))


def sections(
    report: BudgetReport, recovery: RecoveryReport | None = None, *, curves: bool = True
) -> list[str]:
    """Everything below the lead; ``curves`` is False for a page that has drawn them already."""
    parts = [
        _overview(report),
        _pass_at(report, curves=curves),
        _pass_hat(report),
        _robustness(report),
        _cost(report),
        _comparisons(report),
        _groups(report),
        "" if recovery is None else recovery_section(recovery),
        section("How the numbers are made", METHOD),
    ]
    return [part for part in parts if part]


def lead(report: BudgetReport) -> str:
    """What was measured, in one paragraph, and what a reader has to know."""
    policies = report.policies.values()
    sizes = sorted({one.n_tasks for one in policies})
    tasks = plural(sizes[-1], "task")
    if len(sizes) > 1:
        tasks = f"{sizes[0]:,} to {tasks} each"
    runs = plural(sum(one.n_samples for one in policies), "run")
    who = "1 policy" if len(report.policies) == 1 else f"{len(report.policies)} policies"
    how = {
        "cut": "Every run was made once, at a generous budget, and is cut afterwards: it counts "
        "within T turns when it succeeds in at most T.",
        "rerun": "Runs were made anew at each budget of T turns.",
    }[report.source]
    several = f" and K = {listed(report.k)} runs" if len(report.k) > 1 else ""
    what = "Pass@(K,T) is the chance that at least one of K runs of a task succeeds within T turns"
    if len(report.k) > 1:
        what += ", pass^(K,T) that all K do"
    k, t = report.primary
    return _unbroken(
        f"<p>{who} on {tasks}, {runs} with a known outcome, at T = {listed(report.t)} "
        f"turns{several}. {how} {what}. The primary cell is K = {k}, T = {t}. In brackets are 95 % "
        f"intervals from resampled tasks.</p>\n{items(map(text, report.notes))}"
    )


def _unbroken(prose: str) -> str:
    """The prose without line breaks inside "T = 5"."""
    return re.sub(r"\b([KT]) = (?=\d)", "\\1&nbsp;=&nbsp;", prose)


def _overview(report: BudgetReport) -> str:
    k, t = report.primary
    at = report.k.index(k), report.t.index(t)
    rows = []
    for policy, one in report.policies.items():
        counts = (one.n_tasks, one.n_samples, one.n_skipped, one.n_seeds)
        primary = estimate_cell(one.pass_at[at[0]][at[1]], one.n_tasks)
        rows.append((name(policy), [primary, *(cell(f"{count:,}") for count in counts)]))
    columns = [f"Pass@({k},{t})", "tasks", "runs", "runs of unknown outcome", "training seeds"]
    caption = "Policies and their primary cell. Runs of unknown outcome are left out."
    return section("Policies", table(caption, "policy", columns, [Group(None, rows)]))


def _pass_at(report: BudgetReport, *, curves: bool) -> str:
    lowest = report.k[0]
    figure = ""
    if curves:
        figure = picture(
            as_svg(curves_figure(report)),
            f"Curves of Pass@({lowest},T) over T; the numbers are in the table that follows.",
            f"Pass@({lowest},T) over the budget on a log scale, with the interval of each point.",
        )
    caption = "Pass@(K,T), the deeper the colour the higher, with the interval of each cell."
    return section(
        "Pass@(K,T): at least one of K runs succeeds",
        figure,
        _surfaces(report, caption, lambda one: one.pass_at),
    )


def _pass_hat(report: BudgetReport) -> str:
    if report.k == (1,):
        return ""
    caption = "pass^(K,T), the deeper the colour the higher, with the interval of each cell."
    return section(
        "pass^(K,T): all K runs succeed",
        _surfaces(report, caption, lambda one: one.pass_hat),
    )


def _surfaces(report: BudgetReport, caption: str, cells: Callable[[PolicyBudget], Cells]) -> str:
    def row(policy: str, place: int) -> list[str]:
        one = report.policies[policy]
        return [estimate_cell(each, one.n_tasks, heat=True) for each in cells(one)[place]]

    rows = {policy: partial(row, policy) for policy in report.policies}
    return _grid(report, caption, "policy", [(name(policy), row) for policy, row in rows.items()])


def _grid(
    report: BudgetReport,
    caption: str,
    corner: str,
    entries: Iterable[tuple[str, Callable[[int], list[str]]]],
) -> str:
    """A table over T with K rows for each entry; with one K, a row for each."""
    if len(report.k) == 1:
        caption += f" K = {report.k[0]}."
        groups = [Group(None, [(title, row(0)) for title, row in entries])]
    else:
        corner = "K"
        groups = [
            Group(title, [(f"K = {k}", row(place)) for place, k in enumerate(report.k)])
            for title, row in entries
        ]
    return table(caption, corner, [f"T = {t}" for t in report.t], groups)


def _robustness(report: BudgetReport) -> str:
    policies = report.policies.values()
    rows = []
    for key, summary in SUMMARIES.items():
        if any(
            not math.isnan(one.robustness[key].value) for one in policies if key in one.robustness
        ):
            meaning = summary.meaning.format(target=report.target, alpha=report.alpha)
            heading = f"{summary.label}<small>{meaning}</small>"
            rows.append((heading, [_summary(key, one, report.t[-1]) for one in policies]))
    caption = (
        "How success depends on the budget. Minima and maxima of noisy cells are biased: the "
        "bootstrap's estimate of the bias stands below, not taken off."
    )
    columns = [name(policy) for policy in report.policies]
    return section(
        "Robustness to the budget", table(caption, "summary", columns, [Group(None, rows)])
    )


def _summary(key: str, one: PolicyBudget, largest: int) -> str:
    if key not in one.robustness:
        return cell(NOT_DEFINED)
    estimate = one.robustness[key]
    if key == "turns_to_reach":
        return cell(*map(text, turns(estimate, largest)))
    bias = f"bias {number(one.bias[key], 4, signed=True)}" if key in one.bias else ""
    return estimate_cell(estimate, one.n_tasks, bias)


def _cost(report: BudgetReport) -> str:
    rows = [
        (
            name(policy),
            [estimate_cell(each, one.n_tasks, digits=1) for each in one.steps_per_success],
        )
        for policy, one in report.policies.items()
    ]
    caption = "Mean of min(turns, T) over all runs, divided by Pass@(1,T); ∞ where none succeeds."
    columns = [f"T = {t}" for t in report.t]
    return section(
        "Turns paid for each success", table(caption, "policy", columns, [Group(None, rows)])
    )


def _comparisons(report: BudgetReport) -> str:
    pairs = report.comparisons
    if not pairs:
        return ""
    reach = largest_difference(report)
    caption = (
        "Difference of Pass@(K,T), its simultaneous 95 % band and its p-value, adjusted for all "
        "cells of the pair. Outlined and marked *: the band excludes 0, the difference survives."
    )
    rows = {_pair(c): partial(_differences, c, reach=reach) for c in pairs}
    return section(
        "Comparisons",
        "<p>Which differences of Pass@(K,T) survive the simultaneous 95 % band:</p>",
        items(f"<strong>{_pair(c)}</strong>: {_unbroken(text(verdict(c, report)))}" for c in pairs),
        _pairs(report),
        _grid(report, caption, "pair", rows.items()),
    )


def _pairs(report: BudgetReport) -> str:
    k, t = report.primary
    rows = []
    for c in report.comparisons:
        cells = [
            estimate_cell(c.primary, c.n_tasks, signed=True),
            cell(p_value(c.primary_p), f"Holm {p_value(c.primary_p_holm)}"),
            estimate_cell(c.area, c.n_tasks, signed=True),
            cell(f"{c.only_a:,}"),
            cell(f"{c.only_b:,}"),
            cell(p_value(c.solved_p), f"Holm {p_value(c.solved_p_holm)}"),
            cell(f"{c.n_tasks:,}"),
        ]
        rows.append((_pair(c), cells))
    columns = [
        f"Pass@({k},{t})",
        "p",
        "area over T",
        "solved only by the first",
        "solved only by the second",
        "p, McNemar",
        "tasks of both",
    ]
    caption = "First policy minus second, on the tasks that both were run on."
    return table(caption, "pair", columns, [Group(None, rows)])


def _pair(c: Comparison) -> str:
    return f"{name(c.a)} − {name(c.b)}"


def _differences(c: Comparison, place: int, *, reach: float) -> list[str]:
    survives = c.survives()[place]
    columns = zip(
        c.difference[place], c.low[place], c.high[place], c.p[place], survives, strict=True
    )
    cells = []
    for difference, low, high, p, survived in columns:
        sign = "up" if difference > 0 else "down"
        cells.append(
            cell(
                number(difference, signed=True) + ("*" if survived else ""),
                bounds(low, high, signed=True),
                f"p {p_value(p)}",
                classes=f"heat {sign} survives" if survived else f"heat {sign}",
                shade=0.0 if math.isnan(difference) else abs(difference) / reach,
            )
        )
    return cells


def _groups(report: BudgetReport) -> str:
    if report.by is None:
        return ""
    k, t = report.primary
    found = dict.fromkeys(group for one in report.policies.values() for group in one.groups)
    rows = []
    for policy, one in report.policies.items():
        cells = [
            cell(NOT_DEFINED)
            if group not in one.groups
            else estimate_cell(one.groups[group], heat=True)
            for group in found
        ]
        rows.append((name(policy), cells))
    caption = f"Pass@({k},{t}) on the tasks of each {text(report.by)}; n counts tasks."
    columns = list(map(name, found))
    return section(f"By {text(report.by)}", table(caption, "policy", columns, [Group(None, rows)]))
