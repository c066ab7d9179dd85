"""The words of a budget report: numbers as text, names of summaries, and what a comparison says.

Plain text, the same for every output; who puts it on a page escapes it there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from prm.errors import PRMError, printable
from prm.eval.budget_report import BudgetReport
from prm.eval.budget_statistics import Comparison
from prm.eval.estimate import Estimate
from prm.eval.steps import Bools

NOT_DEFINED = "–"
MAX_PAIRS = 15
"""Of more pairs of policies not all are printed and drawn; budget.json and the page have all."""


class Summary(NamedTuple):
    """How a summary of robustness is called, and what it is."""

    label: str
    meaning: str
    """May name ``target`` and ``alpha`` of the report in braces."""


SUMMARIES = {
    "area_t": Summary("Area over T", "mean height of Pass@(1,T) over ln T"),
    "worst": Summary("Worst budget", "least Pass@(1,T) of the grid"),
    "worst_share": Summary("Mean of worst budgets", "mean of the lowest {alpha:.0%} of Pass@(1,T)"),
    "slope": Summary("Gain of a doubling", "slope of Pass@(1,T) on log2 T"),
    "drop_ratio": Summary("Left at the tightest", "Pass@(1,T) at the least T over the largest"),
    "turns_to_reach": Summary(
        "Turns to the target", "least T of the grid at which Pass@(1,T) is {target:g} or more"
    ),
    "area_k": Summary("Area over K", "mean height of Pass@(K,T) over ln K at the primary T"),
    "regret_mean": Summary(
        "Mean regret",
        "how far below the best policy at each T, on average; the best is chosen on one half of "
        "the tasks and scored on the other",
    ),
    "regret_max": Summary("Largest regret", "the same, at the T where it is largest"),
}


def number(value: float, digits: int = 3, *, signed: bool = False) -> str:
    """A number as text; a dash where it is not defined.

    >>> number(0.42), number(-0.0151, signed=True), number(float("nan")), number(float("inf"))
    ('0.420', '−0.015', '–', '∞')
    """
    if math.isnan(value):
        return NOT_DEFINED
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text.replace("-", "−")


def p_value(p: float) -> str:
    """Three significant digits.

    >>> p_value(0.0214843), p_value(1e-4), p_value(1.3e-100), p_value(float("nan"))
    ('0.0215', '0.0001', '1.3e−100', '–')
    """
    return NOT_DEFINED if math.isnan(p) else f"{p:.3g}".replace("-", "−")


def bounds(low: float, high: float, digits: int = 3, *, signed: bool = False) -> str:
    """An interval as text.

    >>> bounds(0.325, 0.525), bounds(float("nan"), float("nan"))
    ('[0.325, 0.525]', '[–]')
    """
    if math.isnan(low):
        return f"[{NOT_DEFINED}]"
    return f"[{number(low, digits, signed=signed)}, {number(high, digits, signed=signed)}]"


def with_interval(estimate: Estimate, digits: int = 2, *, signed: bool = False) -> str:
    """A value and its interval, for sentences.

    >>> with_interval(Estimate(-0.123, -0.2, 0.05, n=9, n_skipped=0), signed=True)
    '−0.12 [−0.20, +0.05]'
    >>> with_interval(Estimate(0.123, math.nan, math.nan, n=9, n_skipped=0))
    '0.12 [no interval]'
    """
    value = number(estimate.value, digits, signed=signed)
    if math.isnan(estimate.low):
        return f"{value} [no interval]"
    return f"{value} {bounds(estimate.low, estimate.high, digits, signed=signed)}"


def turns(estimate: Estimate, largest: int) -> tuple[str, str]:
    """Value and interval of the least budget that reaches a target; infinity is not reached.

    >>> turns(Estimate(8.0, 5.0, float("inf"), n=50, n_skipped=0), largest=30)
    ('8', '[5, > 30]')
    """

    def text(value: float) -> str:
        return f"> {largest}" if value == math.inf else number(value, 0)

    if math.isnan(estimate.low):
        return text(estimate.value), bounds(math.nan, math.nan)
    return text(estimate.value), f"[{text(estimate.low)}, {text(estimate.high)}]"


def listed(numbers: Sequence[int]) -> str:
    """
    >>> listed([1, 2, 5])
    '1, 2, 5'
    """
    return ", ".join(map(str, numbers))


def cell_of(primary: str | None) -> tuple[int, int] | None:
    """The (K, T) that somebody wrote; a :class:`PRMError` for anything else.

    >>> cell_of("1,10")
    (1, 10)
    """
    if primary is None:
        return None
    parts = primary.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise PRMError(f"--primary: expected K,T such as 1,10, found {primary!r}")
    return int(parts[0]), int(parts[1])


def chief_pairs(report: BudgetReport) -> list[Comparison]:
    """The pairs to show first: all of them up to 15, else those of which a difference survives."""
    if len(report.comparisons) <= MAX_PAIRS:
        return report.comparisons
    return [pair for pair in report.comparisons if pair.survives().any()]


def verdict(
    comparison: Comparison, report: BudgetReport, names: Mapping[str, str] | None = None
) -> str:
    """Which differences survive the simultaneous band, in words, and in whose favour.

    ``names`` are short names of the policies; None = their own.

    For example "T = 3, 5 survive in favour of b; T = 1, 2 do not."

    Neighbouring K of which the same can be said are taken together.
    """
    if not (comparison.survives() | np.isnan(comparison.difference)).any():
        return "no difference survives."
    names = names or {name: printable(name) for name in (comparison.a, comparison.b)}
    rows = enumerate(_row_verdict(comparison, row, report.t, names) for row in range(len(report.k)))
    parts = [
        (words, [report.k[place] for place, _ in same])
        for words, same in groupby(rows, key=lambda row: row[1])
    ]
    if len(report.k) == 1:
        return f"{parts[0][0]}."
    return " ".join(f"K = {listed(k)}: {words}." for words, k in parts)


def _row_verdict(
    comparison: Comparison, row: int, t: Sequence[int], names: Mapping[str, str]
) -> str:
    """The same at one K, without the full stop."""
    difference = comparison.difference[row]
    survives = comparison.survives()[row]
    unknown = np.isnan(difference)

    def clause(where: Bools, one: str, several: str) -> list[str]:
        found = [budget for budget, here in zip(t, where, strict=True) if here]
        return [f"T = {listed(found)} {one if len(found) == 1 else several}"] if found else []

    won = []
    for name, where in ((comparison.a, difference > 0), (comparison.b, difference < 0)):
        favour = f"in favour of {names[name]}"
        won += clause(survives & where, f"survives {favour}", f"survive {favour}")
    lost = clause(~survives & ~unknown, "does not", "do not") if won else []
    missing = clause(unknown, "is not defined", "are not defined")
    return "; ".join([", ".join(won) or "no difference survives", *lost, *missing])
