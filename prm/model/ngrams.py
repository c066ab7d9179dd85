"""Hashed n-grams of tokens: what the linear memory of a step reward model looks up.

Exact wording is evidence of its own: a table that exists, an argument that worked before. A linear
model on bags of n-grams learns it from few examples and is hard to beat; a network learns it
slowly. So a read-out can add both (wide & deep learning, Cheng et al. 2016, arXiv 1606.07792), with
n-grams hashed as in fastText (Joulin et al. 2016, arXiv 1607.01759).

The memory is fitted before the network is trained: ``prm.training.memory``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

JUDGED = (1, 2, 4, 8, 16)
"""Lengths of the n-grams of the segment that a read-out judges. The long ones know a whole query or
plan again; lengths between them added nothing."""
AROUND = (1, 2)
"""Lengths of those of the task and of the two segments before."""

_MULTIPLY = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(29)


class Lookup(NamedTuple):
    """What one read-out looks up: M buckets with their weights."""

    buckets: NDArray[np.int64]
    """(M,)"""
    weights: NDArray[np.float32]
    """(M,) every block (task, segment) has a Euclidean norm of 1, however long it is."""


def lookup(
    task: Sequence[int], segments: Sequence[Sequence[int]], kind: int, n_buckets: int
) -> Lookup:
    """The n-grams of a read-out.

    Args:
        task: token ids of the task.
        segments: token ids of the judged segment, then of the segments before it, newest first;
            the first three are used.
        kind: which read-out; each kind has n-grams of its own.
        n_buckets: size of the memory.

    >>> found = lookup([5, 6], [[7, 8]], kind=0, n_buckets=1000)
    >>> len(found.buckets)  # 5, 6, (5, 6), 7, 8, (7, 8)
    6
    """
    blocks = [(task, AROUND)] + [
        (segment, AROUND if place else JUDGED) for place, segment in enumerate(segments[:3])
    ]
    buckets, weights = [], []
    for place, (ids, lengths) in enumerate(blocks):
        found = _hashes(ids, lengths, seed=8 * kind + place)
        if len(found):
            buckets.append((found % np.uint64(n_buckets)).astype(np.int64))
            weights.append(np.full(len(found), len(found) ** -0.5, dtype=np.float32))
    if not buckets:
        return Lookup(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))
    return Lookup(np.concatenate(buckets), np.concatenate(weights))


def _hashes(ids: Sequence[int], lengths: Sequence[int], seed: int) -> NDArray[np.uint64]:
    """One hash for each different n-gram whose length is in ``lengths``."""
    tokens = np.array(ids, dtype=np.uint64) + np.uint64(1)
    state = np.full(len(tokens), seed + 1, dtype=np.uint64)
    grams = []
    for n in range(1, min(max(lengths), len(tokens)) + 1):
        size = len(tokens) - n + 1
        state = state[:size] * _MULTIPLY + tokens[n - 1 :] * _MIX
        state ^= state >> _SHIFT
        if n in lengths:
            grams.append(state * _MULTIPLY)
    return np.unique(np.concatenate(grams)) if grams else np.zeros(0, dtype=np.uint64)
