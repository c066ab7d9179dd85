"""The offline scorer: traces in, the same traces with a score on every step and state out."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from prm.data.trace import Trace
from prm.model.network import StepRewardModel
from prm.model.predict import TraceScores, predict

_POOL = 256
"""Traces that are encoded and sorted by length together."""


class Scorer:
    """Scores traces with a step reward model.

    The score of a read-out depends on the model and on what came before it in its trace: not on
    the batch size, the order of the traces, or anything later in the trace.

    Args:
        model: from ``StepRewardModel.from_pretrained``.
        name: the key of the scores in ``Step.scores`` and ``Trace.state_scores``.
        batch_tokens: most tokens in a batch, padding included; bounds the memory.

    Attributes:
        cut: tokens that did not fit, by what was cut; ``windows`` counts the extra windows of
            traces longer than the model's ``max_length``.
    """

    def __init__(
        self, model: StepRewardModel, *, name: str = "prm", batch_tokens: int = 16384
    ) -> None:
        self.model, self.name, self.batch_tokens = model, name, batch_tokens
        self.cut: Counter[str] = Counter()

    def score(self, traces: Iterable[Trace]) -> Iterator[Trace]:
        """Yield every trace, in order, with its scores added; streams.

        A read-out that the model does not have is left out, so ``Trace.step_scores`` is NaN there.
        """
        encoder = self.model.encoder
        source = iter(traces)
        while pool := list(itertools.islice(source, _POOL)):
            encoded = [encoder.encode(trace) for trace in pool]
            for item in encoded:
                self.cut.update(item.cut)
            scores = predict(self.model, encoded, batch_tokens=self.batch_tokens)
            for trace, found in zip(pool, scores, strict=True):
                yield self._scored(trace, found)

    def _scored(self, trace: Trace, found: TraceScores) -> Trace:
        readouts = self.model.config.readouts
        changes: dict[str, object] = {}
        if "action" in readouts:
            changes["steps"] = [
                msgspec.structs.replace(step, scores=step.scores | {self.name: score})
                for step, score in zip(trace.steps, _values(found.actions), strict=True)
            ]
        if "state" in readouts:
            changes["state_scores"] = trace.state_scores | {self.name: _values(found.states)}
        return msgspec.structs.replace(trace, **changes)


def _values(scores: NDArray[np.float64]) -> list[float]:
    values: list[float] = scores.tolist()
    assert not any(math.isnan(value) for value in values), "a read-out was not scored"
    return values
