"""Batches filled to a token budget from pools of examples sorted by length: little is padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prm.errors import PRMError

_POOL = 64
"""Batches that a pool of length-sorted examples holds: large enough to sort well, small enough to
leave the order random."""


def batch_plan(
    lengths: Sequence[int], budget: int, rng: np.random.Generator | None = None
) -> list[list[int]]:
    """Indices of the examples of each batch: padded size at most ``budget`` tokens.

    Args:
        lengths: (M,) tokens of each example.
        budget: most tokens in a batch, padding included.
        rng: shuffles examples and batches; None = longest first, for scoring.
    """
    longest = max(lengths, default=0)
    if longest > budget:
        raise PRMError(f"a sequence of {longest} tokens does not fit in a batch of {budget}")
    order = np.arange(len(lengths)) if rng is None else rng.permutation(len(lengths))
    mean = max(1.0, float(np.mean(lengths))) if len(lengths) else 1.0
    pool = len(lengths) if rng is None else max(1, int(_POOL * budget / mean))
    batches: list[list[int]] = []
    for start in range(0, len(lengths), pool or 1):
        batch: list[int] = []
        for index in sorted(order[start : start + pool], key=lambda i: (-lengths[i], i)):
            # Longest first, so the first of a batch is its width.
            if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
                batches.append(batch)
                batch = []
            batch.append(int(index))
        batches.append(batch)
    return batches if rng is None else [batches[i] for i in rng.permutation(len(batches))]
