"""Micro-batches by length hold the same rollouts, without padding that none of them needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trl import GRPOConfig

from prm.rl.trl.batches import by_length, may_sort

PAD = -1


def batches(n: int, rows: int, length: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """n micro-batches whose rows are numbered in their tokens, and padded to ``length``."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for batch in range(n):
        lengths = torch.randint(1, length, (rows,), generator=generator)
        mask = (torch.arange(length) < lengths[:, None]).long()
        numbers = torch.arange(batch * rows, (batch + 1) * rows)[:, None]
        found.append(
            {
                "prompt_ids": numbers.repeat(1, length),
                "prompt_mask": torch.ones(rows, length, dtype=torch.long),
                "completion_ids": torch.where(mask == 1, numbers, PAD),
                "completion_mask": mask,
                "advantages": mask * 0.5 * numbers,
                "importance_sampling_ratio": numbers * 1.0,
                "old_per_token_logps": None,
                "num_items_in_batch": torch.tensor(9),
            }
        )
    return found


def test_every_rollout_stays_whole_in_its_optimizer_step() -> None:
    before = batches(6, 4, 20)
    after = by_length(before, 3)
    for first in (0, 3):
        numbers = []
        for batch in after[first : first + 3]:
            for row in range(4):
                ids = batch["completion_ids"][row]
                number = int(batch["prompt_ids"][row, 0])
                numbers.append(number)
                source = before[number // 4]
                kept = source["completion_mask"][number % 4].bool()
                assert ids[ids != PAD].tolist() == [number] * int(kept.sum())
                assert batch["completion_mask"][row].sum() == kept.sum()
                assert batch["advantages"][row].max() == 0.5 * number
                assert batch["importance_sampling_ratio"][row].tolist() == [number]
            assert batch["old_per_token_logps"] is None
            assert batch["num_items_in_batch"] == 9
            assert batch["prompt_ids"].shape == (4, 20)
        assert sorted(numbers) == list(range(4 * first, 4 * first + 12))


def test_nothing_is_padded_beyond_the_longest_of_its_batch() -> None:
    after = by_length(batches(4, 8, 50), 4)
    widths = []
    for batch in after:
        longest = int(batch["completion_mask"].sum(dim=1).max())
        for key in ("completion_ids", "completion_mask", "advantages"):
            assert batch[key].shape == (8, longest)
        widths.append(longest)
    assert widths == sorted(widths)
    assert widths[0] < 25


def test_images_stay_where_they_are() -> None:
    before = [batch | {"pixel_values": torch.zeros(1)} for batch in batches(2, 3, 9)]
    assert all(a is b for a, b in zip(by_length(before, 2), before, strict=True))


@pytest.mark.parametrize(
    "settings",
    [{"loss_type": "bnpo"}, {"top_entropy_quantile": 0.5}, {"entropy_coef": 0.1}],
)
def test_averages_over_a_micro_batch_forbid_it(settings: dict[str, Any]) -> None:
    common: dict[str, Any] = {"report_to": "none", "bf16": False, "activation_checkpointing": False}
    assert may_sort(GRPOConfig("x", **common))
    assert not may_sort(GRPOConfig("x", **common, **settings))
