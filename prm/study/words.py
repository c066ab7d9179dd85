"""The answer of a study in three sentences, made from its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from prm.errors import listed, plural
from prm.eval.budget_report import BudgetReport
from prm.eval.budget_words import with_interval
from prm.eval.estimate import Estimate
from prm.study.claims import Roles
from prm.study.config import BASE, OPTIMUM
from prm.study.findings import Policies
from prm.study.learning import FLAT, Learning
from prm.study.measures import MEASURES


def answer(
    policies: Policies,
    parts: Roles,
    planned: Roles,
    learned: Mapping[str, Learning],
    primary: tuple[int, int],
) -> list[str]:
    """Whether process rewards helped, whether varied budgets did, and what was learned.

    ``planned`` has the arms that failed, too. Without an arm of the outcome alone at the largest T
    there is nothing to compare with, and one sentence that says so.
    """
    if parts.outcome is None:
        lost = "" if planned.outcome is None else f" ({planned.outcome} failed)"
        return [
            f"There is no arm that was trained on the outcome alone at the largest T{lost}, so "
            f"there is nothing to compare process rewards with."
        ]
    return [
        _process(policies, parts, planned, parts.outcome),
        _budgets(policies, parts, parts.outcome, primary),
        _learned(policies, parts.outcome, learned),
    ]


def _process(policies: Policies, parts: Roles, planned: Roles, outcome: str) -> str:
    worst = MEASURES["regret_worst"]
    own = with_interval(policies.estimate(outcome, worst)[0])
    first, last = policies.turns[0], policies.turns[-1]
    base = (
        f"the largest regret over T = {first} to {last} to the exact optimum is {own} for "
        f"{outcome}, trained at T = {last} on the outcome alone"
    )
    arms = [*parts.process, *parts.sums]
    if not arms:
        failed = [*planned.process, *planned.sums]
        if failed:
            return f"All arms with a process reward failed ({listed(failed)}); {base}."
        return f"No arm has a process reward of the model beside the outcome; {base}."
    changes = {name: policies.difference(name, outcome, worst)[0] for name in arms}
    better = sum(change.high < 0 for change in changes.values())
    worse = sum(change.low > 0 for change in changes.values())
    verdict = (
        "No process reward alone makes the agent measurably more robust to its turn budget"
        if better == 0
        else f"{better} of {plural(len(arms), 'process reward')} alone "
        f"{'makes' if better == 1 else 'make'} the agent measurably more robust to its turn budget"
    )
    if len(arms) == 1:
        return f"{verdict}: {base}, and {arms[0]} changes it by {_change(changes[arms[0]])}."
    ranked = sorted(arms, key=lambda name: changes[name].value)
    ends = " to ".join(f"{_change(changes[name])} ({name})" for name in (ranked[0], ranked[-1]))
    untold = len(arms) - better - worse
    return (
        f"{verdict}: {base}, and {len(arms)} arms with a process reward beside it change that by "
        f"{ends}; {better} of them make it smaller, {worse} larger, and {untold} cannot be told."
    )


def _budgets(policies: Policies, parts: Roles, outcome: str, primary: tuple[int, int]) -> str:
    at = policies.turns.index(primary[1])
    success, worst = MEASURES["success"], MEASURES["regret_worst"]
    mixed = [name for name in (parts.mix, *parts.mix_process) if name is not None]
    cells = {
        name: f"{policies.estimate(name, success)[at].value:.2f}"
        for name in (BASE, outcome, *mixed, OPTIMUM)
    }
    cell = f"Pass@(1,{primary[1]}) is " + listed(f"{v} for {name}" for name, v in cells.items())
    if not mixed:
        return f"No arm was trained on varied budgets; {cell}."
    changes = [
        f"{_change(policies.difference(name, outcome, worst)[0])} ({name})" for name in mixed
    ]
    return (
        f"Training on varied budgets in place of one changes the largest regret by "
        f"{' and '.join(changes)}; {cell}."
    )


def _learned(policies: Policies, outcome: str, learned: Mapping[str, Learning]) -> str:
    rising = [name for name, one in learned.items() if one.rising]
    if any(math.isnan(one.last_rise) for one in learned.values()):
        state = "training was too short to tell whether it had converged"
    elif rising:
        state = (
            f"{len(rising)} of {plural(len(learned), 'arm')} "
            f"{'was' if len(rising) == 1 else 'were'} still learning when training "
            f"ended ({listed(rising)}), so that this holds for this much training"
        )
    else:
        state = f"in no arm did success rise by {FLAT} or more over the last quarter of training"
    if not policies.has(BASE, MEASURES["single_step"]):
        return f"In training, {state}."
    changes = {
        words: policies.difference(outcome, BASE, MEASURES[name])[0]
        for words, name in (
            ("single-step quality", "single_step"),
            ("success after a repeated call that was put in", "after_repeat"),
            ("after a stray read", "after_stray"),
        )
    }
    what = ", ".join(f"{words} by {_change(change)}" for words, change in changes.items())
    return f"Reinforcement learning on the outcome changed {what}; {state}."


def budget_answer(report: BudgetReport) -> list[str]:
    """Three sentences on policies of which only runs are known."""
    k, t = report.primary
    i, j = report.k.index(k), report.t.index(t)
    cells = {name: one.pass_at[i][j] for name, one in report.policies.items()}
    best = max(cells, key=lambda name: cells[name].value)
    shown = ", ".join(f"{cell} for {name}" for name, cell in cells.items())
    first = f"Pass@({k},{t}) is {shown}."
    left = {name: one.robustness["drop_ratio"].value for name, one in report.policies.items()}
    known = [f"{value:.2f} of it for {name}" for name, value in left.items() if value == value]
    second = (
        f"Of the success at T = {report.t[-1]}, what is left at T = {report.t[0]} is "
        f"{listed(known)}."
        if known
        else f"No policy succeeds at T = {report.t[-1]}."
    )
    if 0 < len(known) < len(left):
        never = [name for name, value in left.items() if math.isnan(value)]
        second = f"{second[:-1]}; {listed(never)} never succeeded there."
    others = [c for c in report.comparisons if best in (c.a, c.b)]
    sure = [c for c in others if c.primary_p_holm <= 0.05]
    if not others:
        return [first, second]
    third = (
        f"{best} is the best in this cell, and differs from {len(sure)} of the "
        f"{plural(len(others), 'other')} it is compared with there, at a level of 5 % after Holm."
    )
    return [first, second, third]


def _change(estimate: Estimate) -> str:
    return with_interval(estimate, signed=True)
