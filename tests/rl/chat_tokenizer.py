"""A tiny local tokenizer with the chat template of a hub model, as TRL ships them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from prm.rl.desk.text import TOOLS, prompt
from prm.rl.desk.world import DeskConfig, desk_tasks

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
ADDED = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
"""Tokens that are not special, as in the tokenizers of Qwen."""
# Qwen's; in GPT-2's, a line feed is split otherwise at the end of a text than within it.
_WORDS = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def template_text(name: str) -> str:
    """The chat template ``name`` of the installed TRL."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text("utf-8")


def chat_tokenizer(name: str = "qwen2_5") -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of some 600 tokens with the chat template ``name``."""
    template = template_text(name)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    desk = [message["content"] for message in prompt(desk_tasks(1, 0, "train")[0], 9, DeskConfig())]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([template, json.dumps(TOOLS), *desk], trainer)
    bpe.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    bpe.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    llama = "<|eot_id|>" in template
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        chat_template=template,
        pad_token="<|endoftext|>",
        bos_token="<|begin_of_text|>" if llama else None,
        eos_token="<|eot_id|>" if llama else "<|im_end|>",
    )
