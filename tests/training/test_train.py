"""Training: the gradient of the whole step, exact resume, and errors before any work is done."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import msgspec
import numpy as np
import pytest
import torch

from prm.data.files import read_traces, write_traces
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.batching import batch_plan
from prm.model.build import DecoderConfig, LoraConfig, from_backbone
from prm.model.config import StepRewardConfig
from prm.model.encoding import EncodingConfig
from prm.model.network import StepRewardModel
from prm.model.predict import predict
from prm.training.config import NgramConfig, OptimizerConfig, TrainConfig
from prm.training.data import EpochBatches, Example, StepRewardData, for_ranks, make_examples
from prm.training.module import HeldOut, StepRewardModule
from prm.training.run import WholeCheckpoints
from prm.training.train import train
from tests.backbones import LENGTHS, write_backbone
from tests.conftest import MakeTrace

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_backbone(tmp_path_factory.mktemp("backbone"), "llama")


@pytest.fixture
def corpus(make_trace: MakeTrace, tmp_path: Path) -> str:
    """Traces whose label can be read off the action: the first two steps are good."""
    path = tmp_path / "corpus.jsonl"
    write_traces([labelled(make_trace, n, n) for n in range(1, 25)], str(path))
    return str(path)


def labelled(make_trace: MakeTrace, number: int, seed: int) -> Trace:
    n_steps = 1 + seed % 5
    trace = make_trace(
        n_steps,
        id=f"agent/{number}",
        task_id=f"task {number}",
        labels=[float(i < 2) for i in range(n_steps)],
    )
    return msgspec.structs.replace(
        trace, state_labels={"v": [i / n_steps for i in range(n_steps + 1)]}
    )


def tiny(data: str, out: Path, **options: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "label": "executed",
        "batch_tokens": 400,
        "validation_fraction": 0.3,
        "encoding": EncodingConfig(**LENGTHS),
        "decoder": DecoderConfig(layers=1, width=32, heads=2, vocabulary=300),
        "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    } | options
    return TrainConfig(data=[data], out=str(out), **settings)


class Recorder(L.Callback):
    """Keeps the gradients that the optimizer is given."""

    def __init__(self) -> None:
        self.gradients: dict[str, torch.Tensor] = {}

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        self.gradients = {
            name: parameter.grad.clone()
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }


class FixedBatches(EpochBatches):
    """Batches as given, in order."""

    def __init__(self, batches: list[list[int]]) -> None:
        super().__init__([], 1, 0)
        self.batches = batches

    def plan(self, epoch: int) -> list[list[int]]:
        return self.batches


def gradient(
    backbone: str, examples: Sequence[Example], batches: list[list[int]], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The gradient of one optimizer step that accumulates over ``batches``."""
    torch.manual_seed(3)
    model = from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS)).to(dtype)
    data = StepRewardData(list(examples), model, batch_tokens=1, seed=0)
    data.batches = FixedBatches(batches)
    module = StepRewardModule(
        model,
        TrainConfig(data=[], out="", label="x").optimizer,
        batches=data.batches,
        held_out=HeldOut([], {}),
        batch_tokens=1000,
        seed=0,
    )
    module.on_train_epoch_end = lambda: None  # type: ignore[method-assign]
    recorder = Recorder()
    trainer = L.Trainer(
        max_epochs=1,
        accumulate_grad_batches=len(batches),
        accelerator="cpu",
        callbacks=[recorder],
        enable_checkpointing=False,
        **QUIET,
    )
    trainer.fit(module, datamodule=data)
    return recorder.gradients


@pytest.fixture
def unequal(backbone: str, make_trace: MakeTrace) -> list[Example]:
    """Eight sequences with 1 to 5 labels each, and weights."""
    encoder = from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS)).encoder
    traces = [labelled(make_trace, n, n) for n in range(8)]
    heavy = [msgspec.structs.replace(step, weight=2.5) for step in traces[0].steps]
    traces[0] = msgspec.structs.replace(traces[0], steps=heavy)
    config = TrainConfig(data=[], out="", label="executed", state_label="v")
    examples, _ = make_examples(traces, encoder, config, labelled_only=True)
    assert len({sum(w > 0 for w in e.weights) for e in examples}) > 2
    return examples[:8]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_accumulation_gives_the_gradient_of_the_whole_batch(
    backbone: str, unequal: list[Example], dtype: torch.dtype, tolerance: float
) -> None:
    """8 x 1, 4 x 2 and 1 x 8, whatever the number of labels in each micro-batch."""
    whole = gradient(backbone, unequal, [list(range(8))], dtype)
    largest = max(g.abs().max().item() for g in whole.values())
    assert largest > 1e-3
    for size in (4, 1):
        split = [list(range(i, i + size)) for i in range(0, 8, size)]
        parts = gradient(backbone, unequal, split, dtype)
        assert parts.keys() == whole.keys()
        for name, expected in whole.items():
            difference = (parts[name] - expected).abs().max().item()
            assert difference <= tolerance * max(1.0, largest), name


def test_the_gradient_is_that_of_the_mean_over_labels(
    backbone: str, unequal: list[Example]
) -> None:
    """Against autograd on the plain definition, one sequence at a time."""
    found = gradient(backbone, unequal, [[0, 1, 2], [3, 4, 5, 6, 7]], torch.float64)
    torch.manual_seed(3)
    model = from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS)).double()
    terms, weights = [], []
    for example in unequal:
        logits = model(model.collate([example.sequence]))[:, 0]
        for logit, label, weight in zip(logits, example.labels, example.weights, strict=True):
            if weight > 0:
                p = logit.sigmoid()
                terms.append(-weight * (label * p.log() + (1 - label) * (1 - p).log()))
                weights.append(weight)
    (torch.stack(terms).sum() / sum(weights)).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[f"model.{name}"], parameter.grad, atol=1e-7, rtol=1e-5)


def test_a_batch_without_labels_is_an_error_that_names_it(
    backbone: str, unequal: list[Example]
) -> None:
    bare = [e._replace(weights=[0.0] * len(e.weights), source="bare/7") for e in unequal]
    with pytest.raises(PRMError, match="without a label .traces bare/7"):
        gradient(backbone, bare, [[0, 1]], torch.float32)


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_resumed_training_gives_the_weights_of_the_uninterrupted_one(
    corpus: str, tmp_path: Path, stop_after: int
) -> None:
    """Bit for bit, with an n-gram memory and a schedule over all epochs."""

    def options(epochs: int) -> dict[str, Any]:
        return {
            "state_label": "v",
            "ngrams": NgramConfig(buckets=512),
            "trainer": {"max_epochs": epochs, "accelerator": "cpu"},
        }

    class Stop(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            if trainer.current_epoch == stop_after:
                raise KeyboardInterrupt

    train(tiny(corpus, tmp_path / "whole", **options(3)))
    with pytest.raises(KeyboardInterrupt):
        train_stopped(tiny(corpus, tmp_path / "parts", **options(3)), Stop())
    assert not (tmp_path / "parts" / "config.json").exists()
    train(tiny(corpus, tmp_path / "parts", resume=True, **options(3)))
    for name in ("model.safetensors", "metrics.json"):
        whole, parts = tmp_path / "whole" / name, tmp_path / "parts" / name
        assert whole.read_bytes() == parts.read_bytes(), name


def train_stopped(config: TrainConfig, stop: L.Callback) -> None:
    """Train with one more callback, which is not part of the saved options."""
    original = L.Trainer.__init__

    def patched(self: L.Trainer, *args: Any, **kwargs: Any) -> None:
        kwargs["callbacks"] = [stop, *kwargs["callbacks"]]
        original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(L.Trainer, "__init__", patched)
        train(config)


def test_training_depends_on_the_seed_alone(corpus: str, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny(corpus, tmp_path / name, seed=seed))
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_a_model_learns_what_can_be_read_off_the_action(corpus: str, tmp_path: Path) -> None:
    train(
        tiny(
            corpus,
            tmp_path / "out",
            calibration="none",
            state_label="v",
            optimizer=OptimizerConfig(learning_rate=3e-3),
            trainer={"max_epochs": 15, "accelerator": "cpu"},
        )
    )
    history = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert len(history) == 15
    assert history[-1]["action_auroc"] > 0.95
    assert history[-1]["action_brier"] < history[-1]["action_brier_constant"] / 3
    assert history[-1]["state_brier"] < history[-1]["state_brier_constant"] / 2


def test_lora_through_the_command_trains_and_loads(
    corpus: str, backbone: str, make_trace: MakeTrace, tmp_path: Path
) -> None:
    train(tiny(corpus, tmp_path / "out", backbone=backbone, lora=LoraConfig(rank=2)))
    model = StepRewardModel.from_pretrained(tmp_path / "out")
    (found,) = predict(model, [model.encoder.encode(make_trace(3))])
    assert np.isfinite(found.actions).all()


def test_an_existing_model_is_never_overwritten(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(PRMError, match="expected a new or empty directory"):
        train(tiny(corpus, tmp_path / "out"))
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["precious"]


def test_resuming_with_other_options_says_which(corpus: str, tmp_path: Path) -> None:
    train(tiny(corpus, tmp_path / "out"))
    with pytest.raises(PRMError, match="seed was 0, now 5"):
        train(tiny(corpus, tmp_path / "out", resume=True, seed=5))


def test_a_training_that_failed_early_leaves_the_directory_free(
    corpus: str, tmp_path: Path
) -> None:
    with pytest.raises(PRMError, match="no step label"):
        train(tiny(corpus, tmp_path / "out", label="misspelt"))
    assert not (tmp_path / "out").exists()

    class Stop(L.Callback):
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_stopped(tiny(corpus, tmp_path / "out"), Stop())
    assert not list((tmp_path / "out" / "checkpoints").iterdir())
    # Nothing was learned, so both the same command and --resume begin anew.
    train(tiny(corpus, tmp_path / "out", resume=True))
    assert (tmp_path / "out" / "config.json").is_file()


def test_resuming_on_other_data_is_refused(
    corpus: str, make_trace: MakeTrace, tmp_path: Path
) -> None:
    train(tiny(corpus, tmp_path / "out"))
    traces = list(read_traces(corpus))
    flipped = [
        msgspec.structs.replace(s, labels={"executed": 1 - s.labels["executed"]})
        for s in traces[0].steps
    ]
    traces[0] = msgspec.structs.replace(traces[0], steps=flipped)
    write_traces(traces, corpus)
    with pytest.raises(PRMError, match="training traces or their labels have changed"):
        train(tiny(corpus, tmp_path / "out", resume=True))


@pytest.mark.parametrize("damage", ["empty", "cut"])
def test_a_damaged_checkpoint_is_named(corpus: str, tmp_path: Path, damage: str) -> None:
    train(tiny(corpus, tmp_path / "out"))
    last = tmp_path / "out" / "checkpoints" / "last.ckpt"
    last.write_bytes(b"" if damage == "empty" else last.read_bytes()[:5000])
    with pytest.raises(PRMError, match="last.ckpt: expected a checkpoint"):
        train(tiny(corpus, tmp_path / "out", resume=True))


def test_a_checkpoint_that_cannot_be_written_spares_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.ckpt"
    WholeCheckpoints().save_checkpoint({"epoch": 1}, path)

    def full_disk(checkpoint: object, target: str) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(PRMError, match="cannot be written"):
        WholeCheckpoints().save_checkpoint({"epoch": 2}, path)
    monkeypatch.undo()
    assert torch.load(path, weights_only=True) == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize(
    "options",
    [
        {"accelerator": "warp"},
        {"precision": "17"},
        {"devices": 0},
        {"max_epochs": "many"},
        {"max_epochs": 0},
        {"misspelt": 1},
        {"callbacks": [{"class_path": "nowhere.Nothing"}]},
    ],
)
def test_bad_trainer_options_are_refused_before_any_work(
    corpus: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(PRMError, match="^train: "):
        train(tiny(corpus, tmp_path / "out", trainer={"max_epochs": 1} | options))
    assert not (tmp_path / "out").exists()


def test_a_loss_that_is_not_finite_stops_the_training(corpus: str, tmp_path: Path) -> None:
    wild = OptimizerConfig(learning_rate=1e30)
    with pytest.raises(PRMError, match="the loss is not finite in batch"):
        train(tiny(corpus, tmp_path / "out", optimizer=wild, trainer={"max_epochs": 3}))


def test_labels_of_one_class_are_refused(make_trace: MakeTrace, tmp_path: Path) -> None:
    path = tmp_path / "same.jsonl"
    names = [str(n) for n in range(20)]
    write_traces([make_trace(2, id=n, task_id=n, labels=[1.0, 1.0]) for n in names], str(path))
    with pytest.raises(PRMError, match="all training labels 'executed' are 1"):
        train(tiny(str(path), tmp_path / "out"))


def test_state_labels_that_are_all_null_are_no_labels(
    make_trace: MakeTrace, tmp_path: Path
) -> None:
    path = tmp_path / "null.jsonl"
    names = [str(n) for n in range(20)]
    empty = {"z": [None, None]}
    write_traces([make_trace(1, id=n, task_id=n, state_labels=empty) for n in names], str(path))
    with pytest.raises(PRMError, match="no state label 'z'"):
        train(tiny(str(path), tmp_path / "out", label=None, state_label="z"))


def test_labels_outside_the_range_of_the_head_are_refused(
    make_trace: MakeTrace, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    write_traces(
        [make_trace(2, id=str(n), task_id=str(n), labels=[0.5, -0.27]) for n in range(20)],
        str(path),
    )
    with pytest.raises(PRMError, match="'executed' number 1 is -0.27, but a binary head"):
        train(tiny(str(path), tmp_path / "a"))
    with pytest.raises(PRMError, match="is 0.5, but a ternary head takes -1, 0 and 1"):
        train(tiny(str(path), tmp_path / "b", head="ternary"))
    with pytest.raises(PRMError, match="is -0.27, but the value head's range is 0 to 1"):
        train(tiny(str(path), tmp_path / "c", head="value"))


def test_an_unknown_label_lists_the_known_ones(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(PRMError, match="no step label 'reward'; step labels there: 'executed'"):
        train(tiny(corpus, tmp_path / "out", label="reward"))


def test_tasks_on_both_sides_of_the_split_are_refused(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(PRMError, match="shares 24 tasks"):
        train(tiny(corpus, tmp_path / "out", validation=[corpus]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": None}, "nothing to learn"),
        ({"head": "value", "value_range": (1.0, 1.0)}, "must be finite and rise"),
        ({"head": "ternary", "positive_at": 1.0}, "a ternary head cannot use"),
        ({"lora": LoraConfig()}, "need a --backbone"),
        ({"batch_tokens": 100}, "below encoding.max_length"),
        ({"validation_fraction": 1.5}, "between 0 and 1"),
        ({"negatives": 0.0}, "--negatives must be in"),
        ({"negatives": 0.5, "head": "value"}, "no meaning for a value head"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PRMError, match=message):
        tiny("x", Path("y"), **options)


def test_batches_hold_each_example_once_within_the_budget() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 200, 5000).tolist()
    for shuffled in (None, np.random.default_rng(1)):
        plan = batch_plan(lengths, 1000, shuffled)
        assert sorted(i for batch in plan for i in batch) == list(range(5000))
        padded = [len(batch) * max(lengths[i] for i in batch) for batch in plan]
        assert max(padded) <= 1000
        # Sorting by length leaves little padding; batches drawn blindly would be half padding.
        assert sum(lengths) / sum(padded) > 0.95


def test_drawn_negatives_keep_their_total_weight_and_every_good_example() -> None:
    """An epoch draws a share of the optional examples; over epochs all of them, evenly."""
    optional = [i % 4 != 0 for i in range(2000)]
    batches = EpochBatches([5] * 2000, 100, seed=3, optional=optional, share=0.25)
    seen = np.zeros(2000)
    for epoch in range(80):
        drawn = [i for batch in batches.plan(epoch) for i in batch]
        assert len(drawn) == len(set(drawn))
        assert batches.plan(epoch) == batches.plan(epoch)
        seen[drawn] += 1
    assert (seen[::4] == 80).all()
    rest = seen[np.array(optional)]
    # 80 draws at 0.25 are 20 on average, with a standard deviation of 3.9.
    assert abs(rest.mean() - 20) < 0.4
    assert abs(rest.std() - 3.87) < 0.4


def test_the_weight_of_drawn_negatives_makes_up_for_those_left_out(
    backbone: str, unequal: list[Example]
) -> None:
    model = from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS))
    data = StepRewardData(unequal, model, batch_tokens=500, seed=0, negatives=0.25)
    for before, after, optional in zip(unequal, data.examples, data.batches.optional, strict=True):
        factor = 4.0 if optional else 1.0
        assert after.weights == [factor * weight for weight in before.weights]
        assert optional == (not any(label >= 0.5 for label in before.labels))


def test_every_device_gets_as_many_batches_and_no_example_twice() -> None:
    batches = batch_plan([10] * 101, 200, np.random.default_rng(0))
    for ranks in (1, 2, 3, 8):
        shared = for_ranks(batches, ranks)
        assert len(shared) % ranks == 0
        assert sorted(i for batch in shared for i in batch) == list(range(101))


def test_the_learning_rate_rises_then_falls_to_zero(corpus: str, tmp_path: Path) -> None:
    train(tiny(corpus, tmp_path / "out"))
    checkpoint = torch.load(tmp_path / "out/checkpoints/last.ckpt", weights_only=True)
    (rate,) = {group["lr"] for group in checkpoint["optimizer_states"][0]["param_groups"]}
    assert math.isclose(rate, 0.0, abs_tol=1e-9)
