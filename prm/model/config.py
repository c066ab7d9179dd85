"""What a checkpoint says about itself, read and checked before any weight is loaded."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import logging as hf_logging

from prm.errors import PRMError
from prm.model.calibration import calibrate
from prm.model.encoding import READOUTS, EncodingConfig, Readout
from prm.model.render import RENDERER

Head = Literal["binary", "ternary", "value"]
MODEL_SCHEMA = "prm-model/1"


class StepRewardConfig(PretrainedConfig):
    """Everything but the weights; ``prm.model.network`` explains the heads."""

    model_type = "step_reward"

    def __init__(
        self,
        backbone: dict[str, Any] | None = None,
        head: Head = "binary",
        value_range: Sequence[float] = (0.0, 1.0),
        readouts: Sequence[Readout] = READOUTS,
        causal: bool = True,
        encoding: dict[str, int] | None = None,
        ngram_buckets: int = 0,
        renderer: int = RENDERER,
        schema: str = MODEL_SCHEMA,
        labels: dict[str, Any] | None = None,
        threshold: float = 0.5,
        calibrators: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.backbone = backbone or {}
        self.head = head
        self.value_range = list(value_range)
        self.readouts = list(readouts)
        self.causal = causal
        self.encoding = encoding or asdict(EncodingConfig())
        self.ngram_buckets = ngram_buckets
        self.renderer = renderer
        self.schema = schema
        self.labels = labels or {}
        self.threshold = threshold
        self.calibrators = calibrators or {}


def load_model_config(directory: str | os.PathLike[str]) -> StepRewardConfig:
    """The config of a trained model; a clear :class:`PRMError` when this version cannot use it."""
    path = Path(directory)
    if path.exists() and not (path / "config.json").is_file():
        raise PRMError(
            f"{directory}: expected a directory written by `prm train`, found no config.json in it"
        )
    try:
        values, _ = PretrainedConfig.get_config_dict(directory)
        model_type = values.get("model_type")
    except Exception as error:  # a path that is no folder is looked up on the hub, which may fail
        raise PRMError(f"{directory}: no model there: {_why_not_loaded(path, error)}") from error
    if model_type != StepRewardConfig.model_type:
        raise PRMError(
            f"{directory}: expected a step reward model written by `prm train`, found "
            f"{'no model_type' if model_type is None else f'a {model_type!r} model'}"
        )
    for name, ours in (("schema", MODEL_SCHEMA), ("renderer", RENDERER)):
        if values.get(name) != ours:
            raise PRMError(
                f"{directory}: expected {name} {ours!r}, found {values.get(name)!r}: the model was "
                f"written by another version of prm and would be given text that it was not "
                f"trained on"
            )
    try:
        _check_config(values)
    except (KeyError, TypeError, ValueError, PRMError) as error:
        raise PRMError(f"{directory}: config.json is damaged: {first_line(error)}") from error
    return StepRewardConfig.from_dict(values)


def _check_config(values: dict[str, Any]) -> None:
    """Raise unless every setting that a score depends on is there and usable."""
    if values["head"] not in get_args(Head):
        raise ValueError(f"unknown head {values['head']!r}")
    if not values["readouts"] or not set(values["readouts"]) <= set(READOUTS):
        raise ValueError(f"unknown readouts {values['readouts']!r}")
    limits = {field.name: int(values["encoding"][field.name]) for field in fields(EncodingConfig)}
    EncodingConfig(**limits)
    low, high = map(float, values["value_range"])
    if not low < high or not math.isfinite(float(values["threshold"])):
        raise ValueError("value_range does not rise, or threshold is not finite")
    if int(values["ngram_buckets"]) < 0 or not isinstance(values["causal"], bool):
        raise ValueError("ngram_buckets or causal is not usable")
    AutoConfig.for_model(**values["backbone"])
    probe = np.array([0.5])
    for name, calibrator in values["calibrators"].items():
        if name not in READOUTS or not np.isfinite(calibrate(probe, calibrator)).all():
            raise ValueError(f"calibrator {name!r} is not usable")


def backbone_config(config: StepRewardConfig) -> PretrainedConfig:
    """The config of the backbone, as an object of its own class."""
    return AutoConfig.for_model(**config.backbone)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars or notices of transformers: what matters is raised or counted here."""
    verbosity = hf_logging.get_verbosity()
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def load_hub(auto: Any, name: str, what: str, **kwargs: Any) -> Any:
    """``auto.from_pretrained``, without remote code and with one clear error.

    Args:
        auto: AutoConfig, AutoModel or AutoTokenizer.
        name: local directory or hub id.
        what: for the message.
        **kwargs: as for ``from_pretrained``.
    """
    try:
        with quiet_transformers():
            return auto.from_pretrained(name, trust_remote_code=False, **kwargs)
    except Exception as error:  # a path that is no folder is looked up on the hub, which may fail
        reason = _why_not_loaded(Path(name), error)
        raise PRMError(f"{name}: cannot load a {what} from it: {reason}") from error


def _why_not_loaded(path: Path, error: Exception) -> str:
    where = "" if path.exists() else "no such folder, and not loaded from the hub either: "
    return f"{where}{first_line(error)}"


def first_line(error: Exception) -> str:
    """The first line of what an error of another library says, and its class."""
    lines = str(error).strip().splitlines()
    return f"{lines[0]} ({type(error).__name__})" if lines else type(error).__name__
