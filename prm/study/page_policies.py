"""Sections of the study's page on what policies do: success, regret, decisions and recovery."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prm.eval.budget_words import NOT_DEFINED
from prm.eval.estimate import Estimate
from prm.eval.figure_parts import as_svg
from prm.eval.html_parts import Group, cell, estimate_cell, name, picture, section, table
from prm.study.figures import bases_of, changes_figure, regret_figure, success_figure
from prm.study.measures import HOPS, MEASURES, Measure
from prm.study.report import Trained, regret_to_trained

OWN = ("own_optimal", "natural_recovery")
"""Of decisions and recovery, what is over the runs of the evaluation and not over fixed states."""
ALONG_T = {
    "steps": "Turns used, mean of a run.",
    "checks": "Calls of refresh in a run: what checking costs.",
    "cut": "Out of turns: share of runs that end without an answer.",
    "repeated": "Repeated calls: share of the steps of a run that only repeat a call made before.",
}


def policy_sections(one: Trained) -> list[str]:
    """Success, regret, and what changed."""
    return [_success(one), _regret(one), _decisions(one), _behaviour(one)]


def _success(one: Trained) -> str:
    figure = picture(
        as_svg(success_figure(one)),
        "Curves of Pass@(1,T) over T; the numbers are in the table that follows.",
        "Pass@(1,T), the share of runs that succeed within T turns, of each arm.",
    )
    caption = "Pass@(1,T), the deeper the colour the higher."
    return section("Success by T", figure, _along_t(one, caption, MEASURES["success"]))


def _regret(one: Trained) -> str:
    keys = ("regret_worst", "regret_mean", "regret")
    figure = picture(
        as_svg(regret_figure(one)),
        "Curves of the regret over T; the numbers are in the table that follows.",
        "Regret of each arm: success of the exact optimum at T minus its own.",
    )
    rows = []
    for policy in one.policies.names:
        found = [each for key in keys for each in one.policies.estimate(policy, MEASURES[key])]
        rows.append((name(policy), _cells(one, found)))
    columns = ["worst case", "mean over T", *_budgets(one.policies.turns)]
    caption = (
        "Success of the exact optimum at T, on the same tasks, minus the policy's; 0 is the best. "
        "The worst case is the largest of noisy numbers and therefore somewhat too large."
    )
    return section(
        "Regret to the exact optimum",
        figure,
        table(caption, "policy", columns, [Group(None, rows)]),
        _to_trained(one),
    )


def _to_trained(one: Trained) -> str:
    specialists = one.roles.specialists
    turns = [limit for limit in one.policies.turns if limit in specialists]
    if not turns:
        return ""
    rows = []
    for policy in one.policies.names:
        found = regret_to_trained(one, policy)
        cells = [
            cell(NOT_DEFINED)
            if specialists[limit] == policy
            else estimate_cell(found[limit], one.policies.n_tasks, signed=True)
            for limit in turns
        ]
        rows.append((name(policy), cells))
    columns = [f"T = {limit}<small>{name(specialists[limit])}</small>" for limit in turns]
    caption = (
        "Regret to the trained specialists: success at T of the arm trained on the outcome at that "
        "T alone, minus the policy's. Below 0, the policy is better than the specialist."
    )
    return table(caption, "policy", columns, [Group(None, rows)])


def _decisions(one: Trained) -> str:
    policies = one.policies
    of_states = [one for one in MEASURES.values() if one.of_states]
    measures = [one for one in of_states if policies.has(policies.names[0], one)]
    measures += [MEASURES[key] for key in OWN]
    figure = picture(
        as_svg(changes_figure(one)),
        "Dots with intervals for each policy; the numbers are in the tables that follow.",
        "Decisions in fixed states, success from there as they are and after a mistake was put in, "
        "and success after a mistake of their own.",
    )
    columns = [_heading(measure) for measure in measures]

    def values(policy: str) -> list[Estimate]:
        return [policies.estimate(policy, measure)[0] for measure in measures]

    bases = bases_of(one)

    def changes(policy: str) -> list[Estimate]:
        return [policies.difference(policy, bases[policy], measure)[0] for measure in measures]

    caption = (
        f"How each policy decides and recovers. All but the last two columns are over "
        f"{policies.n_states} fixed states that scripted agents came into, the same for all "
        f"policies; recovery is over those in which such a mistake can be put in. The last two are "
        f"over the runs of the evaluation, in which policies come into different states and err in "
        f"different places."
    )
    change = (
        "The same minus the base policy that the arm started from, on the same states and tasks. A "
        "smaller loss is better, so below 0 is an improvement there."
    )
    return section(
        "What changed: decisions and recovery",
        figure,
        _rows(one, caption, columns, policies.names, values),
        _rows(one, change, columns, list(bases), changes, signed=True) if bases else "",
    )


def _behaviour(one: Trained) -> str:
    hops = [f"{count} links" for count in HOPS]
    return section(
        "What changed: behaviour",
        *(_along_t(one, caption, MEASURES[key]) for key, caption in ALONG_T.items()),
        _rows(
            one,
            "Success by the number of links to follow, mean over T: how far horizons reach.",
            hops,
            one.policies.names,
            lambda policy: one.policies.estimate(policy, MEASURES["hops"]),
            heat=True,
        ),
    )


def _along_t(one: Trained, caption: str, measure: Measure) -> str:
    return _rows(
        one,
        caption,
        _budgets(one.policies.turns),
        one.policies.names,
        lambda policy: one.policies.estimate(policy, measure),
        heat=measure.percent,
    )


def _rows(
    one: Trained,
    caption: str,
    columns: Sequence[str],
    names: Sequence[str],
    read: Callable[[str], Sequence[Estimate]],
    *,
    signed: bool = False,
    heat: bool = False,
) -> str:
    rows = [(name(policy), _cells(one, read(policy), signed=signed, heat=heat)) for policy in names]
    return table(caption, "policy", columns, [Group(None, rows)])


def _cells(
    one: Trained, found: Sequence[Estimate], *, signed: bool = False, heat: bool = False
) -> list[str]:
    """Cells without the denominators, which are the same for all and said elsewhere."""
    return [estimate_cell(each, each.n, signed=signed, heat=heat) for each in found]


def _budgets(turns: Sequence[int]) -> list[str]:
    return [f"T = {limit}" for limit in turns]


def _heading(measure: Measure) -> str:
    return f"{measure.label}<small>{measure.meaning}</small>"
