"""The loss against closed forms and against itself under splitting."""

from __future__ import annotations

import math

import pytest
import torch

from prm.model.losses import summed_loss


def test_a_soft_label_is_a_mixture_of_hard_ones() -> None:
    logits = torch.randn(5, 1, dtype=torch.float64)
    ones = torch.ones(5, dtype=torch.float64)
    soft = summed_loss(logits, 0.3 * ones, ones, head="binary")
    hard = 0.3 * summed_loss(logits, ones, ones, head="binary")
    hard += 0.7 * summed_loss(logits, 0 * ones, ones, head="binary")
    torch.testing.assert_close(soft, hard)


def test_the_least_loss_of_a_soft_label_is_its_entropy_at_its_own_logit() -> None:
    logit = torch.tensor([[math.log(0.3 / 0.7)]], dtype=torch.float64, requires_grad=True)
    loss = summed_loss(logit, torch.tensor([0.3]), torch.ones(1), head="binary")
    loss.backward()
    entropy = -0.3 * math.log(0.3) - 0.7 * math.log(0.7)
    assert loss.item() == pytest.approx(entropy, rel=1e-6)
    assert logit.grad is not None
    assert logit.grad.abs().item() < 1e-6


def test_a_uniform_ternary_prediction_costs_log_three_for_every_label() -> None:
    for label in (-1.0, 0.0, 1.0):
        loss = summed_loss(torch.zeros(1, 3), torch.tensor([label]), torch.ones(1), head="ternary")
        assert loss.item() == pytest.approx(math.log(3))


def test_a_ternary_label_pulls_up_its_own_logit() -> None:
    for place, label in enumerate((-1.0, 0.0, 1.0)):
        logits = torch.zeros(1, 3, requires_grad=True)
        summed_loss(logits, torch.tensor([label]), torch.ones(1), head="ternary").backward()
        assert logits.grad is not None
        assert logits.grad[0].argmin() == place


def test_value_errors_are_fractions_of_the_range() -> None:
    def error(label: float, low: float, high: float) -> float:
        zero = torch.zeros(1, 1)  # predicts the middle of the range
        arguments = (zero, torch.tensor([label]), torch.ones(1))
        return summed_loss(*arguments, head="value", value_range=(low, high)).item()

    assert error(3.0, -7.0, 13.0) == 0.0
    assert error(13.0, -7.0, 13.0) == pytest.approx(0.25)
    assert error(1.0, 0.0, 1.0) == pytest.approx(error(13.0, -7.0, 13.0))


@pytest.mark.parametrize("head", ["binary", "ternary", "value"])
def test_a_weight_is_a_count(head: str) -> None:
    logits = torch.randn(2, 3 if head == "ternary" else 1)
    labels = torch.tensor([1.0, 0.0])
    weighted = summed_loss(logits, labels, torch.tensor([3.0, 0.0]), head=head)
    repeated = summed_loss(logits[[0, 0, 0]], labels[[0, 0, 0]], torch.ones(3), head=head)
    torch.testing.assert_close(weighted, repeated)
