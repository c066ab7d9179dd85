"""The configuration of ``prm train``: every option with its text, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from prm.errors import PRMError
from prm.model.build import DecoderConfig, LoraConfig
from prm.model.calibration import Calibration
from prm.model.config import Head
from prm.model.encoding import EncodingConfig


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay to zero."""

    learning_rate: float = 3e-4
    """Peak learning rate."""
    weight_decay: float = 0.01
    """Decoupled weight decay; norms and biases are not decayed."""
    warmup: float = 0.05
    """Fraction of the optimizer steps in which the learning rate rises from zero."""
    beta2: float = 0.98
    """AdamW's second-moment decay."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise PRMError(
                f"optimizer: expected a learning_rate above 0, found {self.learning_rate:g}"
            )
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise PRMError(f"optimizer: expected weight_decay >= 0, found {self.weight_decay:g}")
        if not (0 <= self.warmup <= 1 and 0 < self.beta2 < 1):
            raise PRMError(
                f"optimizer: expected warmup in [0, 1] and beta2 in (0, 1), found {self.warmup:g} "
                f"and {self.beta2:g}"
            )


@dataclass(frozen=True)
class NgramConfig:
    """A linear memory of hashed n-grams that is added to every logit; see prm.training.memory."""

    buckets: int = 2**20
    """Size of the memory; a bucket is one number (three with a ternary head)."""
    l2: float = 2.0
    """Strength of the penalty on its weights, the inverse of scikit-learn's C."""

    def __post_init__(self) -> None:
        if self.buckets < 1 or not (math.isfinite(self.l2) and self.l2 > 0):
            raise PRMError(
                f"ngrams: expected buckets >= 1 and l2 > 0, found {self.buckets} and {self.l2:g}"
            )


@dataclass(frozen=True)
class TrainConfig:
    """Train a step reward model on annotated traces.

    Writes to ``out``: the model (weights, tokenizer, config with calibrators and threshold),
    ``train.yaml`` (the resolved options), ``metrics.json`` (validation metrics by epoch) and
    ``checkpoints/`` (what ``--resume`` needs).
    """

    data: list[str]
    """Trace files of the training tasks (anything that `prm convert` reads)."""
    out: str
    """Directory to write; must be new or empty unless --resume is given."""
    label: str | None = None
    """Name of the step label for the action read-out, e.g. executed. None = no action read-out."""
    state_label: str | None = None
    """Name of the state label for the state read-out, e.g. outcome. None = no state read-out."""
    validation: list[str] | None = None
    """Trace files of held-out tasks. None = hold out --validation-fraction of the tasks."""
    validation_fraction: float = 0.1
    """Share of the tasks held out for validation and calibration when --validation is not given."""
    positive_at: float | None = None
    """Turn labels into 1 (>= this) and 0 (below). None = keep them as they are."""
    head: Head = "binary"
    """binary: labels in [0, 1]. ternary: labels -1, 0, 1. value: labels in --value-range."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest label of a value head."""
    backbone: str | None = None
    """Local directory or hub id of a Hugging Face model. None = a small decoder from scratch."""
    layers: int | None = None
    """Keep only the first layers of the backbone. None = all."""
    dropout: float | None = None
    """Dropout of the backbone while training; None = its own. Off, a BERT trains twice as fast on
    a CPU."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of all weights of the backbone."""
    ngrams: NgramConfig | None = None
    """Add a linear memory of n-grams, fitted first: it learns exact wording from few examples."""
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    """The decoder made when no backbone is named."""
    encoding: EncodingConfig = field(default_factory=EncodingConfig)
    """Token limits of tasks, actions, observations and sequences."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Learning rate and its schedule."""
    negatives: float = 1.0
    """Share of the sequences without a good step that an epoch uses, drawn anew each epoch and
    weighted up by its inverse: the same gradient in expectation, in less time where good steps are
    rare. Only with a binary head."""
    batch_tokens: int = 8192
    """Most tokens in a micro-batch, padding included."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    calibration: Calibration = "platt"
    """How scores are calibrated on the validation tasks."""
    keep: Literal["best", "last"] = "best"
    """Which epoch's weights become the model: the best validation score or the last."""
    trainer: dict[str, Any] = field(default_factory=dict)
    """Arguments of lightning.Trainer: max_epochs (3), gradient_clip_val (1.0), precision, devices
    (1), accumulate_grad_batches, strategy, …; callbacks and logger as {class_path, init_args}."""
    seed: int = 0
    """Seed of the split, the initial weights and the order of the batches."""
    resume: bool = False
    """Continue an interrupted training in --out from its last finished epoch."""

    def __post_init__(self) -> None:
        if self.label is None and self.state_label is None:
            raise PRMError("train: give --label, --state-label or both: there is nothing to learn")
        if not (
            all(map(math.isfinite, self.value_range)) and self.value_range[0] < self.value_range[1]
        ):
            raise PRMError(
                f"train: --value-range must be finite and rise, found {self.value_range[0]:g} to "
                f"{self.value_range[1]:g}"
            )
        if not 0 < self.negatives <= 1:
            raise PRMError(f"train: --negatives must be in (0, 1], found {self.negatives:g}")
        if self.negatives < 1 and self.head != "binary":
            raise PRMError(f"train: --negatives has no meaning for a {self.head} head")
        if self.positive_at is not None and not math.isfinite(self.positive_at):
            raise PRMError(f"train: --positive-at must be a number, found {self.positive_at:g}")
        if self.seed < 0:
            raise PRMError(f"train: expected --seed of 0 or more, found {self.seed}")
        if self.positive_at is not None and self.head != "binary":
            raise PRMError(
                f"train: --positive-at makes binary labels, which a {self.head} head cannot use"
            )
        if self.backbone is None and any(
            option not in (None, False)
            for option in (self.lora, self.layers, self.dropout, self.activation_checkpointing)
        ):
            raise PRMError(
                "train: --lora, --layers, --dropout and --activation-checkpointing need "
                "a --backbone"
            )
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise PRMError(f"train: --dropout must be in [0, 1), found {self.dropout:g}")
        if self.validation is None and not 0 < self.validation_fraction < 1:
            raise PRMError(
                f"train: --validation-fraction must lie between 0 and 1, found "
                f"{self.validation_fraction:g}"
            )
        if self.batch_tokens < self.encoding.max_length:
            raise PRMError(
                f"train: --batch-tokens {self.batch_tokens} is below encoding.max_length "
                f"{self.encoding.max_length}: the longest sequence must fit in a batch"
            )
