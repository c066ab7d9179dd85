"""Labels from the outcome: every step is worth what its trace achieved, discounted by steps to go.

Action i leaves S - 1 - i steps to go and gets gamma^(S-1-i) y; state j leaves S - j and gets
gamma^(S-j) y, the last state y itself. So the label of an action is that of the state that it leads
to, and gamma * Phi(s_{j+1}) = Phi(s_j). The outcome y is 1 or 0 by the trace's reward against
``threshold``, where both are there, or else by the source's word on its success. Invalid traces say
nothing about the agent: they stay unlabelled and are counted.
"""

from __future__ import annotations

from collections import Counter

from prm.data.labels.maker import LabelOptions
from prm.data.trace import Trace
from prm.errors import PRMError


def label_outcome(trace: Trace, options: LabelOptions, notes: Counter[str]) -> Trace:
    """Labels and state labels gamma^k y, k the steps to go; uses ``gamma`` and ``threshold``.

    Raises :class:`PRMError` when a trace has a reward, but neither success nor a threshold.
    """
    outcome, n_steps = trace.outcome, trace.n_steps
    success = outcome.success
    if outcome.valid and outcome.reward is not None:
        if options.threshold is not None:
            success = outcome.reward >= options.threshold
        elif success is None:
            raise PRMError(
                f"trace {trace.id!r} has a reward ({outcome.reward}) but no success; "
                "say with --threshold which reward is a success"
            )
    if success is None or not outcome.valid:
        notes["unlabelled"] += 1
        return trace.with_labels(options.name, [None] * n_steps, [None] * (n_steps + 1))
    values = [options.gamma ** (n_steps - state) * success for state in range(n_steps + 1)]
    return trace.with_labels(options.name, values[1:], values)
