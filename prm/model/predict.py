"""Scores of encoded traces: the one path from logits to numbers, for validation and for scoring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from prm.model.batching import batch_plan
from prm.model.calibration import calibrate
from prm.model.encoding import EncodedTrace, Readout
from prm.model.network import StepRewardModel


class TraceScores(NamedTuple):
    """Scores of one trace, in the range of the model's head; NaN = no such read-out."""

    actions: NDArray[np.float64]
    """(S,)"""
    states: NDArray[np.float64]
    """(S + 1,)"""


def predict(
    model: StepRewardModel,
    traces: Sequence[EncodedTrace],
    *,
    batch_tokens: int = 16384,
    calibrated: bool = True,
) -> list[TraceScores]:
    """Score every read-out of ``traces``; the order and the batch size change no score.

    Args:
        model: in evaluation mode or not; dropout is off here.
        traces: encoded by ``model.encoder``.
        batch_tokens: most tokens in a batch, padding included.
        calibrated: apply the model's calibrators.

    Returns:
        One :class:`TraceScores` for each trace, in order.
    """
    found = [
        TraceScores(np.full(t.n_steps, np.nan), np.full(t.n_steps + 1, np.nan)) for t in traces
    ]
    items = [(number, sequence) for number, t in enumerate(traces) for sequence in t.sequences]
    plan = batch_plan([len(sequence.input_ids) for _, sequence in items], batch_tokens)
    training = model.training
    model.eval()
    with torch.inference_mode():
        for batch in plan:
            chosen = [items[i] for i in batch]
            inputs = model.collate([sequence for _, sequence in chosen])
            logits = model(type(inputs)(*(tensor.to(model.device) for tensor in inputs)))
            fractions = iter(model.fractions(logits).double().cpu().tolist())
            for number, sequence in chosen:
                for readout, index in zip(sequence.readouts, sequence.indices, strict=True):
                    column = found[number].actions if readout == "action" else found[number].states
                    column[index] = next(fractions)
    model.train(training)
    if not calibrated:
        return [TraceScores(_ranged(s.actions, model), _ranged(s.states, model)) for s in found]
    return [
        TraceScores(
            _ranged(_calibrated(scores.actions, "action", model), model),
            _ranged(_calibrated(scores.states, "state", model), model),
        )
        for scores in found
    ]


def _calibrated(
    fractions: NDArray[np.float64], readout: Readout, model: StepRewardModel
) -> NDArray[np.float64]:
    return calibrate(fractions, model.config.calibrators.get(readout))


def _ranged(fractions: NDArray[np.float64], model: StepRewardModel) -> NDArray[np.float64]:
    low, high = model.score_range
    return low + (high - low) * fractions
