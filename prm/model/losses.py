"""The loss of labelled read-outs: a sum, so that the caller divides by the right number once.

The mean is taken over all labelled read-outs of an optimizer step (every micro-batch, every
device), not over each micro-batch: a mean of means weighs a label by its batch's company.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from prm.model.config import Head


def summed_loss(
    logits: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    head: Head,
    value_range: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Weighted sum of the read-outs' losses.

    Args:
        logits: (R, C), C = 3 for ``ternary``, else 1.
        labels: (R,) in [0, 1] for ``binary``; -1, 0 or 1 for ``ternary``; in ``value_range`` for
            ``value``.
        weights: (R,) >= 0.
        head: ``binary``: cross-entropy with soft labels. ``ternary``: cross-entropy.
            ``value``: squared error of the value as a fraction of its range.

    Returns:
        A scalar; divide it by the sum of ``weights`` over the optimizer step.

    >>> logits = torch.tensor([[0.0], [0.0]])
    >>> loss = summed_loss(logits, torch.tensor([1.0, 0.25]), torch.ones(2), head="binary")
    >>> round(loss.item(), 4)  # 2 log 2
    1.3863
    """
    if head == "ternary":
        losses = functional.cross_entropy(logits, (labels + 1).long(), reduction="none")
    elif head == "binary":
        losses = functional.binary_cross_entropy_with_logits(
            logits[:, 0], labels.to(logits.dtype), reduction="none"
        )
    else:
        low, high = value_range
        fraction = (labels.to(logits.dtype) - low) / (high - low)
        losses = torch.square(logits[:, 0].sigmoid() - fraction)
    return (losses * weights.to(losses.dtype)).sum()
