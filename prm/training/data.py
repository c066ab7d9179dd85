"""Training examples, batches filled to a token budget, and the Lightning data module.

An example is one encoded sequence with the labels of its read-outs. Batches are filled from pools
of examples sorted by length, so that little is padding; the order depends on the seed and the epoch
alone, so that a resumed run sees the batches of the uninterrupted one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.batching import batch_plan
from prm.model.encoding import EncodedSequence, TraceEncoder
from prm.model.network import Batch, StepRewardModel
from prm.training.config import TrainConfig


class Example(NamedTuple):
    """One sequence and what is known about its R read-outs."""

    sequence: EncodedSequence
    labels: list[float]
    """(R,) NaN = unlabelled."""
    weights: list[float]
    """(R,) >= 0, 0 where there is no label."""
    task: str
    """Id of the task."""
    source: str
    """Id of the trace, for messages."""
    offsets: NDArray[np.float64] | None = None
    """(R, C) added to the network's logits in training: the n-gram memory fitted on other tasks."""


class TrainingBatch(NamedTuple):
    """A batch with its labels."""

    inputs: Batch
    labels: Tensor
    """(R,) 0 where there is no label."""
    weights: Tensor
    """(R,) 0 where there is no label."""
    sources: tuple[str, ...]
    offsets: Tensor | None
    """(R, C) as in :class:`Example`; None where the model has no n-gram memory."""


def training_labels(trace: Trace, config: TrainConfig) -> tuple[list[float], list[float]]:
    """(S,) action labels and (S + 1,) state labels as the head takes them; NaN = unlabelled.

    Raises:
        PRMError: a label is outside what the head can learn.
    """
    columns: list[list[float]] = []
    for name, values in (
        (config.label, trace.step_labels(config.label) if config.label else None),
        (
            config.state_label,
            trace.states(config.state_label, "labels") if config.state_label else None,
        ),
    ):
        if values is None:
            columns.append([])
            continue
        if config.positive_at is not None:
            values = np.where(np.isnan(values), np.nan, values >= config.positive_at)
        for index, value in enumerate(values):
            if not math.isnan(value) and not _fits(value, config):
                raise PRMError(
                    f"trace {trace.id!r}: label {name!r} number {index} is {value:g}, but "
                    f"{_expected(config)}"
                )
        columns.append(values.tolist())
    return columns[0], columns[1]


def make_examples(
    traces: Iterable[Trace], encoder: TraceEncoder, config: TrainConfig, *, labelled_only: bool
) -> tuple[list[Example], Counter[str]]:
    """Encode traces; counts what was cut and what has no label.

    With ``labelled_only`` a sequence without a single label is left out: it teaches nothing.
    """
    examples, counts = [], Counter[str]()
    for trace in traces:
        actions, states = training_labels(trace, config)
        encoded = encoder.encode(trace)
        counts.update({f"cut_{what}": n for what, n in encoded.cut.items()})
        counts["traces"] += 1
        for sequence in encoded.sequences:
            labels, weights = [], []
            for readout, index in zip(sequence.readouts, sequence.indices, strict=True):
                label = actions[index] if readout == "action" else states[index]
                weight = trace.steps[index].weight if readout == "action" else None
                labels.append(label)
                weights.append(0.0 if math.isnan(label) else 1.0 if weight is None else weight)
            counts["labels"] += sum(w > 0 for w in weights)
            counts["unlabelled"] += sum(math.isnan(label) for label in labels)
            if labelled_only and not any(weights):
                counts["sequences_without_label"] += 1
                continue
            examples.append(Example(sequence, labels, weights, trace.task_id, trace.id))
    return examples, counts


def for_ranks(batches: list[list[int]], ranks: int) -> list[list[int]]:
    """Split batches until their number divides by ``ranks``, so that no example is seen twice."""
    batches = list(batches)
    while len(batches) % ranks:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        whole = batches[largest]
        if len(whole) < 2:
            raise PRMError(f"{len(batches)} examples are too few for {ranks} devices")
        batches[largest : largest + 1] = [whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    return batches


class EpochBatches:
    """The batch sampler: what it draws depends on the seed and the epoch alone.

    Args:
        lengths: (M,) tokens of each example.
        budget: most tokens in a batch, padding included.
        seed: of the order, and of the choice of optional examples.
        optional: (M,) True = an epoch uses the example with probability ``share`` only.
        share: see ``optional``.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        budget: int,
        seed: int,
        *,
        optional: Sequence[bool] | None = None,
        share: float = 1.0,
    ) -> None:
        self.lengths = np.array(lengths, dtype=np.int64)
        self.optional = np.zeros(len(lengths), bool) if optional is None else np.array(optional)
        self.budget, self.seed, self.share = budget, seed, share
        self.epoch, self.rank, self.ranks = 0, 0, 1

    def plan(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, all ranks together."""
        rng = np.random.default_rng([self.seed, epoch])
        drawn = rng.random(len(self.lengths)) < self.share
        used = np.flatnonzero(~self.optional | drawn)
        batches = batch_plan(self.lengths[used].tolist(), self.budget, rng)
        return for_ranks([used[batch].tolist() for batch in batches], self.ranks)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.plan(self.epoch)[self.rank :: self.ranks])

    def __len__(self) -> int:
        return len(self.plan(self.epoch)) // self.ranks


class StepRewardData(L.LightningDataModule):
    """Examples of the training tasks, in batches of at most ``batch_tokens`` tokens."""

    def __init__(
        self,
        examples: list[Example],
        model: StepRewardModel,
        *,
        batch_tokens: int,
        seed: int,
        negatives: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = model
        bad = [not any(label >= 0.5 for label in example.labels) for example in examples]
        self.examples = [
            example._replace(weights=[weight / negatives for weight in example.weights])
            if is_bad
            else example
            for example, is_bad in zip(examples, bad, strict=True)
        ]
        lengths = [len(example.sequence.input_ids) for example in examples]
        self.batches = EpochBatches(lengths, batch_tokens, seed, optional=bad, share=negatives)

    def train_dataloader(self) -> DataLoader[TrainingBatch]:
        """Called anew each epoch (``reload_dataloaders_every_n_epochs=1``)."""
        if self.trainer is not None:
            self.batches.epoch = self.trainer.current_epoch
            self.batches.rank = self.trainer.global_rank
            self.batches.ranks = self.trainer.world_size
        return DataLoader(
            self.examples,  # type: ignore[arg-type]
            batch_sampler=self.batches,
            collate_fn=self.collate,
        )

    def collate(self, examples: Sequence[Example]) -> TrainingBatch:
        """Pad and join; labels in the order of the read-outs."""
        weights = torch.tensor([w for e in examples for w in e.weights])
        labels = torch.tensor([label for e in examples for label in e.labels])
        offsets = [e.offsets for e in examples if e.offsets is not None]
        return TrainingBatch(
            self.model.collate([e.sequence for e in examples]),
            labels.nan_to_num(0.0),
            weights,
            tuple(e.source for e in examples),
            torch.from_numpy(np.concatenate(offsets)).float() if offsets else None,
        )


def _expected(config: TrainConfig) -> str:
    if config.head == "ternary":
        return "a ternary head takes -1, 0 and 1"
    if config.head == "value":
        return f"the value head's range is {config.value_range[0]:g} to {config.value_range[1]:g}"
    return (
        "a binary head takes labels from 0 to 1 (use --positive-at to turn labels into 0 and 1, or "
        "--head value with --value-range)"
    )


def _fits(value: float, config: TrainConfig) -> bool:
    if config.head == "ternary":
        return value in (-1.0, 0.0, 1.0)
    low, high = config.value_range if config.head == "value" else (0.0, 1.0)
    return low <= value <= high
