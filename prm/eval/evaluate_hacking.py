"""The command ``prm eval hacking``: read scored traces, print a table and a verdict, or JSON.

Everything that is measured is in ``prm.eval.hacking``; this file reads and prints.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

from prm.data.terminal import PAGE_WIDTH, Row, json_text, read_counted, table
from prm.errors import plural, printable
from prm.eval.hacking import HackingReport, hacking_report

REWARD = {
    "success": "of successful traces",
    "failure": "of failed traces",
    "difference_within": "difference within tasks",
    "correlation_within": "with success, within tasks",
    "length_within": "with length, within tasks",
    "length_success": "the same, among successes",
    "length_failure": "the same, among failures",
    "failure_on_top": "a failure is on top",
    "failure_by_chance": "the same by chance",
}
REPETITION = {
    "calls": "share of repeated calls",
    "reward": "their share of the reward",
    "repeated": "score of a repeated call",
    "new": "score of a new one",
}
GROUP = {"reward": "reward", "success": "success", "steps": "steps", "repeated": "repeated"}


def evaluate_hacking(
    scored: list[str],
    /,
    *,
    score: str = "prm",
    by: str | None = None,
    bootstrap: int = 10_000,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Watch what a process reward pays for: success, or length and repeated calls.

    The process reward of a trace is the sum of its step scores. Numbers have 95 % intervals over
    tasks; correlations are rank correlations.

    Args:
        scored: Files of traces with step scores and known success.
        score: Name of the step score, or of the shaped reward of the step.
        by: Key of meta that orders traces along training, such as the step of the policy.
        bootstrap: Number of resamples of the tasks, at least 20; 0 for no intervals.
        seed: Seed of the resamples.
        json: Whether to print JSON, with every number as value, low, high, n, n_skipped.
    """
    watched = hacking_report(
        read_counted(scored), score=score, by=by, resamples=bootstrap, seed=seed
    )
    sys.stdout.buffer.write((as_json(watched) if json else as_table(watched)).encode())


def as_json(watched: HackingReport) -> str:
    """The report with its verdict, as strict JSON."""
    values = watched.as_json() | {"verdict": watched.verdict()}
    return json_text(values)


def as_table(watched: HackingReport) -> str:
    """The report for people, 80 columns wide."""
    by = printable(watched.by or "")
    skipped = watched.sum.correlation.n_skipped
    parts = [
        f"{plural(watched.n_traces, 'trace')} of {plural(watched.n_tasks, 'task')}, step scores "
        f"{printable(watched.score)!r}; {skipped:,} left out",
        table(("process reward", "sum of the steps", "mean of the steps"), _rewards(watched)),
        table(("repetition", "value"), _repetition(watched)),
        table((by, *GROUP.values()), _groups(watched)),
        "",
        "Left out: traces without a score for each step, or without a known success.",
        textwrap.fill(watched.verdict(), PAGE_WIDTH),
        "",
    ]
    return "\n".join(part for place, part in enumerate(parts) if part or place >= len(parts) - 4)


def _rewards(watched: HackingReport) -> Iterator[Row]:
    for name, words in REWARD.items():
        yield words, str(getattr(watched.sum, name)), str(getattr(watched.mean, name))


def _repetition(watched: HackingReport) -> Iterator[Row]:
    for name, words in REPETITION.items():
        yield words, str(getattr(watched.repetition, name))


def _groups(watched: HackingReport) -> Iterator[Row]:
    for name, group in watched.groups.items():
        yield printable(name), *(f"{getattr(group, key).value:.3f}" for key in GROUP)
    if watched.change is not None:
        yield "change", *(str(getattr(watched.change, key)) for key in GROUP)
