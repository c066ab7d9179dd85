"""The n-grams that a read-out looks up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prm.model.ngrams import AROUND, JUDGED, Lookup, lookup

HUGE = 2**60  # no two n-grams of a test share a bucket
tokens = st.lists(st.integers(0, 50_000), max_size=30)


def n_different(ids: list[int], lengths: Sequence[int]) -> int:
    return len({tuple(ids[i : i + n]) for n in lengths for i in range(len(ids) - n + 1)})


def same(a: Lookup, b: Lookup) -> bool:
    return np.array_equal(a.buckets, b.buckets) and np.array_equal(a.weights, b.weights)


@given(tokens, st.lists(tokens, max_size=5))
def test_every_different_ngram_has_a_bucket(task: list[int], segments: list[list[int]]) -> None:
    found = lookup(task, segments, 0, HUGE)
    expected = n_different(task, AROUND)
    for place, segment in enumerate(segments[:3]):
        expected += n_different(segment, AROUND if place else JUDGED)
    assert len(found.buckets) == len(set(found.buckets.tolist())) == expected


@given(tokens, st.lists(tokens, max_size=4))
def test_every_block_has_norm_one(task: list[int], segments: list[list[int]]) -> None:
    squares = float((lookup(task, segments, 0, HUGE).weights.astype(float) ** 2).sum())
    blocks = [task, *segments[:3]]
    assert abs(squares - sum(bool(block) for block in blocks)) < 1e-4


@given(tokens.filter(bool), st.integers(0, 1))
def test_place_and_kind_have_ngrams_of_their_own(ids: list[int], kind: int) -> None:
    judged = set(lookup([], [ids], kind, HUGE).buckets.tolist())
    for other in (
        lookup(ids, [], kind, HUGE),
        lookup([], [[], ids], kind, HUGE),
        lookup([], [ids], 1 - kind, HUGE),
    ):
        assert judged.isdisjoint(other.buckets.tolist())


def test_order_counts_and_repetition_does_not() -> None:
    assert not same(lookup([], [[1, 2, 3]], 0, HUGE), lookup([], [[3, 2, 1]], 0, HUGE))
    assert same(lookup([], [[7, 7]], 0, HUGE), lookup([], [[7, 7, 7]], 0, HUGE))
    two, four = (lookup([], [[7] * n], 0, HUGE) for n in (2, 4))
    assert set(two.buckets.tolist()) < set(four.buckets.tolist())
    assert len(four.buckets) == 3


@given(tokens, tokens, st.integers(1, 1000))
def test_buckets_lie_in_the_memory_and_are_the_same_everywhere(
    task: list[int], segment: list[int], n_buckets: int
) -> None:
    found = lookup(task, [segment], 0, n_buckets)
    assert same(found, lookup(task, [segment], 0, n_buckets))
    assert ((found.buckets >= 0) & (found.buckets < n_buckets)).all()


def test_the_hash_is_fixed() -> None:
    """A checkpoint's memory is useless if the hash changes."""
    found = lookup([3], [[1, 2], [4]], 1, 1_000_003).buckets
    assert found.tolist() == [824448, 727610, 879028, 372032, 977302]
