"""The controls: exact scores are the labels of desk, shuffled ones say nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from prm.data.trace import Outcome, Trace
from prm.errors import PRMError
from prm.model.predict import TraceScores
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.play import Run, annotate, play
from prm.rl.desk.world import desk_tasks
from prm.study.scores import oracle, placebo

TRACES = play(
    [Run(task, name, 9, i) for i, name in enumerate(AGENTS) for task in desk_tasks(8, 0, "test")],
    seed=0,
    thoughts=True,
)


def test_the_oracle_gives_the_exact_labels() -> None:
    for trace, scores in zip(TRACES, oracle()(TRACES), strict=True):
        exact = annotate(trace)
        np.testing.assert_allclose(scores.actions, exact.step_labels("q"), atol=1e-11)
        answered = trace.outcome.status == "completed"
        states = exact.states("v", "labels")
        known = slice(None, -1) if answered else slice(None)
        np.testing.assert_allclose(scores.states[known], states[known], atol=1e-11)
        assert np.isnan(scores.states[-1]) == answered


def test_the_oracle_does_not_look_at_the_outcome() -> None:
    unknown = [
        msgspec.structs.replace(t, outcome=Outcome(max_turns=t.outcome.max_turns)) for t in TRACES
    ]
    for one, other in zip(oracle()(TRACES), oracle()(unknown), strict=True):
        np.testing.assert_array_equal(one.actions, other.actions)
        np.testing.assert_array_equal(one.states, other.states)


def test_the_oracle_needs_the_turns() -> None:
    with pytest.raises(PRMError, match="expected outcome.max_turns"):
        oracle()([msgspec.structs.replace(TRACES[0], outcome=Outcome())])


def numbered(traces: Sequence[Trace]) -> list[TraceScores]:
    """Scores that are all different."""
    count = iter(range(1_000_000))
    return [
        TraceScores(
            np.array([next(count) for _ in range(t.n_steps)], dtype=np.float64),
            np.array([next(count) for _ in range(t.n_steps + 1)], dtype=np.float64),
        )
        for t in traces
    ]


def test_the_placebo_has_the_same_scores_elsewhere() -> None:
    real, mixed = numbered(TRACES), placebo(numbered)(TRACES)
    for part in range(2):
        before = np.concatenate([scores[part] for scores in real])
        after = np.concatenate([scores[part] for scores in mixed])
        assert [len(s[part]) for s in real] == [len(s[part]) for s in mixed]
        assert sorted(before) == sorted(after)
        assert (before == after).mean() < 0.02
    again = placebo(numbered)(TRACES)
    for one, other in zip(mixed, again, strict=True):
        np.testing.assert_array_equal(one.actions, other.actions)
