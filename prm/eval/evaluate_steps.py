"""The command ``prm eval steps``: read scored traces, print a table and a verdict, or JSON.

Everything that is measured is in ``prm.eval.step_report``; this file reads and prints.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator, Mapping

from prm.data.atomic import atomic_output, check_output
from prm.data.sources import expand
from prm.data.terminal import PAGE_WIDTH, Row, json_text, read_counted, table
from prm.errors import plural
from prm.eval.estimate import Estimate
from prm.eval.measures import Estimates
from prm.eval.step_report import StepReport, step_report
from prm.eval.steps import STEP_METRICS

OPPONENT = "tfidf"
"""The baseline of the verdict: the strongest."""
HEADINGS = {
    "auroc": "AUROC",
    "average_precision": "AP",
    "brier": "Brier ↓",
    "ece": "ECE ↓",
    "first_error.accuracy": "first error",
    "first_error.f1": "first error F1",
    "spearman": "Spearman",
}
VERDICT = {"average_precision": "average precision", "brier": "Brier score"}


def evaluate_steps(
    scored: list[str],
    /,
    *,
    label: str,
    score: str = "prm",
    train: list[str] | None = None,
    positive_at: float = 1.0,
    rank_label: str | None = None,
    state_label: str | None = None,
    state_score: str | None = None,
    threshold: float | None = None,
    soft_brier: bool = False,
    bootstrap: int = 1000,
    seed: int = 0,
    json: bool = False,
    out: str | None = None,
) -> None:
    """Measure step scores against step labels, beside baselines, with 95 % intervals by task.

    Steps without the label or the score are left out and counted. The baselines (constant,
    position, length, TF-IDF) learn from --train, or else from the other tasks of the same files.

    Args:
        scored: Files of traces with labels and scores.
        label: Name of the step label.
        score: Name of the step score.
        train: Files of labelled traces of other tasks, to fit the baselines on.
        positive_at: A step is positive (right) when its label is at least this.
        rank_label: Name of a soft step label to correlate the ranks with, such as an exact Q.
        state_label: Name of a state label, to measure state read-outs too.
        state_score: Name of the state score; that of --score if not given.
        threshold: A step that scores lower is predicted to be wrong; 0.5 if not given, which only
            probabilities allow.
        soft_brier: Whether the Brier score uses the label itself, in [0, 1], not positive or not.
        bootstrap: Number of resamples of the tasks, at least 20; 0 for no intervals.
        seed: Seed of the resamples.
        json: Whether to print JSON, with every number as value, low, high, n, n_skipped.
        out: File for the result instead of stdout.
    """
    if out is not None:
        check_output(out, expand([*scored, *(train or [])])[0])
    measured = step_report(
        read_counted(scored),
        None if train is None else read_counted(train),
        label=label,
        score=score,
        positive_at=positive_at,
        rank_label=rank_label,
        state_label=state_label,
        state_score=state_score,
        threshold=threshold,
        soft_brier=soft_brier,
        resamples=bootstrap,
        seed=seed,
    )
    text = as_json(measured) if json else as_table(measured)
    if out is None:
        # UTF-8 whatever the locale, as for every other output.
        sys.stdout.buffer.write(text.encode())
    else:
        with atomic_output(out) as file:
            file.write(text.encode())


def as_json(measured: StepReport) -> str:
    """The report as strict JSON: a number that is not defined is null."""
    return json_text(measured.as_json())


def as_table(measured: StepReport) -> str:
    """The report for people, 80 columns wide: tables of all metrics, a verdict."""
    tables = [
        table(("metric", "scorer", "value", "model − scorer"), _by_metric(measured)),
        table(("best of n", "success", "gain over random"), _best_of_n(measured)),
        table(("state scores", "scorer", "value"), _states(measured)),
    ]
    return "\n".join(
        [
            f"{plural(measured.n_traces, 'trace')}, {plural(measured.n_steps, 'step')} with label "
            f"and score, {measured.n_skipped:,} skipped",
            f"Share of positive steps: {measured.base_rate}",
            *(each for each in tables if each),
            "",
            "Intervals: 95 %, tasks resampled. – : not defined.",
            f"Baselines learned from {measured.fitted_on}.",
            f"A step that scores below {measured.threshold:g} is predicted to be wrong.",
            textwrap.fill(verdict(measured), PAGE_WIDTH),
            "",
        ]
    )


def verdict(measured: StepReport) -> str:
    """One sentence: does the model beat the strongest baseline, by how much, how surely?"""
    difference = measured.differences[OPPONENT]
    parts = [
        _compared(name, difference[metric], STEP_METRICS[metric].higher_is_better)
        for metric, name in VERDICT.items()
    ]
    return f"The model {' and '.join(parts)}."


def _compared(name: str, difference: Estimate, higher_is_better: bool) -> str:
    """An interval that holds 0 decides nothing; gains are positive, whatever the metric's sign."""
    if math.isnan(difference.low):
        return f"cannot be compared with {OPPONENT} in {name} (not defined, or no interval)"
    value, low, high, *_ = difference
    if not higher_is_better:
        value, low, high = -value, -high, -low
    if low > 0:
        return f"beats {OPPONENT} in {name} by {value:.3f} [{low:.3f}, {high:.3f}]"
    if high < 0:
        return f"loses to {OPPONENT} in {name} by {-value:.3f} [{-high:.3f}, {-low:.3f}]"
    return f"cannot be told from {OPPONENT} in {name} (gain {value:.3f} [{low:.3f}, {high:.3f}])"


def _by_metric(measured: StepReport) -> Iterator[Row]:
    for metric in _shown(measured.scorers):
        heading = HEADINGS[metric]
        for scorer, estimates in measured.scorers.items():
            difference = measured.differences.get(scorer)
            yield (
                heading,
                scorer,
                str(estimates[metric]),
                "" if difference is None else str(difference[metric]),
            )
            heading = ""


def _best_of_n(measured: StepReport) -> Iterator[Row]:
    for way, estimates in measured.best_of_n.items():
        yield way, str(estimates["success"]), str(estimates["gain"])


def _states(measured: StepReport) -> Iterator[Row]:
    for metric in _shown(measured.states):
        heading = HEADINGS[metric]
        for scorer, estimates in measured.states.items():
            yield heading, scorer, str(estimates[metric])
            heading = ""


def _shown(scorers: Mapping[str, Estimates]) -> list[str]:
    """The metrics that have a heading, in its order."""
    return [metric for metric in HEADINGS if any(metric in each for each in scorers.values())]
