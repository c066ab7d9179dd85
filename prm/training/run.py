"""The directory of a training: what is written when, and what a resumed training must agree with.

``train.yaml`` holds the resolved options and the fingerprint of the examples; it is written when
everything has been checked and training begins. ``checkpoints/last.ckpt`` is replaced, whole, after
each epoch. The model comes last, its ``config.json`` after all other files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from lightning.fabric.plugins import TorchCheckpointIO

from prm.errors import PRMError
from prm.model.network import StepRewardModel
from prm.training.config import TrainConfig
from prm.training.data import Example

FINGERPRINT = "examples_sha256"


class Run:
    """One training and its directory."""

    def __init__(self, config: TrainConfig) -> None:
        self.out = Path(config.out)
        self.checkpoints = self.out / "checkpoints"
        self.last = self.checkpoints / "last.ckpt"
        self.options = _plain(asdict(config) | {"resume": False})
        self.resumes = config.resume and self.last.is_file()
        if self.resumes:
            self._check_options()
        elif not self._is_free():
            raise PRMError(
                f"{self.out}: expected a new or empty directory, so that no model is overwritten "
                f"(--resume goes on with an interrupted training)"
            )

    def begin(self, examples: Sequence[Example]) -> None:
        """Write the options, or check that the resumed training has the same examples."""
        fingerprint = fingerprint_of(examples)
        if self.resumes:
            before = self._saved().get(FINGERPRINT)
            if before != fingerprint:
                raise PRMError(
                    f"{self.out}: cannot resume: the training traces or their labels have changed "
                    f"since the training began"
                )
            return
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(self.options | {FINGERPRINT: fingerprint}, sort_keys=False)
        (self.out / "train.yaml").write_text(text)

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """A checkpoint of this run; a clear error where it is damaged."""
        try:
            return dict(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # torch raises whatever the damaged bytes lead to
            raise PRMError(
                f"{path}: expected a checkpoint of this training, found a damaged file"
            ) from error

    def finish(self, model: StepRewardModel, history: list[dict[str, float]]) -> None:
        """Write the model beside its name first, so that no half of one is left under it."""
        partial = self.out / ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            model.save_pretrained(partial)
            (partial / "metrics.json").write_text(json.dumps(history, indent=1) + "\n")
            # The config comes last: a directory without it is no model.
            for name in sorted(os.listdir(partial), key=lambda name: name == "config.json"):
                os.replace(partial / name, self.out / name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _is_free(self) -> bool:
        """Nothing is there, or what a training leaves that was stopped before its first epoch."""
        if not self.out.exists():
            return True
        if not self.out.is_dir():
            return False
        left = {path.name for path in self.out.iterdir()}
        return left <= {"train.yaml", "checkpoints"} and not (
            self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        )

    def _check_options(self) -> None:
        before = self._saved()
        changed = [key for key in self.options if before.get(key) != self.options[key]]
        if changed:
            raise PRMError(
                f"{self.out}: cannot resume with other options: "
                + "; ".join(f"{k} was {before.get(k)!r}, now {self.options[k]!r}" for k in changed)
            )

    def _saved(self) -> dict[str, Any]:
        path = self.out / "train.yaml"
        try:
            saved = yaml.safe_load(path.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise PRMError(f"{path}: cannot resume: the options cannot be read") from error
        if not isinstance(saved, dict):
            raise PRMError(f"{path}: cannot resume: expected the options of the training")
        return saved


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its name first: a full disk or a kill spares the one before."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write all of ``checkpoint`` or leave what was there."""
        partial = f"{path}.partial"
        try:
            torch.save(checkpoint, partial)
            os.replace(partial, path)
        except (OSError, RuntimeError) as error:
            Path(partial).unlink(missing_ok=True)
            raise PRMError(f"{path}: the checkpoint cannot be written: {error}") from error


def fingerprint_of(examples: Sequence[Example]) -> str:
    """A hash of everything that the examples teach: tokens, read-outs, labels, weights."""
    digest = hashlib.sha256()
    for example in examples:
        for values in (example.sequence.input_ids, example.sequence.columns):
            digest.update(np.array(values, dtype=np.int64).tobytes())
        for numbers in (example.labels, example.weights):
            digest.update(np.array(numbers, dtype=np.float64).tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Tuples as lists, so that YAML reads back what it wrote."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
