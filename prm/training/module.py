"""The Lightning module: the loss of a whole optimizer step, the schedule, validation by metrics.

The gradient of an optimizer step is that of (sum of weighted losses) / (sum of weights) over every
micro-batch and every device of the step: micro-batches add up sums, and the gradients are divided
once, before clipping. Lightning's own division by ``accumulate_grad_batches`` is undone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prm.errors import PRMError
from prm.eval.steps import auroc, average_precision, brier, calibration_error
from prm.model.encoding import EncodedTrace, Readout
from prm.model.losses import summed_loss
from prm.model.network import StepRewardModel
from prm.model.predict import predict
from prm.training.config import OptimizerConfig
from prm.training.data import EpochBatches, TrainingBatch


class HeldOut:
    """The validation tasks: encoded traces with the labels of every read-out."""

    def __init__(
        self,
        traces: Sequence[EncodedTrace],
        labels: dict[Readout, list[NDArray[np.float64]]],
    ) -> None:
        self.traces, self.labels = traces, labels

    def predictions(
        self, model: StepRewardModel, *, batch_tokens: int
    ) -> dict[Readout, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Read-out -> (raw scores, labels) as fractions of their ranges, unlabelled left out."""
        scores = predict(model, self.traces, batch_tokens=batch_tokens, calibrated=False)
        columns: dict[Readout, list[NDArray[np.float64]]] = {
            "action": [s.actions for s in scores],
            "state": [s.states for s in scores],
        }
        pairs = {}
        for readout, labels in self.labels.items():
            label = _fraction(np.concatenate(labels), model.label_range)
            score = _fraction(np.concatenate(columns[readout]), model.score_range)
            pairs[readout] = (score[~np.isnan(label)], label[~np.isnan(label)])
        return pairs


class StepRewardModule(L.LightningModule):
    """Trains a :class:`StepRewardModel` on :class:`TrainingBatch`."""

    def __init__(
        self,
        model: StepRewardModel,
        optimizer: OptimizerConfig,
        *,
        batches: EpochBatches,
        held_out: HeldOut,
        batch_tokens: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.model, self.held_out, self.batches = model, held_out, batches
        self.optimizer_config, self.batch_tokens, self.seed = optimizer, batch_tokens, seed
        self.history: list[dict[str, float]] = []
        self._weight = 0.0
        self._loss = [0.0, 0.0]

    def on_train_epoch_start(self) -> None:
        """Dropout of an epoch depends on the seed and the epoch alone, resumed or not."""
        torch.manual_seed(self.seed + 1_000_003 * (self.current_epoch + 1) + self.global_rank)

    def training_step(self, batch: TrainingBatch, batch_index: int) -> Tensor:
        """The summed loss of a micro-batch."""
        weight = float(batch.weights.sum())
        if weight == 0:
            raise PRMError(
                f"a batch without a label (traces {', '.join(sorted(set(batch.sources)))[:200]}): "
                f"its loss would be 0/0"
            )
        low, high = self.model.score_range
        logits = self.model.network_logits(batch.inputs)
        if batch.offsets is not None:
            logits = logits + batch.offsets
        loss = summed_loss(
            logits,
            batch.labels,
            batch.weights,
            head=self.model.config.head,
            value_range=(low, high),
        )
        if not math.isfinite(float(loss.detach())):
            raise PRMError(
                f"the loss is not finite in batch {batch_index} of epoch {self.current_epoch + 1}: "
                f"try a lower learning rate, or another precision"
            )
        self._weight += weight
        self._loss[0] += float(loss.detach())
        self._loss[1] += weight
        return loss * self.trainer.accumulate_grad_batches

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the summed gradients by the weight of the whole optimizer step."""
        total = self.trainer.strategy.reduce(
            torch.tensor(self._weight, device=self.device), reduce_op="sum"
        )
        # Data parallel strategies average gradients over the devices; the sum is wanted.
        factor = self.trainer.world_size / float(cast(Tensor, total))
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        self._weight = 0.0

    def configure_optimizers(self) -> Any:
        """AdamW, linear warm-up, cosine decay to zero over all optimizer steps."""
        options = self.optimizer_config
        decayed: list[nn.Parameter] = []
        plain: list[nn.Parameter] = []
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                (decayed if parameter.ndim >= 2 else plain).append(parameter)
        optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": options.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=options.learning_rate,
            betas=(0.9, options.beta2),
        )
        total = self.total_steps()
        warmup = max(1, round(options.warmup * total))

        def scale(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            progress = (step - warmup) / max(1, total - warmup)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def total_steps(self) -> int:
        """Optimizer steps of the whole training, counted from the plan of each epoch."""
        trainer = self.trainer
        self.batches.ranks = trainer.world_size
        micro = [
            len(self.batches.plan(epoch)) // trainer.world_size
            for epoch in range(trainer.max_epochs or 0)
        ]
        steps = sum(math.ceil(n / trainer.accumulate_grad_batches) for n in micro)
        return min(steps, trainer.max_steps) if trainer.max_steps > 0 else steps

    def on_train_epoch_end(self) -> None:
        """Validation: score the held-out tasks and log what people select on."""
        row = {"epoch": float(self.current_epoch), "train_loss": self._loss[0] / self._loss[1]}
        self._loss = [0.0, 0.0]
        pairs = self.held_out.predictions(self.model, batch_tokens=self.batch_tokens)
        for readout, (score, label) in pairs.items():
            row |= {f"{readout}_{name}": value for name, value in measure(score, label).items()}
        first = next(iter(pairs))
        for name, value in row.items():
            self.log(name, value, rank_zero_only=True)
        # The epoch is chosen by the cross-entropy, which counts ranking and calibration alike.
        self.log("val_loss", row[f"{first}_cross_entropy"])
        self.history.append(row)
        if self.trainer.is_global_zero:
            print(self._line(row), file=sys.stderr)

    def _line(self, row: dict[str, float]) -> str:
        """One epoch for people; ``metrics.json`` has all of it."""
        parts = [f"epoch {self.current_epoch + 1}/{self.trainer.max_epochs}"]
        parts.append(f"loss {row['train_loss']:.4f}")
        for readout in self.held_out.labels:
            parts.append(
                f"{readout}: AUROC {row[f'{readout}_auroc']:.3f}, "
                f"Brier {row[f'{readout}_brier']:.4f} "
                f"(constant {row[f'{readout}_brier_constant']:.4f})"
            )
        return "  ".join(parts)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the validation history with the weights."""
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A resumed run goes on with the history of the interrupted one."""
        self.history = checkpoint["history"]


def measure(score: NDArray[np.float64], label: NDArray[np.float64]) -> dict[str, float]:
    """Validation metrics of one read-out, beside the constant that predicts the mean label.

    Args:
        score: (R,) in [0, 1].
        label: (R,) in [0, 1]; for the ranking metrics positive = at least 1/2.
    """
    positive = (label >= 0.5).astype(float)
    mean = np.full_like(label, label.mean())
    return {
        "auroc": auroc(positive, score),
        "average_precision": average_precision(positive, score),
        "brier": brier(label, score),
        "brier_constant": brier(label, mean),
        "calibration_error": calibration_error(positive, score),
        "cross_entropy": _cross_entropy(label, score),
        "cross_entropy_constant": _cross_entropy(label, mean),
    }


def _cross_entropy(label: NDArray[np.float64], score: NDArray[np.float64]) -> float:
    clipped = np.clip(score, 1e-7, 1 - 1e-7)
    return float(-np.mean(label * np.log(clipped) + (1 - label) * np.log1p(-clipped)))


def _fraction(values: NDArray[np.float64], limits: tuple[float, float]) -> NDArray[np.float64]:
    low, high = limits
    return (values - low) / (high - low)


def trainable(module: nn.Module) -> tuple[int, int]:
    """(trained, all) parameters."""
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
    return sum(n for n, trained in sizes if trained), sum(n for n, _ in sizes)
