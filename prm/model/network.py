"""The step reward model: any Hugging Face backbone with linear read-out heads.

``StepRewardModel`` is a ``PreTrainedModel``; its directory holds all that scoring needs: weights
(safetensors), the tokenizer, and ``config.json`` with the backbone's config, the rendering version,
the encoding, the head, the labels it was trained on, the threshold and the calibrators (plain
numbers). Nothing is pickled and no remote code is run.

Heads. ``binary``: one logit, labels hard or soft in [0, 1], score = sigmoid = P(good).
``ternary``: three logits for the labels -1, 0, 1 (bad, neutral, good), score = P(good) +
P(neutral)/2. ``value``: labels in ``value_range``, score in the same range.

With ``ngram_buckets`` a linear memory of the n-grams round a read-out (``prm.model.ngrams``) is
added to its logits.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from prm.errors import PRMError
from prm.model.config import (
    StepRewardConfig,
    backbone_config,
    first_line,
    load_hub,
    load_model_config,
    quiet_transformers,
)
from prm.model.encoding import READOUTS, EncodedSequence, EncodingConfig, Readout, TraceEncoder

_TERNARY = (-1.0, 0.0, 1.0)


class Batch(NamedTuple):
    """B sequences padded on the right to L tokens, with R read-outs."""

    input_ids: Tensor
    """(B, L) token ids."""
    token_mask: Tensor
    """(B, L) True = a token of the sequence."""
    rows: Tensor
    """(R,) sequence of each read-out."""
    columns: Tensor
    """(R,) position of each read-out."""
    readouts: Tensor
    """(R,) index into ``READOUTS``."""
    buckets: Tensor
    """(M,) n-gram buckets of all read-outs, one after the other."""
    offsets: Tensor
    """(R,) where the buckets of each read-out begin."""
    weights: Tensor
    """(M,) weight of each bucket."""


class StepRewardModel(PreTrainedModel):
    """Scores the actions and states of traces.

    Use ``StepRewardModel.from_pretrained(directory)`` for a trained model and :func:`from_backbone`
    to start one; ``prm.Scorer`` scores traces with it.
    """

    config_class = StepRewardConfig
    base_model_prefix = "backbone"
    config: StepRewardConfig

    def __init__(self, config: StepRewardConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        if backbone is None:
            backbone = AutoModel.from_config(backbone_config(config))
        self.backbone = backbone
        self.tokenizer: Any = None
        outputs = len(_TERNARY) if config.head == "ternary" else 1
        width = backbone.config.hidden_size
        self.heads = nn.ModuleDict({name: nn.Linear(width, outputs) for name in config.readouts})
        self.memory: nn.EmbeddingBag | None = None
        if config.ngram_buckets:
            self.memory = nn.EmbeddingBag(config.ngram_buckets, outputs, mode="sum")
            # Fitted by prm.training.memory before the network is trained, never by gradient steps.
            self.memory.requires_grad_(False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and module in self.heads.values():
            # Small weights: every score starts near the middle of its range.
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
        elif module is self.memory:
            nn.init.zeros_(self.memory.weight)

    @property
    def encoder(self) -> TraceEncoder:
        """The encoder that belongs to these weights."""
        return TraceEncoder(
            self.tokenizer,
            EncodingConfig(**self.config.encoding),
            causal=self.config.causal,
            readouts=cast("Sequence[Readout]", self.config.readouts),
            ngram_buckets=self.config.ngram_buckets,
        )

    def forward(self, batch: Batch) -> Tensor:
        """(R, C) logits of the read-outs, at least float32; C is 3 for a ternary head, else 1."""
        logits = self.network_logits(batch)
        if self.memory is not None:
            remembered = self.memory(batch.buckets, batch.offsets, batch.weights)
            logits = logits + remembered.to(logits.dtype)
        return logits

    def network_logits(self, batch: Batch) -> Tensor:
        """(R, C) logits of backbone and heads, without the n-gram memory."""
        # Right padding is invisible to a causal backbone, which runs faster without a mask.
        mask = None if self.config.causal else batch.token_mask.long()
        hidden = self.backbone(input_ids=batch.input_ids, attention_mask=mask).last_hidden_state
        picked = hidden[batch.rows, batch.columns]
        width = next(iter(self.heads.values())).out_features
        # Heads run in float32 or better, whatever the backbone's precision.
        picked = picked.to(torch.promote_types(picked.dtype, torch.float32))
        logits = picked.new_zeros((len(picked), cast(int, width)))
        for number, name in enumerate(READOUTS):
            if name in self.heads:
                chosen = batch.readouts == number
                with torch.autocast(picked.device.type, enabled=False):
                    head = cast(nn.Linear, self.heads[name])
                    values = nn.functional.linear(
                        picked[chosen], head.weight.to(picked.dtype), head.bias.to(picked.dtype)
                    )
                logits = logits.index_put((chosen.nonzero(as_tuple=True)[0],), values)
        return cast(Tensor, logits)

    def fractions(self, logits: Tensor) -> Tensor:
        """(R, C) logits -> (R,) uncalibrated scores as fractions of the head's range, in [0, 1]."""
        if self.config.head == "ternary":
            probs = logits.softmax(-1)
            return probs[:, 2] + probs[:, 1] / 2
        return logits[:, 0].sigmoid()

    @property
    def score_range(self) -> tuple[float, float]:
        """Lowest and highest score: (0, 1), or the ``value_range`` of a value head."""
        if self.config.head == "value":
            return self.config.value_range[0], self.config.value_range[1]
        return 0.0, 1.0

    @property
    def label_range(self) -> tuple[float, float]:
        """Lowest and highest label: (-1, 1) for a ternary head, else as ``score_range``."""
        return (-1.0, 1.0) if self.config.head == "ternary" else self.score_range

    def collate(self, sequences: Sequence[EncodedSequence]) -> Batch:
        """Pad on the right; read-outs are in the order of the sequences."""
        width = max(len(s.input_ids) for s in sequences)
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.full((len(sequences), width), pad, dtype=torch.long)
        mask = torch.zeros((len(sequences), width), dtype=torch.bool)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence.input_ids)] = torch.tensor(sequence.input_ids)
            mask[row, : len(sequence.input_ids)] = True
        rows = [row for row, s in enumerate(sequences) for _ in s.columns]
        columns = [column for s in sequences for column in s.columns]
        readouts = [READOUTS.index(name) for s in sequences for name in s.readouts]
        lookups = [found for s in sequences for found in s.lookups]
        sizes = [len(found.buckets) for found in lookups]
        return Batch(
            ids,
            mask,
            torch.tensor(rows),
            torch.tensor(columns),
            torch.tensor(readouts),
            torch.from_numpy(_joined([found.buckets for found in lookups], np.int64)),
            torch.from_numpy(np.cumsum([0, *sizes])[:-1].astype(np.int64)),
            torch.from_numpy(_joined([found.weights for found in lookups], np.float32)),
        )

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | os.PathLike[str], **kwargs: Any
    ) -> None:
        """Write weights, config and tokenizer; LoRA adapters are merged into a copy first."""
        plain = self
        if hasattr(self.backbone, "merge_and_unload"):
            plain = copy.deepcopy(self)
            plain.backbone = cast(Any, plain.backbone).merge_and_unload()
        with quiet_transformers():
            PreTrainedModel.save_pretrained(plain, save_directory, **kwargs)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(save_directory)
        # safetensors makes its files readable for their owner only.
        for weights in Path(save_directory).glob("*.safetensors"):
            shutil.copymode(Path(save_directory) / "config.json", weights)

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str], **kwargs: Any) -> StepRewardModel:  # type: ignore[override]
        """Load a trained model with its tokenizer, in evaluation mode.

        Args:
            directory: a local directory or a hub id.
            **kwargs: as for ``transformers.PreTrainedModel.from_pretrained``.

        Raises:
            PRMError: the directory is no step reward model, a damaged one, or one of another
                version.
        """
        config = load_model_config(directory)
        kwargs.setdefault("dtype", torch.float32)
        try:
            with quiet_transformers():
                loaded: Any = super().from_pretrained(
                    directory, config=config, output_loading_info=True, **kwargs
                )
                model, report = loaded
                # The backbone's config tells which kind of tokenizer lies there.
                model.tokenizer = load_hub(
                    AutoTokenizer, str(directory), "tokenizer", config=backbone_config(config)
                )
        except PRMError:
            raise
        except Exception as error:  # readers of weights raise whatever damaged bytes lead to
            raise PRMError(f"{directory}: the model is damaged: {first_line(error)}") from error
        for fault, keys in report.items():
            # Hugging Face fills what is missing with random weights; scores would be noise.
            if keys:
                raise PRMError(
                    f"{directory}: the weights do not fit the config: {fault.replace('_', ' ')}: "
                    f"{', '.join(sorted(map(str, keys)))[:200]}"
                )
        return cast(StepRewardModel, model.eval())


def _joined(arrays: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)
