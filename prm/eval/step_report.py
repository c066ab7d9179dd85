"""Step scores of traces measured: the model beside its baselines, with intervals and differences.

Pure: traces in, a report out. Every scorer is measured on the same steps (those with a label and a
model score) and on the same resampled tasks, so that ``model − baseline`` is a paired difference.
Labels are split at ``positive_at``; soft labels keep their values for the rank correlation, for
state read-outs and, if asked for, for the Brier score.

Left out: files, tables and the command (``prm.eval.evaluate_steps``); statistics
(``prm.eval.measures``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from prm.data.trace import Trace
from prm.errors import PRMError, plural
from prm.eval.baselines import BASELINES, score_from_training, score_out_of_fold
from prm.eval.estimate import Estimate
from prm.eval.measures import (
    Estimates,
    Measure,
    first_error_measure,
    joined,
    mean_measure,
    measure_all,
    rank_measure,
    step_measure,
)
from prm.eval.rows import Rows, rows_of, state_column, step_column, success_column
from prm.eval.steps import Floats, is_probability, known
from prm.eval.traces import AGGREGATES, aggregate, best_of_n

MODEL = "model"
PROBABILITY_THRESHOLD = 0.5


class StepReport(NamedTuple):
    """What was measured; every number with its interval and its denominator."""

    n_traces: int
    n_steps: int
    """Steps with a label and a score."""
    n_skipped: int
    """Steps without one of them."""
    base_rate: Estimate
    """Share of positive steps."""
    threshold: float
    """A step that the model scores lower is predicted to be wrong."""
    fitted_on: str
    """What the baselines learned from."""
    scorers: dict[str, Estimates]
    """"model", then each baseline: metric -> estimate."""
    differences: dict[str, Estimates]
    """Baseline -> metric -> model − baseline."""
    best_of_n: dict[str, Estimates]
    """Way to choose among the traces of a task -> its success and its gain over chance; empty
    where no task has two traces with a known outcome."""
    states: dict[str, Estimates]
    """"model" and "constant" on state read-outs; empty where none were asked for."""

    def as_json(self) -> dict[str, Any]:
        """Plain values under the names of ``prm eval steps --json``; NaN is None."""
        return {
            "n_traces": self.n_traces,
            "n_steps": self.n_steps,
            "n_skipped": self.n_skipped,
            "base_rate": self.base_rate.as_json(),
            "threshold": self.threshold,
            **_nested(self.scorers[MODEL]),
            "baselines": {n: _nested(e) for n, e in self.scorers.items() if n != MODEL},
            "baselines_fitted_on": self.fitted_on,
            "differences": {name: _nested(e) for name, e in self.differences.items()},
            "best_of_n": {name: _nested(e) for name, e in self.best_of_n.items()},
            "states": {name: _nested(e) for name, e in self.states.items()},
        }


def step_report(
    traces: Sequence[Trace],
    train: Sequence[Trace] | None = None,
    *,
    label: str,
    score: str = "prm",
    positive_at: float = 1.0,
    rank_label: str | None = None,
    state_label: str | None = None,
    state_score: str | None = None,
    threshold: float | None = None,
    soft_brier: bool = False,
    resamples: int = 1000,
    seed: int = 0,
) -> StepReport:
    """Measure the scores named ``score`` of B traces against the labels named ``label``.

    Baselines are fitted on ``train``, or else out of fold by task. The options are those of
    :func:`prm.eval.evaluate_steps.evaluate_steps`. Raises :class:`PRMError` when a name is in none
    of the traces (and says which are), when the labels are of one class, when ``train`` shares a
    task with ``traces``, and when numbers that must be probabilities are not.
    """
    if seed < 0:
        raise PRMError(f"--seed: expected a number >= 0, found {seed}")
    labels = step_column(traces, "labels", label)
    scores = step_column(traces, "scores", score)
    ranks = None if rank_label is None else step_column(traces, "labels", rank_label)
    rows = rows_of(traces)
    used = known(labels, scores)
    positive = _positive(labels, positive_at)
    _check_classes(positive[used], label, score, positive_at)
    if soft_brier and not is_probability(labels[used]):
        raise PRMError(
            f"the Brier score of soft labels needs labels in [0, 1], found {label!r} from "
            f"{labels[used].min():g} to {labels[used].max():g}"
        )
    probable = is_probability(scores[used])
    if threshold is None and not probable:
        raise PRMError(
            f"scores {score!r} are no probabilities ({scores[used].min():g} to "
            f"{scores[used].max():g}), so 0.5 need not part right from wrong; give --threshold"
        )
    model_cut = PROBABILITY_THRESHOLD if threshold is None else threshold
    # A cut of logits says nothing about the probabilities of a baseline.
    baseline_cut = model_cut if probable else PROBABILITY_THRESHOLD
    truth = rows.first_errors(1 - positive)
    decided = known(truth, rows.first_errors(_below(scores, model_cut)))

    def measure(values: Floats, cut: float) -> Measure:
        parts = [
            step_measure(
                labels[used],
                values[used],
                rows.task[used],
                int((~used).sum()),
                positive_at=positive_at,
                threshold=cut,
                soft_brier=soft_brier,
            ),
            first_error_measure(
                truth[decided],
                rows.first_errors(_below(values, cut))[decided],
                rows.trace_task[decided],
                int((~decided).sum()),
            ),
        ]
        if ranks is not None:
            both = known(ranks, scores)
            parts.append(
                rank_measure(ranks[both], values[both], rows.task[both], int((~both).sum()))
            )
        return joined(*parts)

    # One seed for all: everything in the report is measured on the same resampled tasks.
    resampled = partial(measure_all, n_tasks=rows.n_tasks, resamples=resamples, seed=seed)
    base_rate = mean_measure("base_rate", positive[used], rows.task[used], int((~used).sum()))
    baselines = _baseline_scores(traces, train, label, positive, positive_at)
    steps = resampled(
        {MODEL: measure(scores, model_cut)}
        | {name: measure(values, baseline_cut) for name, values in baselines.items()}
    )
    choices = resampled(_choices(traces, rows, scores, probable))
    states = resampled(
        _state_measures(traces, rows, state_label, state_score or score, positive_at)
    )
    return StepReport(
        n_traces=len(traces),
        n_steps=int(used.sum()),
        n_skipped=int((~used).sum()),
        base_rate=resampled({"labels": base_rate}).estimates("labels")["base_rate"],
        threshold=model_cut,
        fitted_on="the other folds, by task"
        if train is None
        else plural(len(train), "training trace"),
        scorers={name: steps.estimates(name) for name in steps.value},
        differences={name: steps.difference(MODEL, name) for name in baselines},
        best_of_n={
            name: choices.estimates(name) | {"gain": choices.difference(name, "random")["success"]}
            for name in choices.value
        },
        states={name: states.estimates(name) for name in states.value},
    )


def _baseline_scores(
    traces: Sequence[Trace],
    train: Sequence[Trace] | None,
    label: str,
    positive: Floats,
    positive_at: float,
) -> dict[str, Floats]:
    """Baseline -> (M,) probabilities."""
    if train is None:
        return {name: score_out_of_fold(name, traces, positive) for name in BASELINES}
    shared = {trace.task_id for trace in train} & {trace.task_id for trace in traces}
    if shared:
        raise PRMError(
            f"training and scored traces share {plural(len(shared), 'task')} ({min(shared)!r} is "
            f"one), so the baselines would be scored on what they learned; split by task"
        )
    learned = _positive(step_column(train, "labels", label), positive_at)
    return {name: score_from_training(name, traces, train, learned) for name in BASELINES}


def _choices(
    traces: Sequence[Trace], rows: Rows, scores: Floats, probable: bool
) -> dict[str, Measure]:
    """Best-of-n by each aggregate of the model's scores, over tasks with a choice to make."""
    outcome = success_column(traces)
    measures = {}
    for how in AGGREGATES:
        if how == "prod" and not probable:
            continue  # a product of logits orders nothing
        value = aggregate(scores, rows.trace, rows.step, len(traces), how)
        picked = best_of_n(value, outcome, rows.trace_task, rows.n_tasks)
        counted = ~np.isnan(picked.chosen)
        task = np.flatnonzero(counted)
        ways = {"random": picked.random, "oracle": picked.oracle, how: picked.chosen}
        for name, success in ways.items():
            measures[name] = mean_measure("success", success[task], task, int((~counted).sum()))
    return measures if measures["random"].counts["success"][0] else {}


def _state_measures(
    traces: Sequence[Trace],
    rows: Rows,
    state_label: str | None,
    state_score: str,
    positive_at: float,
) -> dict[str, Measure]:
    """State scores and the best constant, against state labels; soft where they are in [0, 1]."""
    if state_label is None:
        return {}
    labels = state_column(traces, "labels", state_label)
    scores = state_column(traces, "scores", state_score)
    task = np.repeat(rows.trace_task, [trace.n_steps + 1 for trace in traces])
    used = known(labels, scores)
    if not used.any():
        raise PRMError(f"no state has both a label {state_label!r} and a score {state_score!r}")
    labels, scores, task = labels[used], scores[used], task[used]
    skipped = int((~used).sum())
    # Soft values have no positive class: what counts is their distance and their order.
    soft = is_probability(labels) and not np.isin(labels, (0.0, 1.0)).all()

    def measure(values: Floats) -> Measure:
        if soft and is_probability(values):
            first = mean_measure("brier", np.square(values - labels), task, skipped)
        else:
            first = step_measure(
                labels,
                values,
                task,
                skipped,
                positive_at=positive_at,
                threshold=PROBABILITY_THRESHOLD,
                soft_brier=False,
            )
        return joined(first, rank_measure(labels, values, task, skipped))

    return {MODEL: measure(scores), "constant": measure(np.full(len(labels), labels.mean()))}


def _check_classes(positive: Floats, label: str, score: str, positive_at: float) -> None:
    if len(positive) == 0:
        raise PRMError(f"no step has both a label {label!r} and a score {score!r}")
    if positive.min() == positive.max():
        kind = "positive" if positive[0] else "negative"
        raise PRMError(
            f"all {len(positive)} steps with a label {label!r} and a score {score!r} are {kind} "
            f"(label >= {positive_at:g} is positive); there is nothing to tell apart"
        )


def _positive(labels: Floats, positive_at: float) -> Floats:
    """1.0 or 0.0; NaN stays NaN."""
    return np.where(np.isnan(labels), np.nan, labels >= positive_at)


def _below(scores: Floats, threshold: float) -> Floats:
    """1.0 where a step is predicted to be wrong; NaN stays NaN."""
    return np.where(np.isnan(scores), np.nan, scores < threshold)


def _nested(estimates: Estimates) -> dict[str, Any]:
    """``{"a.b": estimate}`` as ``{"a": {"b": numbers}}``."""
    nested: dict[str, Any] = {}
    for name, estimate in estimates.items():
        group, _, metric = name.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[metric] = estimate.as_json()
    return nested
