"""Steps on tokens: runs of the mask, values on last tokens and on whole steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prm.errors import PRMError
from prm.shaping.advantages import returns_to_go
from prm.shaping.tokens import broadcast_over_step, place_on_last_token, spans_from_mask

masks = st.lists(st.booleans(), max_size=40).map(lambda tokens: np.array(tokens, dtype=bool))


@given(masks)
def test_spans_are_the_maximal_runs(mask: np.ndarray) -> None:
    spans = spans_from_mask(mask)
    covered = np.zeros_like(mask)
    for start, stop in spans:
        covered[start:stop] = True
        assert start == 0 or not mask[start - 1]
        assert stop == len(mask) or not mask[stop]
    np.testing.assert_array_equal(covered, mask)
    assert all(stop < start for (_, stop), (start, _) in pairwise(spans))


@pytest.mark.parametrize(
    ("tokens", "spans"),
    [
        ("", []),
        ("....", []),
        ("##", [(0, 2)]),
        ("#..##.#", [(0, 1), (3, 5), (6, 7)]),
        (".##.", [(1, 3)]),
    ],
)
def test_spans(tokens: str, spans: list[tuple[int, int]]) -> None:
    mask = np.array([token == "#" for token in tokens], dtype=bool)
    assert spans_from_mask(mask) == spans
    assert spans_from_mask(torch.from_numpy(mask)) == spans


@given(masks, st.integers(0, 2**32 - 1))
def test_values_come_back(mask: np.ndarray, seed: int) -> None:
    spans = spans_from_mask(mask)
    values = np.random.default_rng(seed).normal(size=len(spans))
    placed = place_on_last_token(values, spans, len(mask))
    spread = broadcast_over_step(values, spans, len(mask))
    np.testing.assert_array_equal(placed[[stop - 1 for _, stop in spans]], values)
    np.testing.assert_array_equal(placed != 0, np.isin(np.arange(len(mask)), _last(spans)))
    for (start, stop), value in zip(spans, values, strict=True):
        assert (spread[start:stop] == value).all()
    assert (spread[~mask] == 0).all()


def _last(spans: list[tuple[int, int]]) -> list[int]:
    return [stop - 1 for _, stop in spans]


def test_token_returns_of_placed_rewards_are_the_steps_returns() -> None:
    """Which is why rewards go on last tokens: undiscounted, all tokens of a step see its return."""
    spans = [(1, 4), (6, 7), (9, 12)]
    rewards = np.array([0.5, -1.0, 2.0])
    by_token = returns_to_go(place_on_last_token(rewards, spans, 14))
    by_step = broadcast_over_step(returns_to_go(rewards), spans, 14)
    on_step = by_step != 0
    np.testing.assert_array_equal(by_token[on_step], by_step[on_step])


@pytest.mark.parametrize("lay", [place_on_last_token, broadcast_over_step])
def test_torch_is_numpy_and_keeps_dtype_and_gradient(lay: object) -> None:
    assert callable(lay)
    spans = [(0, 2), (3, 6)]
    values = torch.tensor([1.5, -2.0], dtype=torch.float32, requires_grad=True)
    laid = lay(values, spans, 7)
    assert laid.dtype == torch.float32
    np.testing.assert_array_equal(laid.detach().numpy(), lay(values.detach().numpy(), spans, 7))
    laid.sum().backward()
    assert values.grad is not None
    sizes = [1.0, 1.0] if lay is place_on_last_token else [2.0, 3.0]
    assert values.grad.tolist() == sizes


class TestRefusals:
    def test_other_number_of_steps(self) -> None:
        with pytest.raises(PRMError, match="one value for each of 2 steps .* shape \\(3,\\)"):
            place_on_last_token(np.zeros(3), [(0, 1), (2, 3)], 4)

    @pytest.mark.parametrize("spans", [[(0, 1), (3, 3)], [(2, 3), (0, 1)], [(0, 2), (1, 3)]])
    def test_spans_empty_unordered_or_overlapping(self, spans: list[tuple[int, int]]) -> None:
        with pytest.raises(PRMError, match="in order, apart"):
            broadcast_over_step(np.ones(2), spans, 5)

    def test_span_beyond_the_tokens(self) -> None:
        with pytest.raises(PRMError, match=r"span \(2, 6\).* within the 5 tokens"):
            broadcast_over_step(np.ones(1), [(2, 6)], 5)

    @pytest.mark.parametrize("mask", [np.zeros((2, 3), bool), np.array([0, 1, 1])])
    def test_not_one_mask_of_booleans(self, mask: np.ndarray) -> None:
        with pytest.raises(PRMError, match="token_mask: expected booleans"):
            spans_from_mask(mask)
