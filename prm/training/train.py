"""``prm train``: from annotated traces to a calibrated step reward model."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import instantiate_class
from lightning.pytorch.trainer.states import TrainerStatus
from numpy.typing import NDArray

from prm.data.files import read_traces
from prm.data.split import hold_out
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.build import from_backbone, from_texts
from prm.model.calibration import calibrate, fit_calibrator
from prm.model.config import StepRewardConfig
from prm.model.encoding import Readout, describe_cut
from prm.model.network import StepRewardModel
from prm.model.render import (
    ACTION_MARKER,
    STATE_MARKER,
    render_action,
    render_observations,
    render_task,
)
from prm.training.config import TrainConfig
from prm.training.data import Example, StepRewardData, make_examples, training_labels
from prm.training.memory import fit_memory
from prm.training.module import HeldOut, StepRewardModule, trainable
from prm.training.run import Run, WholeCheckpoints


def train(config: TrainConfig) -> None:
    """Train a step reward model on annotated traces; `--config FILE` reads the options from YAML.

    The model in --out is ready for `prm score --model`. A training that was stopped goes on from
    its last finished epoch with the same command and `--resume`, to the same weights.
    """
    run = Run(config)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    trainer, best = _trainer(config, run)
    L.seed_everything(config.seed, verbose=False)
    training, held_out = _splits(config)
    _need_labels(training, config, "training")
    _need_labels(held_out, config, "validation")
    model = _initial_model(config, training)
    examples, counts = make_examples(training, model.encoder, config, labelled_only=True)
    validation = _held_out(held_out, model, config)
    _check_classes(examples, config)
    _report(model, counts, held_out)
    run.begin(examples)
    if config.ngrams is not None:
        examples = fit_memory(model, examples, config.ngrams.l2)
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
        held_out=validation,
        batch_tokens=config.batch_tokens,
        seed=config.seed,
    )
    _fit(trainer, module, data, run)
    if config.keep == "best":
        module.load_state_dict(run.load(best.best_model_path)["state_dict"])
    _calibrate(module, config)
    run.finish(model, module.history)
    print(f"wrote {run.out}", file=sys.stderr)


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
                columns = trace.state_labels.items()
                known.update(k for k, column in columns if any(v is not None for v in column))
        if name is not None and name not in known:
            raise PRMError(
                f"the {split} traces ({len(traces)}) have no {kind} label {name!r}; {kind} labels "
                f"there: {', '.join(map(repr, sorted(known))) or 'none'}. `prm label` makes labels"
            )


def _check_classes(examples: Sequence[Example], config: TrainConfig) -> None:
    """What would fail, or teach nothing, after hours of training fails now."""
    for readout, name in (("action", config.label), ("state", config.state_label)):
        if name is None:
            continue
        values = {
            label
            for example in examples
            for label, kind in zip(example.labels, example.sequence.readouts, strict=True)
            if kind == readout and not math.isnan(label)
        }
        if len(values) == 1:
            raise PRMError(
                f"all training labels {name!r} are {values.pop():g}: there is nothing to tell apart"
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
        ngram_buckets=0 if config.ngrams is None else config.ngrams.buckets,
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


def _trainer(config: TrainConfig, run: Run) -> tuple[L.Trainer, ModelCheckpoint]:
    """The Lightning trainer, and the callback that knows the best checkpoint."""
    best = ModelCheckpoint(
        run.checkpoints,
        "best",
        monitor="val_loss",
        save_weights_only=True,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    last = ModelCheckpoint(
        run.checkpoints, "last", save_on_train_epoch_end=True, enable_version_counter=False
    )
    options: dict[str, Any] = {
        "max_epochs": 3,
        "gradient_clip_val": 1.0,
        "accelerator": "auto",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": sys.stderr.isatty(),
        "enable_model_summary": False,
    } | config.trainer
    epochs = options["max_epochs"]
    if not isinstance(epochs, int) or epochs < 1:
        raise PRMError(f"train: expected trainer.max_epochs of 1 or more, found {epochs!r}")
    try:
        options["callbacks"] = [*_objects(options.get("callbacks")), best, last]
        options["plugins"] = [*_objects(options.get("plugins")), WholeCheckpoints()]
        if isinstance(options["logger"], dict | list):
            options["logger"] = _objects(options["logger"])
        trainer = L.Trainer(
            **options,
            default_root_dir=str(run.out),
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
        )
    except Exception as error:  # Lightning and its plugins raise anything for a bad option
        reason = str(error).strip().splitlines()[0]
        raise PRMError(f"train: lightning.Trainer does not take these options: {reason}") from error
    return trainer, best


def _fit(trainer: L.Trainer, module: StepRewardModule, data: StepRewardData, run: Run) -> None:
    checkpoint = None
    if run.resumes:
        run.load(run.last)
        checkpoint = str(run.last)
    with warnings.catch_warnings():
        # Examples are in memory and collation is trivial: worker processes would only cost time.
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
        warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*")
        try:
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
        except SystemExit as error:  # Lightning's answer to Ctrl-C
            raise KeyboardInterrupt from error
    if trainer.state.status == TrainerStatus.INTERRUPTED:
        raise KeyboardInterrupt
    if not module.history:
        raise PRMError("train: no epoch was trained; look at the trainer options")


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


def _report(model: StepRewardModel, counts: Counter[str], held_out: Sequence[Trace]) -> None:
    trained, total = trainable(model)
    print(
        f"{counts['traces']} training traces, {counts['labels']} labels "
        f"({counts['unlabelled']} read-outs unlabelled), {len(held_out)} validation traces; "
        f"{total:,} parameters, {trained:,} trained",
        file=sys.stderr,
    )
    cut = Counter({key[4:]: n for key, n in counts.items() if key.startswith("cut_")})
    if cut:
        print(describe_cut(cut), file=sys.stderr)
