"""The answer of a study in three sentences, made from its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from prm.errors import plural
from prm.eval.budget_report import BudgetReport
from prm.eval.estimate import Estimate
from prm.study.claims import Roles
from prm.study.config import BASE, OPTIMUM
from prm.study.findings import Policies
from prm.study.learning import FLAT, Learning
from prm.study.measures import MEASURES


def answer(
    policies: Policies, parts: Roles, learned: Mapping[str, Learning], primary: tuple[int, int]
) -> list[str]:
    """Whether process rewards helped, whether varied budgets did, and what was learned.

    Without an arm of the outcome alone at the largest T there is nothing to compare with, and one
    sentence that says so.
    """
    if parts.outcome is None:
        return [
            "No arm was trained on the outcome alone at the largest T, so there is nothing to "
            "compare process rewards with."
        ]
    return [
        _process(policies, parts, parts.outcome),
        _budgets(policies, parts, parts.outcome, primary),
        _learned(policies, parts.outcome, learned),
    ]


def unsigned(estimate: Estimate) -> str:
    """
    >>> unsigned(Estimate(0.123, 0.05, 0.2, 9, 0))
    '0.12 [0.05, 0.20]'
    """
    if math.isnan(estimate.low):
        return f"{estimate.value:.2f} [no interval]"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def signed(estimate: Estimate, digits: int = 2) -> str:
    """
    >>> signed(Estimate(-0.123, -0.2, 0.05, 9, 0))
    '−0.12 [−0.20, +0.05]'
    """

    def one(value: float) -> str:
        return f"{value:+.{digits}f}".replace("-", "−")

    if math.isnan(estimate.low):
        return f"{one(estimate.value)} [no interval]"
    return f"{one(estimate.value)} [{one(estimate.low)}, {one(estimate.high)}]"


def _process(policies: Policies, parts: Roles, outcome: str) -> str:
    worst = MEASURES["regret_worst"]
    own = unsigned(policies.estimate(outcome, worst)[0])
    arms = [*parts.process, *parts.sums]
    first, last = policies.turns[0], policies.turns[-1]
    if not arms:
        return f"No arm has a process reward; the worst-case regret of {outcome} is {own}."
    changes = {name: policies.difference(name, outcome, worst)[0] for name in arms}
    ranked = sorted(arms, key=lambda name: changes[name].value)
    better = sum(change.high < 0 for change in changes.values())
    worse = sum(change.low > 0 for change in changes.values())
    verdict = (
        "No process reward alone makes the agent measurably more robust to its turn budget"
        if better == 0
        else f"{better} of {plural(len(arms), 'process reward')} alone make the agent measurably "
        f"more robust to its turn budget"
    )
    ends = f"{ranked[0]} changes it by {signed(changes[ranked[0]])}"
    if len(ranked) > 1:
        ends += f", {ranked[-1]} by {signed(changes[ranked[-1]])}"
    untold = len(arms) - better - worse
    return (
        f"{verdict}: the largest regret over T = {first} to {last} to the exact optimum is {own} "
        f"for {outcome}, trained at T = {last} on the outcome alone, and of "
        f"{plural(len(arms), 'arm')} with a process reward beside it {better} have a smaller one, "
        f"{worse} a larger one, and {untold} cannot be told from it ({ends})."
    )


def _budgets(policies: Policies, parts: Roles, outcome: str, primary: tuple[int, int]) -> str:
    at = policies.turns.index(primary[1])
    success, worst = MEASURES["success"], MEASURES["regret_worst"]
    mixed = [name for name in (parts.mix, *parts.mix_process) if name is not None]
    cells = {
        name: f"{policies.estimate(name, success)[at].value:.2f}"
        for name in (BASE, outcome, *mixed, OPTIMUM)
    }
    cell = f"Pass@(1,{primary[1]}) is " + ", ".join(f"{v} for {name}" for name, v in cells.items())
    if not mixed:
        return f"No arm was trained on varied budgets; {cell}."
    changes = [f"{signed(policies.difference(name, outcome, worst)[0])} ({name})" for name in mixed]
    return (
        f"Training on varied budgets in place of one changes the largest regret by "
        f"{' and '.join(changes)}; {cell}."
    )


def _learned(policies: Policies, outcome: str, learned: Mapping[str, Learning]) -> str:
    rising = [name for name, one in learned.items() if not one.flat]
    state = (
        f"in no arm did success rise by {FLAT} or more over the last quarter of training"
        if not rising
        else f"{len(rising)} of {plural(len(learned), 'arm')} were still learning when training "
        f"ended ({', '.join(rising)}), so that this holds for this much training"
    )
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
    what = ", ".join(f"{words} by {signed(change)}" for words, change in changes.items())
    return f"Reinforcement learning on the outcome changed {what}; {state}."


def budget_answer(report: BudgetReport) -> list[str]:
    """Three sentences on policies of which only runs are known."""
    k, t = report.primary
    i, j = report.k.index(k), report.t.index(t)
    cells = {name: one.pass_at[i][j] for name, one in report.policies.items()}
    best = max(cells, key=lambda name: cells[name].value)
    listed = ", ".join(f"{cell} for {name}" for name, cell in cells.items())
    first = f"Pass@({k},{t}) is {listed}."
    drops = ", ".join(
        f"{one.robustness['drop_ratio'].value:.2f} of it for {name}"
        for name, one in report.policies.items()
    )
    second = f"Of the success at T = {report.t[-1]}, what is left at T = {report.t[0]} is {drops}."
    others = [c for c in report.comparisons if best in (c.a, c.b)]
    sure = [c for c in others if c.primary_p_holm <= 0.05]
    if not others:
        return [first, second]
    third = (
        f"{best} is the best in this cell, and differs from {len(sure)} of the "
        f"{plural(len(others), 'other')} it is compared with there, at a level of 5 % after Holm."
    )
    return [first, second, third]
