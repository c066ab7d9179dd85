"""Labels from execution: the reward that the environment gave after each action.

The reader of a format that records such rewards supplies them as the label ``executed`` (InterCode
does). This maker checks that they are there and, with a threshold, makes them binary.
"""

from __future__ import annotations

from collections import Counter

from prm.data.labels.maker import LabelOptions
from prm.data.trace import Trace
from prm.errors import PRMError

SOURCE = "executed"


def label_executed(trace: Trace, options: LabelOptions, notes: Counter[str]) -> Trace:
    """Reward after each action, verbatim; with ``threshold``, 1 where it is reached, else 0.

    Raises :class:`PRMError` for a trace with steps of which none has an executed reward.
    """
    rewards = [step.labels.get(SOURCE) for step in trace.steps]
    if trace.steps and all(reward is None for reward in rewards):
        raise PRMError(
            f"trace {trace.id!r}: no step has an {SOURCE!r} label; only sources that record a "
            "reward after every action (InterCode) have one, so try --method outcome"
        )
    threshold = options.threshold
    if threshold is None:
        return trace.with_labels(options.name, rewards)
    reached = [None if reward is None else float(reward >= threshold) for reward in rewards]
    return trace.with_labels(options.name, reached)
