"""The report of a study as files: report.json, figures, and one HTML page that needs nothing else.

Here are the head of the page, the primary comparison and the claims. What policies do is in
``prm.study.page_policies``, how they were trained in ``prm.study.page_training``, and what their
runs alone tell in ``prm.eval.budget_page``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from prm.errors import plural
from prm.eval import budget_page
from prm.eval.budget_report import BudgetReport
from prm.eval.budget_statistics import Comparison
from prm.eval.budget_words import bounds, listed, number, p_value
from prm.eval.html_parts import (
    Group,
    cell,
    document,
    estimate_cell,
    items,
    name,
    section,
    table,
    text,
)
from prm.study.claims import Claim, Number
from prm.study.figures import arms_of, write_figures
from prm.study.page_policies import policy_sections
from prm.study.page_training import settings_section, training_sections
from prm.study.report import StudyReport, Trained

SURE = 0.05
"""A difference with an adjusted p-value of at most this is outlined."""

ABOUT = """<p>desk is a small office environment: an agent follows links from record to record and
reports a field of the last one, with the tools search, read, refresh and answer. A read can be
stale and a call can time out; refresh tells the truth, but each call costs one of T turns. So
checking pays with many turns and loses with few. What the best possible agent does at each T, the
exact optimum, is computed by dynamic programming. An arm is one way to train one base policy: arms
differ in what is rewarded, in the T of training, or in whether the agent is told the turns left.
Pass@(K,T) is the chance that at least one of K runs of a task succeeds within T turns. Regret is
the success of the exact optimum at T, as computed, minus that of the policy, as sampled: noise can
bring it below 0. Worst-case regret is the largest over T.</p>"""

RUNS_ALONE = """<p>What follows, up to the settings, is the report of <code>prm eval budget</code>
on the same runs. It needs no exact optimum, so that it can be made of any agent.</p>"""


def write_report(report: StudyReport, folder: Path) -> None:
    """Write report.json, report.html and figures into ``folder``, which is there."""
    (folder / "report.json").write_text(report.as_text(), encoding="utf-8")
    (folder / "report.html").write_text(page(report), encoding="utf-8")
    write_figures(report, folder)


def page(report: StudyReport) -> str:
    """The whole page as text; what comes from data is escaped."""
    said = "\n".join(f"<p><strong>{text(sentence)}</strong></p>" for sentence in report.answer)
    one, budget = report.trained, report.budget
    if one is None:
        head = f"{said}\n{budget_page.lead(budget)}"
        return document("Robustness to the turn budget", head, budget_page.sections(budget))
    parts = [
        _primary(budget, one.policies.names),
        _claims(one),
        _known(one),
        *policy_sections(one),
        *training_sections(one),
        section("From the runs alone", RUNS_ALONE),
        *budget_page.sections(budget, curves=False),
        settings_section(one),
    ]
    head = f"{said}\n{ABOUT}\n{_sizes(one, budget)}"
    return document("Process rewards and the turn budget", head, filter(None, parts))


def _sizes(one: Trained, budget: BudgetReport) -> str:
    """How much was done, what failed, and what a reader has to know."""
    config = one.config
    training, grid = config.training, config.evaluation
    reference = one.roles.outcome
    compared = "" if reference is None else f" All are compared with {name(reference)}."
    done = (
        f"<p>{plural(len(arms_of(one)), 'arm')}, {plural(len(config.seeds), 'training seed')} "
        f"({listed(config.seeds)}), {plural(training.updates, 'update')} each, of "
        f"{plural(training.groups, 'task')} with {training.rollouts} rollouts. Every policy ran on "
        f"the same {plural(grid.tasks, 'task')}, {grid.samples} times anew at each T of "
        f"{listed(one.policies.turns)}. The cell that was chosen beforehand is "
        f"K&nbsp;=&nbsp;{config.primary.k}, T&nbsp;=&nbsp;{config.primary.t}.{compared} In "
        f"brackets are 95 % intervals, tasks resampled, and training seeds where there are three "
        f"or more.</p>"
    )
    failed = [f"<strong>{text(arm)}</strong>: {text(why)}" for arm, why in one.failed.items()]
    lost = f"<p>Failed, and left out of everything below:</p>\n{items(failed)}" if failed else ""
    return "\n".join(filter(None, [done, items(map(text, budget.notes)), lost]))


def _primary(budget: BudgetReport, order: Sequence[str]) -> str:
    """Every policy minus the reference, or all pairs where the study has none."""
    if not budget.comparisons:
        return ""
    k, t = budget.primary
    at = budget.k.index(k), budget.t.index(t)
    sizes = [abs(c.primary.value) for c in budget.comparisons]
    reach = max([0.01, *(size for size in sizes if not math.isnan(size))])
    one_reference = len({c.b for c in budget.comparisons}) == 1

    def row(c: Comparison) -> tuple[str, list[str]]:
        sure = c.primary_p_holm <= SURE
        sign = "up" if c.primary.value > 0 else "down"
        difference = cell(
            number(c.primary.value, signed=True) + ("*" if sure else ""),
            bounds(c.primary.low, c.primary.high, signed=True),
            classes=f"heat {sign}" + (" survives" if sure else ""),
            shade=0.0 if math.isnan(c.primary.value) else abs(c.primary.value) / reach,
        )
        return name(c.a) if one_reference else f"{name(c.a)} − {name(c.b)}", [
            estimate_cell(budget.policies[c.a].pass_at[at[0]][at[1]], c.n_tasks),
            difference,
            cell(p_value(c.primary_p)),
            cell(p_value(c.primary_p_holm)),
            estimate_cell(c.area, c.n_tasks, signed=True),
        ]

    b = budget.comparisons[0].b
    against = name(b) if one_reference else "the other policy of the pair"
    own = ""
    if one_reference:
        reference = budget.policies[b].pass_at[at[0]][at[1]]
        own = f" That of {against} is {reference}."
    caption = (
        f"Pass@({k},{t}) of each policy, and the difference to {against}, with its p-value and "
        f"Holm's for all rows. Outlined and marked *: Holm's is at most {SURE}.{own} The area is "
        f"the mean height of Pass@(1,T) over ln T."
    )
    columns = [f"Pass@({k},{t})", f"minus {against}", "p", "p, Holm", "area over T, difference"]
    groups = [
        Group(None, [row(c) for c in sorted(budget.comparisons, key=lambda c: order.index(c.a))])
    ]
    return section(f"Primary comparison, Pass@({k},{t})", table(caption, "policy", columns, groups))


def _claims(one: Trained) -> str:
    if not one.claims:
        return ""
    caption = (
        "What the field says about budgets and process rewards, each as differences that it says "
        "are above 0. Borne out: all intervals are above 0. Contradicted: one is below 0. Below "
        "each claim, what the exact solution says."
    )
    groups = [_claim(claim) for claim in one.claims]
    return section("Claims", table(caption, "difference", ["above 0 if so"], groups))


def _known(one: Trained) -> str:
    caption = (
        "Answers that are known beforehand. Where one does not hold, mistrust the rest, or the "
        "interval: one in twenty leaves out what is true."
    )
    groups = []
    for each in one.known:
        verdict = "holds" if each.holds else "does not hold"
        heading = f"{text(each.text)} – <em>{verdict}</em>"
        groups.append(Group(heading, _numbers(each.numbers)))
    return section("Known answers", table(caption, "", ["value"], groups))


def _claim(claim: Claim) -> Group:
    heading = (
        f"({text(claim.letter)}) {text(claim.text)} – <em>{text(claim.verdict)}</em>"
        f"<small>{text(claim.exact)}</small>"
    )
    return Group(heading, _numbers(claim.numbers))


def _numbers(numbers: Sequence[Number]) -> list[tuple[str, list[str]]]:
    rows = []
    for tested in numbers:
        label = f'<span style="font-weight: 400">{text(tested.label)}</span>'
        rows.append((label, [estimate_cell(tested.estimate, tested.estimate.n, signed=True)]))
    return rows
