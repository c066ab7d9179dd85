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

import contextlib
import copy
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as hf_logging

from prm.errors import PRMError
from prm.model.calibration import calibrate
from prm.model.encoding import READOUTS, EncodedSequence, EncodingConfig, Readout, TraceEncoder
from prm.model.render import RENDERER

Head = Literal["binary", "ternary", "value"]
MODEL_SCHEMA = "prm-model/1"
_TERNARY = (-1.0, 0.0, 1.0)


class StepRewardConfig(PretrainedConfig):
    """Everything but the weights. See the module's docstring for the heads."""

    model_type = "step_reward"

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        head: Head = "binary",
        value_range: Sequence[float] = (0.0, 1.0),
        readouts: Sequence[Readout] = READOUTS,
        causal: bool = True,
        encoding: dict[str, int] | None = None,
        ngram_buckets: int = 0,
        renderer: int = RENDERER,
        schema: str = MODEL_SCHEMA,
        labels: dict[str, Any] | None = None,
        threshold: float = 0.5,
        calibrators: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.backbone = backbone or {}
        self.head = head
        self.value_range = list(value_range)
        self.readouts = list(readouts)
        self.causal = causal
        self.encoding = encoding or asdict(EncodingConfig())
        self.ngram_buckets = ngram_buckets
        self.renderer = renderer
        self.schema = schema
        self.labels = labels or {}
        self.threshold = threshold
        self.calibrators = calibrators or {}


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
            backbone = AutoModel.from_config(_backbone_config(config))
        self.backbone = backbone
        self.tokenizer: Any = None
        outputs = len(_TERNARY) if config.head == "ternary" else 1
        width = backbone.config.hidden_size
        self.heads = nn.ModuleDict({name: nn.Linear(width, outputs) for name in config.readouts})
        self.memory: nn.EmbeddingBag | None = None
        if config.ngram_buckets:
            self.memory = nn.EmbeddingBag(config.ngram_buckets, outputs, mode="sum")
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
        if self.memory is not None:
            remembered = self.memory(batch.buckets, batch.offsets, batch.weights)
            logits = logits + remembered.to(logits.dtype)
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
                model.tokenizer = _load(
                    AutoTokenizer, str(directory), "tokenizer", config=_backbone_config(config)
                )
        except PRMError:
            raise
        except Exception as error:  # readers of weights raise whatever damaged bytes lead to
            raise PRMError(f"{directory}: the model is damaged: {_first_line(error)}") from error
        for fault, keys in report.items():
            # Hugging Face fills what is missing with random weights; scores would be noise.
            if keys:
                raise PRMError(
                    f"{directory}: the weights do not fit the config: {fault.replace('_', ' ')}: "
                    f"{', '.join(sorted(map(str, keys)))[:200]}"
                )
        return cast(StepRewardModel, model.eval())


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars or notices of transformers: what matters is raised or counted here."""
    verbosity = hf_logging.get_verbosity()
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters on every linear layer of the backbone (Hu et al. 2021, via peft)."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0 or not 0 <= self.dropout < 1:
            raise PRMError(
                f"lora: expected rank >= 1, alpha > 0 and dropout in [0, 1), found {self.rank}, "
                f"{self.alpha} and {self.dropout:g}"
            )


@dataclass(frozen=True)
class DecoderConfig:
    """The small decoder that is made when no backbone is named."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    vocabulary: int = 4096
    """Size of the byte-level BPE vocabulary, trained on the training traces."""

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.width) < 1 or self.width % (2 * self.heads):
            raise PRMError(
                f"decoder: expected layers and heads of 1 or more and a width that is a multiple "
                f"of 2 x heads, found {self.layers} layers, width {self.width}, {self.heads} heads"
            )
        if self.vocabulary < 257:
            raise PRMError(
                f"decoder: expected a vocabulary of 257 or more (256 bytes and padding), found "
                f"{self.vocabulary}"
            )


def from_backbone(
    backbone: str,
    *,
    config: StepRewardConfig,
    layers: int | None = None,
    dropout: float | None = None,
    lora: LoraConfig | None = None,
    activation_checkpointing: bool = False,
) -> StepRewardModel:
    """A step reward model with fresh heads on a pretrained backbone.

    Args:
        backbone: local directory or hub id of a Hugging Face model, decoder or encoder.
        config: head, read-outs and encoding; its ``backbone`` and ``causal`` are filled in here.
        layers: keep only the first layers of the backbone. None = all.
        dropout: dropout of every layer of the backbone while training. None = its own.
        lora: train adapters instead of the backbone's weights. The heads are always trained.
        activation_checkpointing: recompute activations in the backward pass.
    """
    backbone_config = _load(AutoConfig, backbone, "model")
    if backbone_config.model_type == StepRewardConfig.model_type:
        raise PRMError(f"{backbone}: is a step reward model; expected a plain Hugging Face model")
    if layers is not None:
        if not 1 <= layers <= backbone_config.num_hidden_layers:
            raise PRMError(
                f"layers: expected 1 to {backbone_config.num_hidden_layers}, the layers of "
                f"{backbone}, found {layers}"
            )
        backbone_config.num_hidden_layers = layers
    if dropout is not None:
        for name, value in backbone_config.to_dict().items():
            # Every architecture has names of its own: attention_dropout, resid_pdrop, …
            if isinstance(value, float) and ("dropout" in name or "pdrop" in name):
                setattr(backbone_config, name, dropout)
    network = _load(AutoModel, backbone, "model", config=backbone_config, dtype=torch.float32)
    if activation_checkpointing:
        network.activation_checkpointing_enable()
    model = _assemble(network, _load(AutoTokenizer, backbone, "tokenizer"), config)
    if lora is not None:
        model.backbone = _with_lora(model.backbone, lora)
    return model


def from_texts(
    texts: Sequence[str], *, config: StepRewardConfig, decoder: DecoderConfig
) -> StepRewardModel:
    """A small decoder from scratch with a byte-level BPE tokenizer trained on ``texts``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=decoder.vocabulary,
        special_tokens=["<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>")
    network = LlamaModel(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=decoder.width,
            intermediate_size=decoder.width * 8 // 3,
            num_hidden_layers=decoder.layers,
            num_attention_heads=decoder.heads,
            max_position_embeddings=config.encoding["max_length"],
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    return _assemble(network, tokenizer, config)


def load_model_config(directory: str | os.PathLike[str]) -> StepRewardConfig:
    """The config of a trained model; a clear :class:`PRMError` when this version cannot use it."""
    path = Path(directory)
    if path.exists() and not (path / "config.json").is_file():
        raise PRMError(
            f"{directory}: expected a directory written by `prm train`, found no config.json in it"
        )
    try:
        values, _ = PretrainedConfig.get_config_dict(directory)
        model_type = values.get("model_type")
    except Exception as error:  # a path that is no folder is looked up on the hub, which may fail
        where = "" if path.exists() else "no such folder, and not loaded from the hub either: "
        raise PRMError(f"{directory}: no model there: {where}{_first_line(error)}") from error
    if model_type != StepRewardConfig.model_type:
        raise PRMError(
            f"{directory}: expected a step reward model written by `prm train`, found "
            f"{'no model_type' if model_type is None else f'a {model_type!r} model'}"
        )
    for name, ours in (("schema", MODEL_SCHEMA), ("renderer", RENDERER)):
        if values.get(name) != ours:
            raise PRMError(
                f"{directory}: expected {name} {ours!r}, found {values.get(name)!r}: the model was "
                f"written by another version of prm and would be given text that it was not "
                f"trained on"
            )
    try:
        _check_config(values)
    except (KeyError, TypeError, ValueError, PRMError) as error:
        raise PRMError(f"{directory}: config.json is damaged: {_first_line(error)}") from error
    return StepRewardConfig.from_dict(values)


def _check_config(values: dict[str, Any]) -> None:
    """Raise unless every setting that a score depends on is there and usable."""
    if values["head"] not in get_args(Head):
        raise ValueError(f"unknown head {values['head']!r}")
    if not values["readouts"] or not set(values["readouts"]) <= set(READOUTS):
        raise ValueError(f"unknown readouts {values['readouts']!r}")
    limits = {field.name: int(values["encoding"][field.name]) for field in fields(EncodingConfig)}
    EncodingConfig(**limits)
    low, high = map(float, values["value_range"])
    if not low < high or not math.isfinite(float(values["threshold"])):
        raise ValueError("value_range does not rise, or threshold is not finite")
    if int(values["ngram_buckets"]) < 0 or not isinstance(values["causal"], bool):
        raise ValueError("ngram_buckets or causal is not usable")
    AutoConfig.for_model(**values["backbone"])
    probe = np.array([0.5])
    for name, calibrator in values["calibrators"].items():
        if name not in READOUTS or not np.isfinite(calibrate(probe, calibrator)).all():
            raise ValueError(f"calibrator {name!r} is not usable")


def is_causal(backbone: PreTrainedModel, vocabulary: int) -> bool:
    """Whether the backbone's states depend on earlier tokens only: tried, not looked up."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (2, 12), generator=generator)
    ids[1, :8] = ids[0, :8]
    training = backbone.training
    with torch.no_grad():
        hidden = backbone.eval()(
            input_ids=ids, attention_mask=torch.ones_like(ids)
        ).last_hidden_state.float()
    backbone.train(training)
    return bool(torch.allclose(hidden[0, :8], hidden[1, :8], atol=1e-4))


def _assemble(
    network: PreTrainedModel, tokenizer: Any, config: StepRewardConfig
) -> StepRewardModel:
    config.backbone = network.config.to_dict()
    config.causal = is_causal(network, min(len(tokenizer), network.config.vocab_size))
    longest = getattr(network.config, "max_position_embeddings", None)
    if longest is not None and config.encoding["max_length"] > longest:
        raise PRMError(
            f"encoding: max_length {config.encoding['max_length']} is above the {longest} tokens "
            f"that the backbone can read"
        )
    model = StepRewardModel(config, network)
    model.tokenizer = tokenizer
    model.train()
    return model


def _joined(arrays: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)


def _backbone_config(config: StepRewardConfig) -> PretrainedConfig:
    return AutoConfig.for_model(**config.backbone)


def _with_lora(backbone: PreTrainedModel, lora: LoraConfig) -> PreTrainedModel:
    try:
        import peft
    except ImportError as error:
        raise PRMError(
            "lora needs peft: install it with `pip install 'stepwise-prm[lora]'`"
        ) from error
    adapter = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
    )
    return cast(PreTrainedModel, peft.get_peft_model(backbone, adapter))


def _load(auto: Any, name: str, what: str, **kwargs: Any) -> Any:
    try:
        with quiet_transformers():
            return auto.from_pretrained(name, trust_remote_code=False, **kwargs)
    except Exception as error:  # a path that is no folder is looked up on the hub, which may fail
        where = (
            "" if Path(name).exists() else "no such folder, and not loaded from the hub either: "
        )
        reason = f"{where}{_first_line(error)}"
        raise PRMError(f"{name}: cannot load a {what} from it: {reason}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0]} ({type(error).__name__})" if lines else type(error).__name__
