"""The report of a study on a terminal: the answer, Pass@(1,T), what changed, and the claims."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from prm.data.terminal import PAGE_WIDTH, Row, table
from prm.errors import listed, printable
from prm.eval.budget_words import number, with_interval
from prm.eval.evaluate_budget import as_table as budget_table
from prm.study.measures import MEASURES
from prm.study.report import StudyReport, Trained


def as_table(report: StudyReport) -> str:
    """80 columns wide."""
    lines = [*map(_filled, report.answer), ""]
    if report.trained is None:
        return "\n".join([*lines, budget_table(report.budget)])
    one = report.trained
    success = [f"T = {t}" for t in one.policies.turns]
    lines += [
        table(("Pass@(1,T)", *success, "worst regret"), _policies(one)),
        table(("claim", "", "tested", "above 0 if so"), _claims(one)),
    ]
    rising = [name for name, found in one.learned.items() if found.rising]
    if rising:
        lines.append(_filled(f"Not yet flat at the end of training: {listed(rising)}."))
    for name, reason in one.failed.items():
        lines.append(_filled(f"Failed: {name}: {reason}"))
    about = "Intervals: 95 %, tasks resampled, and training seeds where there are three or more."
    return "\n".join([*lines, "", _filled(about), *map(_filled, report.budget.notes[:1]), ""])


def _policies(one: Trained) -> Iterator[Row]:
    for name in one.policies.names:
        success = one.policies.estimate(name, MEASURES["success"])
        worst = one.policies.estimate(name, MEASURES["regret_worst"])[0]
        yield printable(name), *(number(cell.value, 2) for cell in success), with_interval(worst)


def _claims(one: Trained) -> Iterator[Row]:
    for claim in one.claims:
        letter, verdict = f"({claim.letter})", str(claim.verdict)
        for tested in claim.numbers:
            yield letter, verdict, tested.label, with_interval(tested.estimate)
            letter = verdict = ""


def _filled(sentence: str) -> str:
    return textwrap.fill(printable(sentence), PAGE_WIDTH)
