"""Where the scores of a trainer's rollouts come from: a step reward model, or any function.

A ``ScoreTraces`` takes traces without outcomes and gives ``TraceScores`` back, one for each: (S,)
scores of the actions and (S + 1,) of the states, NaN where there is none. ``trace_scores`` makes
one of a :class:`prm.Scorer`; ``checked_scores`` calls one and checks what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from prm.data.trace import Outcome, Trace
from prm.errors import PRMError, plural
from prm.model.predict import TraceScores
from prm.shaping import ShapingConfig

if TYPE_CHECKING:
    from prm.scoring.scorer import Scorer

ScoreTraces = Callable[[Sequence[Trace]], Sequence[TraceScores]]
"""From traces, without outcomes, to the scores of their steps and states."""


def trace_scores(scorer: Scorer) -> ScoreTraces:
    """The scores of a step reward model, in the form that trainers take."""

    def score(traces: Sequence[Trace]) -> list[TraceScores]:
        return [
            TraceScores(scored.step_scores(scorer.name), scored.states(scorer.name))
            for scored in scorer.score(traces)
        ]

    return score


def checked_scores(
    score: ScoreTraces, traces: Sequence[Trace], config: ShapingConfig
) -> list[TraceScores]:
    """The scores of B traces, which are shown without their outcomes but for the turns allowed.

    Raises:
        PRMError: another number of traces, of steps or of states came back, or none of the scores
            that the mode reads.
    """
    try:
        found = [
            TraceScores(np.asarray(actions, np.float64), np.asarray(states, np.float64))
            for actions, states in score([_without_outcome(trace) for trace in traces])
        ]
    except (TypeError, ValueError) as error:
        raise PRMError(
            f"scores: expected TraceScores of numbers for each trace, found something else: {error}"
        ) from error
    if len(found) != len(traces):
        raise PRMError(
            f"scores: expected those of {plural(len(traces), 'trace')}, found {len(found)}"
        )
    checked = []
    for trace, scores in zip(traces, found, strict=True):
        actions, states = scores
        for kind, values, n in (
            ("action", actions, trace.n_steps),
            ("state", states, trace.n_steps + 1),
        ):
            if values.shape != (n,):
                raise PRMError(
                    f"trace {trace.id!r}: expected {n} {kind} scores (its steps are "
                    f"{trace.n_steps}; NaN where there is no score), found shape {values.shape}"
                )
        checked.append(TraceScores(actions, states))
    kind, needed = (
        ("state", [scores.states for scores in checked])
        if config.reads_states
        else ("action", [scores.actions for scores in checked])
    )
    if config.mode != "terminal" and checked and np.isnan(np.concatenate(needed)).all():
        raise PRMError(
            f"mode {config.mode!r} needs {kind} scores, and the scorer gives none: train a model "
            f"that reads {kind}s, or choose another mode"
        )
    return checked


def _without_outcome(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, outcome=Outcome(max_turns=trace.outcome.max_turns))


def with_scores(trace: Trace, scores: TraceScores, name: str = "prm") -> Trace:
    """The trace with the scores that there are, under one name; null where a score is NaN."""
    steps, states = trace.steps, trace.state_scores
    if not np.isnan(scores.actions).all():
        steps = [
            msgspec.structs.replace(step, scores=step.scores | {name: _none_if_nan(value)})
            for step, value in zip(trace.steps, scores.actions.tolist(), strict=True)
        ]
    if not np.isnan(scores.states).all():
        states = states | {name: [_none_if_nan(value) for value in scores.states.tolist()]}
    return msgspec.structs.replace(trace, steps=steps, state_scores=states)


def _none_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else value
