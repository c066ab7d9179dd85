"""``prm train``: from annotated traces to a calibrated step reward model."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import instantiate_class
from lightning.pytorch.trainer.states import TrainerStatus
from numpy.typing import NDArray
from transformers.utils.logging import disable_progress_bar

from prm.data.files import read_traces
from prm.data.split import hold_out
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.calibration import calibrate, fit_calibrator
from prm.model.encoding import Readout
from prm.model.network import StepRewardConfig, StepRewardModel, from_backbone, from_texts
from prm.model.render import (
    ACTION_MARKER,
    STATE_MARKER,
    render_action,
    render_observations,
    render_task,
)
from prm.training.config import TrainConfig
from prm.training.data import StepRewardData, make_examples, training_labels
from prm.training.module import HeldOut, StepRewardModule, trainable

_LAST = "last.ckpt"


def train(config: TrainConfig) -> None:
    """Train a step reward model on annotated traces; `--config FILE` reads the options from YAML.

    The model in --out is ready for `prm score --model`. A training that was stopped goes on from
    its last finished epoch with the same command and `--resume`, to the same weights.
    """
    out = _prepare(config)
    L.seed_everything(config.seed, verbose=False)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    disable_progress_bar()
    training, held_out = _splits(config)
    _need_labels(training, config, "training")
    _need_labels(held_out, config, "validation")
    model = _initial_model(config, training)
    encoder = model.encoder
    examples, counts = make_examples(training, encoder, config, labelled_only=True)
    _report(model, counts, held_out)
    data = StepRewardData(
        examples,
        model,
        batch_tokens=config.batch_tokens,
        seed=config.seed,
        negatives=config.negatives,
    )
    module = StepRewardModule(
        model,
        config.optimizer,
        batches=data.batches,
        held_out=_held_out(held_out, model, config),
        batch_tokens=config.batch_tokens,
        seed=config.seed,
    )
    best = _fit(module, data, out, config)
    if config.keep == "best":
        state = torch.load(best, map_location="cpu", weights_only=True)["state_dict"]
        module.load_state_dict(state)
    _calibrate(module, config)
    _save(model, module.history, out)
    print(f"wrote {out}", file=sys.stderr)


def _prepare(config: TrainConfig) -> Path:
    """The output directory, with the resolved options in it."""
    out = Path(config.out)
    checkpoint = out / "checkpoints" / _LAST
    if config.resume and not checkpoint.is_file():
        raise PRMError(f"{out}: nothing to resume: no finished epoch in {checkpoint}")
    options = _plain(asdict(config) | {"resume": False})
    text = yaml.safe_dump(options, sort_keys=False)
    if config.resume:
        before = yaml.safe_load((out / "train.yaml").read_text())
        changed = [key for key in options if before.get(key) != options[key]]
        if changed:
            raise PRMError(
                f"{out}: cannot resume with other options: "
                + "; ".join(f"{k} was {before.get(k)!r}, now {options[k]!r}" for k in changed)
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PRMError(f"{out}: expected a new or empty directory, so that no model is overwritten")
    out.mkdir(parents=True, exist_ok=True)
    (out / "train.yaml").write_text(text)
    return out


def _splits(config: TrainConfig) -> tuple[list[Trace], list[Trace]]:
    traces = list(read_traces(config.data))
    if config.validation is not None:
        held_out = list(read_traces(config.validation))
        shared = {t.task_id for t in traces} & {t.task_id for t in held_out}
        if shared:
            raise PRMError(
                f"--validation shares {len(shared)} tasks with --data, {min(shared)!r} among them: "
                f"held-out numbers would be too good"
            )
        return traces, held_out
    return hold_out(traces, config.validation_fraction, config.seed)


def _need_labels(traces: Sequence[Trace], config: TrainConfig, split: str) -> None:
    for name, kind in ((config.label, "step"), (config.state_label, "state")):
        known: set[str] = set()
        for trace in traces:
            if kind == "step":
                known.update(k for s in trace.steps for k, v in s.labels.items() if v is not None)
            else:
                known.update(trace.state_labels)
        if name is not None and name not in known:
            raise PRMError(
                f"the {split} traces ({len(traces)}) have no {kind} label {name!r}; {kind} labels "
                f"there: {', '.join(sorted(known)) or 'none'}. `prm label` makes labels"
            )


def _initial_model(config: TrainConfig, traces: Sequence[Trace]) -> StepRewardModel:
    readouts: list[Readout] = []
    if config.label is not None:
        readouts.append("action")
    if config.state_label is not None:
        readouts.append("state")
    settings = StepRewardConfig(
        head=config.head,
        value_range=config.value_range,
        readouts=readouts,
        encoding=asdict(config.encoding),
        ngram_buckets=config.ngram_buckets,
        labels={
            "action": config.label,
            "state": config.state_label,
            "positive_at": config.positive_at,
        },
    )
    if config.backbone is None:
        model = from_texts(_texts(traces), config=settings, decoder=config.decoder)
    else:
        model = from_backbone(
            config.backbone,
            config=settings,
            layers=config.layers,
            dropout=config.dropout,
            lora=config.lora,
            activation_checkpointing=config.activation_checkpointing,
        )
    return model


def _texts(traces: Sequence[Trace]) -> list[str]:
    texts = []
    for trace in traces:
        texts += render_task(trace)
        for window in trace.windows():
            texts += [render_action(window), ACTION_MARKER]
            texts += [*render_observations(window), STATE_MARKER]
    return texts


def _held_out(traces: Sequence[Trace], model: StepRewardModel, config: TrainConfig) -> HeldOut:
    labels: dict[Readout, list[NDArray[np.float64]]] = {}
    pairs = [training_labels(trace, config) for trace in traces]
    if config.label is not None:
        labels["action"] = [np.array(actions) for actions, _ in pairs]
    if config.state_label is not None:
        labels["state"] = [np.array(states) for _, states in pairs]
    encoder = model.encoder
    return HeldOut([encoder.encode(trace) for trace in traces], labels)


def _fit(module: StepRewardModule, data: StepRewardData, out: Path, config: TrainConfig) -> str:
    """Run the Lightning trainer; returns the path of the best checkpoint."""
    checkpoints = out / "checkpoints"
    best = ModelCheckpoint(
        checkpoints,
        "best",
        monitor="val_loss",
        save_weights_only=True,
        save_on_train_epoch_end=True,
    )
    last = ModelCheckpoint(checkpoints, "last", save_on_train_epoch_end=True)
    for checkpoint in (best, last):
        checkpoint.CHECKPOINT_NAME_LAST = "last"
        checkpoint._enable_version_counter = False
    options: dict[str, Any] = {
        "max_epochs": 3,
        "gradient_clip_val": 1.0,
        "accelerator": "auto",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": sys.stderr.isatty(),
        "enable_model_summary": False,
    } | config.trainer
    options["callbacks"] = [*_objects(options.get("callbacks")), best, last]
    if isinstance(options["logger"], dict | list):
        options["logger"] = _objects(options["logger"])
    try:
        trainer = L.Trainer(
            **options,
            default_root_dir=str(out),
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
        )
    except TypeError as error:
        raise PRMError(
            f"train: the trainer options do not suit lightning.Trainer: {error}"
        ) from error
    with warnings.catch_warnings():
        # Examples are in memory and collation is trivial: worker processes would only cost time.
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
        warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*")
        try:
            trainer.fit(
                module,
                datamodule=data,
                ckpt_path=str(checkpoints / _LAST) if config.resume else None,
                weights_only=True,
            )
        except SystemExit as error:  # Lightning's answer to Ctrl-C
            raise KeyboardInterrupt from error
    if trainer.state.status == TrainerStatus.INTERRUPTED:
        raise KeyboardInterrupt
    return best.best_model_path


def _objects(entries: Any) -> list[Any]:
    """``{class_path, init_args}`` entries as objects."""
    if entries is None:
        return []
    entries = entries if isinstance(entries, list) else [entries]
    return [instantiate_class((), e) if isinstance(e, dict) else e for e in entries]


def _calibrate(module: StepRewardModule, config: TrainConfig) -> None:
    """Fit the calibrators and the threshold on the validation tasks."""
    model = module.model
    pairs = module.held_out.predictions(model, batch_tokens=config.batch_tokens)
    for readout, (score, label) in pairs.items():
        model.config.calibrators[readout] = fit_calibrator(score, label, config.calibration)
    if "action" in pairs:
        score, label = pairs["action"]
        calibrated = calibrate(score, model.config.calibrators["action"])
        low, high = model.score_range
        model.config.threshold = low + (high - low) * best_threshold(calibrated, label >= 0.5)


def best_threshold(scores: NDArray[np.float64], good: NDArray[np.bool_]) -> float:
    """The score below which a step is called bad: the cut with the largest F1 of the good steps.

    >>> best_threshold(np.array([0.1, 0.4, 0.6, 0.9]), np.array([False, False, True, True]))
    0.5
    """
    from sklearn.metrics import precision_recall_curve

    if not good.any() or good.all():
        return 0.5
    precision, recall, cuts = precision_recall_curve(good, scores)
    total = precision[:-1] + recall[:-1]
    f1 = 2 * precision[:-1] * recall[:-1] / np.where(total > 0, total, 1)
    place = int(np.argmax(f1))
    below = cuts[place - 1] if place else 0.0
    return float((below + cuts[place]) / 2)


def _save(model: StepRewardModel, history: list[dict[str, float]], out: Path) -> None:
    """Write the model beside its name first, so that no half of one is left under it."""
    partial = out / ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    (partial / "metrics.json").write_text(json.dumps(history, indent=1) + "\n")
    # The config comes last: a directory without it is no model.
    for name in sorted(os.listdir(partial), key=lambda name: name == "config.json"):
        os.replace(partial / name, out / name)
    partial.rmdir()


def _report(model: StepRewardModel, counts: Counter[str], held_out: Sequence[Trace]) -> None:
    trained, total = trainable(model)
    print(
        f"{counts['traces']} training traces, {counts['labels']} labels "
        f"({counts['unlabelled']} read-outs unlabelled), {len(held_out)} validation traces; "
        f"{total / 1e6:.1f} M parameters, {trained / 1e6:.1f} M trained",
        file=sys.stderr,
    )
    cut = {key: n for key, n in sorted(counts.items()) if key.startswith("cut_")}
    if cut:
        print(
            "tokens cut in the middle: "
            + ", ".join(f"{key[4:]} {n}" for key, n in cut.items() if key != "cut_windows")
            + f"; extra windows for long traces: {cut.get('cut_windows', 0)}",
            file=sys.stderr,
        )


def _plain(value: Any) -> Any:
    """Tuples as lists, so that YAML reads back what it wrote."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
