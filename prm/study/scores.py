"""Who scores the rollouts of desk in an arm: a model, the exact value, or a shuffled model.

The two others are controls. ``oracle`` knows V of every state and Q of every action under optimal
play; ``placebo`` has the model's scores of the batch in another order, so that they are as spread
as the model's and say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.predict import TraceScores
from prm.rl.desk.belief import Tracker
from prm.rl.desk.solution import solve
from prm.rl.desk.world import DeskConfig
from prm.rl.step_scores import ScoreTraces


def oracle(config: DeskConfig | None = None) -> ScoreTraces:
    """Exact scores of desk traces; the state after an answer has none.

    Raises :class:`PRMError` for a trace that does not say its ``max_turns``.
    """
    config = config or DeskConfig()

    def score(traces: Sequence[Trace]) -> list[TraceScores]:
        return [_exact(trace, config) for trace in traces]

    return score


def placebo(score: ScoreTraces) -> ScoreTraces:
    """The scores of a batch, each given to another step or state, in an order fixed by the ids."""

    def shuffled(traces: Sequence[Trace]) -> list[TraceScores]:
        found = list(score(traces))
        rng = np.random.default_rng([byte for trace in traces for byte in trace.id.encode()])
        parts = []
        for part in zip(*found, strict=True):
            mixed = rng.permutation(np.concatenate(part))
            parts.append(np.split(mixed, np.cumsum([len(values) for values in part])[:-1]))
        return [TraceScores(*own) for own in zip(*parts, strict=True)]

    return shuffled


def _exact(trace: Trace, config: DeskConfig) -> TraceScores:
    turns = trace.outcome.max_turns
    if turns is None:
        raise PRMError(f"trace {trace.id!r}: expected outcome.max_turns, values depend on it")
    tracker = Tracker(trace.prompt(), config)
    solution = solve(config, len(tracker.question.path))
    actions, states = [], [solution.v(tracker.belief, turns)]
    for window in trace.windows():
        left = turns - window.index
        action = tracker.action(window.action)
        actions.append(solution.q(tracker.belief, action, left))
        if action.kind in ("answer", "wrong"):
            states.append(np.nan)
        else:
            tracker.update(window.action, window.observations)
            states.append(solution.v(tracker.belief, left - 1))
    return TraceScores(np.array(actions), np.array(states))
