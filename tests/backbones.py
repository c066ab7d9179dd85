"""Tiny random backbones, written to disk as Hugging Face directories, for tests of every room."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
)

LENGTHS = {
    "max_length": 160,
    "max_task_tokens": 40,
    "max_action_tokens": 40,
    "max_observation_tokens": 40,
}


def write_backbone(folder: Path, kind: str) -> str:
    """A random ``llama``, ``gpt2`` (causal) or ``bert`` (bidirectional), with a byte tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]"]
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    bpe = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    if kind == "bert":
        bpe.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    torch.manual_seed(0)
    size = len(vocabulary)
    if kind == "llama":
        backbone = LlamaModel(
            LlamaConfig(
                vocab_size=size,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                max_position_embeddings=4096,
                initializer_range=0.3,
            )
        )
    elif kind == "gpt2":
        backbone = GPT2Model(
            GPT2Config(
                vocab_size=size,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=512,
                initializer_range=0.3,
            )
        )
    else:
        backbone = BertModel(
            BertConfig(
                vocab_size=size,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=512,
                initializer_range=0.3,
            )
        )
    backbone.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
