"""Micro-batches of rollouts of similar length, cut to the longest of each: less padding to compute.

TRL pads all rollouts of a generation to the longest and deals them out at random. Rollouts of an
agent differ in length by the number of their turns, so that a third of what is computed may be
padding. Where the loss is a sum over rollouts it does not matter which of them share a micro-batch
of one optimizer step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl import GRPOConfig

_SUMS = ("grpo", "dr_grpo", "dapo", "cispo", "sapo")
_PROMPT = ("prompt_ids", "prompt_mask")
_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)
_WHOLE = ("num_items_in_batch",)


def may_sort(args: GRPOConfig) -> bool:
    """Whether the loss is the same whichever rollouts share a micro-batch.

    It is not where something is averaged or ranked over the tokens of one: the loss ``bnpo``, a
    bonus for entropy, a quantile of entropies.
    """
    entropy_counts = args.top_entropy_quantile < 1 or args.entropy_coef or args.use_adaptive_entropy
    return args.loss_type in _SUMS and not entropy_counts


def by_length(batches: Sequence[dict[str, Any]], window: int) -> list[dict[str, Any]]:
    """The rows of each ``window`` micro-batches, those of one optimizer step, dealt out by length.

    Batches that hold anything else than texts, such as images, are left as they are.
    """
    known = {*_PROMPT, *_COMPLETION, *_WHOLE}
    if any(
        not known.issuperset(key for key, v in batch.items() if v is not None) for batch in batches
    ):
        return list(batches)
    found = []
    for first in range(0, len(batches), window):
        found += _sorted(batches[first : first + window])
    return found


def _sorted(batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    whole = {
        key: value if value is None or key in _WHOLE else torch.cat([b[key] for b in batches])
        for key, value in batches[0].items()
    }
    lengths = whole["completion_mask"].sum(dim=1)
    order = torch.argsort(lengths, stable=True)
    parts = order.tensor_split(len(batches))
    return [
        {key: _cut(key, value, rows, lengths) for key, value in whole.items()} for rows in parts
    ]


def _cut(key: str, value: Any, rows: torch.Tensor, lengths: torch.Tensor) -> Any:
    if value is None or key in _WHOLE:
        return value
    if key in _PROMPT or value.ndim == 1 or value.shape[1] == 1:  # one number a sequence
        return value[rows]
    return value[rows, : int(lengths[rows].max())]
