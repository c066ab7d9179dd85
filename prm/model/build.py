"""New step reward models: on a pretrained backbone, or on a small decoder from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

from prm.errors import PRMError
from prm.model.config import StepRewardConfig, load_hub
from prm.model.network import StepRewardModel


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
    backbone_config = load_hub(AutoConfig, backbone, "model")
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
    network = load_hub(AutoModel, backbone, "model", config=backbone_config, dtype=torch.float32)
    if activation_checkpointing:
        network.activation_checkpointing_enable()
    model = _assemble(network, load_hub(AutoTokenizer, backbone, "tokenizer"), config)
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
