"""Scores: no future, no neighbours, and a checkpoint that holds all of them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.build import LoraConfig, from_backbone
from prm.model.config import StepRewardConfig, load_model_config
from prm.model.network import StepRewardModel
from prm.model.predict import TraceScores, predict
from tests.backbones import LENGTHS, write_backbone
from tests.conftest import MakeTrace

KINDS = ("llama", "gpt2", "bert")
MODELS = (*KINDS, "llama+ngrams", "bert+ngrams")


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("backbones")
    return {kind: write_backbone(folder / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def models(backbones: dict[str, str]) -> dict[str, StepRewardModel]:
    torch.manual_seed(1)
    found = {}
    for name in MODELS:
        kind, _, ngrams = name.partition("+")
        model = make(backbones[kind], ngram_buckets=512 if ngrams else 0)
        if model.memory is not None:
            torch.nn.init.normal_(model.memory.weight)
        found[name] = model.eval()
    return found


def make(backbone: str, **settings: object) -> StepRewardModel:
    return from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS, **settings))


def scores(
    model: StepRewardModel, traces: list[Trace], batch_tokens: int = 4000
) -> list[TraceScores]:
    encoder = model.encoder
    return predict(model, [encoder.encode(t) for t in traces], batch_tokens=batch_tokens)


def changed(trace: Trace, index: int) -> Trace:
    """The same trace with another observation of step ``index`` and all text after it."""
    messages = [
        message if at <= trace.steps[index].at else {**message, "content": f"other {at}"}
        for at, message in enumerate(trace.messages)
    ]
    return msgspec.structs.replace(trace, messages=messages)


@pytest.mark.parametrize(("kind", "causal"), [("llama", True), ("gpt2", True), ("bert", False)])
def test_causality_is_found_by_trying(
    models: dict[str, StepRewardModel], kind: str, causal: bool
) -> None:
    assert models[kind].config.causal is causal


@pytest.mark.parametrize("kind", MODELS)
def test_a_change_after_a_readout_moves_no_earlier_score(
    models: dict[str, StepRewardModel], make_trace: MakeTrace, kind: str
) -> None:
    trace = make_trace(12)
    (before,) = scores(models[kind], [trace])
    for index in range(trace.n_steps):
        (after,) = scores(models[kind], [changed(trace, index)])
        np.testing.assert_allclose(
            after.actions[: index + 1], before.actions[: index + 1], atol=1e-5, rtol=0
        )
        np.testing.assert_allclose(
            after.states[: index + 1], before.states[: index + 1], atol=1e-5, rtol=0
        )
        # The test can fail: what comes after the change does move.
        assert np.abs(after.states[index + 1 :] - before.states[index + 1 :]).max() > 1e-3


@pytest.mark.parametrize("kind", MODELS)
def test_appending_steps_moves_no_earlier_score(
    models: dict[str, StepRewardModel], make_trace: MakeTrace, kind: str
) -> None:
    (long,) = scores(models[kind], [make_trace(12)])
    for n_steps in range(12):
        (short,) = scores(models[kind], [make_trace(n_steps)])
        np.testing.assert_allclose(short.actions, long.actions[:n_steps], atol=1e-5, rtol=0)
        np.testing.assert_allclose(short.states, long.states[: n_steps + 1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", MODELS)
def test_neither_batch_size_nor_order_moves_a_score(
    models: dict[str, StepRewardModel], make_trace: MakeTrace, kind: str
) -> None:
    traces = [make_trace(n, id=str(n)) for n in (1, 7, 3, 12, 0, 5)]
    one_by_one = scores(models[kind], traces, batch_tokens=160)
    together = scores(models[kind], traces[::-1], batch_tokens=100_000)[::-1]
    for alone, grouped in zip(one_by_one, together, strict=True):
        np.testing.assert_allclose(alone.actions, grouped.actions, atol=1e-5, rtol=0)
        np.testing.assert_allclose(alone.states, grouped.states, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "bert", "llama+ngrams"])
def test_a_saved_model_gives_the_same_scores(
    models: dict[str, StepRewardModel], make_trace: MakeTrace, tmp_path: Path, kind: str
) -> None:
    model = models[kind]
    model.config.calibrators = {"action": {"method": "platt", "slope": 2.0, "intercept": 0.3}}
    model.save_pretrained(tmp_path)
    loaded = StepRewardModel.from_pretrained(tmp_path)
    assert not loaded.training
    for before, after in zip(
        scores(model, [make_trace(9)]), scores(loaded, [make_trace(9)]), strict=True
    ):
        np.testing.assert_array_equal(before.actions, after.actions)
        np.testing.assert_array_equal(before.states, after.states)
    assert not list(tmp_path.glob("*.bin")), "weights are safetensors, never a pickle"
    model.config.calibrators = {}


def test_lora_trains_adapters_and_heads_and_merges_on_saving(
    backbones: dict[str, str], make_trace: MakeTrace, tmp_path: Path
) -> None:
    model = from_backbone(
        backbones["llama"], config=StepRewardConfig(encoding=LENGTHS), lora=LoraConfig(rank=2)
    )
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name in trained if "lora_" not in name} == {
        f"heads.{readout}.{part}" for readout in ("action", "state") for part in ("weight", "bias")
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    (before,) = scores(model.eval(), [make_trace(4)])
    model.save_pretrained(tmp_path)
    (after,) = scores(StepRewardModel.from_pretrained(tmp_path), [make_trace(4)])
    np.testing.assert_allclose(after.actions, before.actions, atol=1e-5)
    (again,) = scores(model, [make_trace(4)])
    np.testing.assert_array_equal(again.actions, before.actions)


@pytest.mark.parametrize("kind", KINDS)
def test_without_dropout_training_mode_changes_no_output(
    backbones: dict[str, str], kind: str
) -> None:
    batch_of = torch.arange(4, 40)[None]
    for dropout, same in ((0.5, False), (0.0, True)):
        model = from_backbone(
            backbones[kind], config=StepRewardConfig(encoding=LENGTHS), dropout=dropout
        )
        outputs = [model.backbone(input_ids=batch_of).last_hidden_state for _ in range(2)]
        assert torch.equal(*outputs) is same


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_activation_checkpointing_changes_no_gradient(
    backbones: dict[str, str], make_trace: MakeTrace, lora: LoraConfig | None
) -> None:
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = from_backbone(
            backbones["llama"],
            config=StepRewardConfig(encoding=LENGTHS),
            lora=lora,
            activation_checkpointing=checkpointing,
        )
        batch = model.collate(model.encoder.encode(make_trace(5)).sequences)
        model(batch).square().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    assert any("lora_B" in name for name in gradients[0]) is (lora is not None)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_layers_keeps_the_first_layers(backbones: dict[str, str]) -> None:
    whole, part = make(backbones["llama"]), None
    part = from_backbone(backbones["llama"], config=StepRewardConfig(encoding=LENGTHS), layers=1)
    assert (len(whole.backbone.layers), len(part.backbone.layers)) == (3, 1)
    first = whole.backbone.layers[0].mlp.up_proj.weight
    assert torch.equal(part.backbone.layers[0].mlp.up_proj.weight, first)
    with pytest.raises(PRMError, match="expected 1 to 3"):
        from_backbone(backbones["llama"], config=StepRewardConfig(encoding=LENGTHS), layers=4)


@pytest.mark.parametrize(
    ("head", "value_range"),
    [("binary", (0.0, 1.0)), ("ternary", (0.0, 1.0)), ("value", (-2.0, 5.0))],
)
def test_scores_span_the_range_of_the_head(
    backbones: dict[str, str],
    make_trace: MakeTrace,
    head: str,
    value_range: tuple[float, float],
) -> None:
    model = make(backbones["llama"], head=head, value_range=value_range)
    # A ternary head has a logit each for bad, neutral and good; the others one for good.
    certain = {"ternary": ([60.0, 0.0, 0.0], [0.0, 0.0, 60.0])}.get(head, ([-60.0], [60.0]))
    for bias, expected in zip(certain, value_range, strict=True):
        with torch.no_grad():
            for module in model.heads.values():
                module.weight.zero_()
                module.bias.copy_(torch.tensor(bias))
        (found,) = scores(model, [make_trace(3)])
        np.testing.assert_allclose(found.actions, expected, atol=1e-6)


def test_a_missing_readout_is_nan_not_zero(
    backbones: dict[str, str], make_trace: MakeTrace
) -> None:
    (found,) = scores(make(backbones["llama"], readouts=["action"]), [make_trace(3)])
    assert np.isfinite(found.actions).all()
    assert np.isnan(found.states).all()


@pytest.mark.parametrize("key", ["schema", "renderer"])
def test_a_checkpoint_of_another_version_is_refused(
    models: dict[str, StepRewardModel], tmp_path: Path, key: str
) -> None:
    models["llama"].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config[key] = "prm-model/9" if key == "schema" else 99
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PRMError, match=f"expected {key}"):
        load_model_config(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"head": "foo"},
        {"readouts": ["thought"]},
        {"encoding": {}},
        {"encoding": LENGTHS | {"max_length": "x"}},
        {"threshold": "x"},
        {"backbone": {}},
        {"backbone": {"model_type": "nothing"}},
        {"calibrators": {"action": {"method": "magic"}}},
        {"calibrators": {"action": {"method": "platt", "slope": float("nan"), "intercept": 0}}},
        {"readouts": ["action"]},
        {"ngram_buckets": 64},
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    models: dict[str, StepRewardModel], tmp_path: Path, change: dict[str, object]
) -> None:
    """Above all: weights that are missing are never made up."""
    models["llama"].save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PRMError, match=str(tmp_path)):
        StepRewardModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("kept", [0, 200])
def test_damaged_files_are_refused(
    models: dict[str, StepRewardModel], tmp_path: Path, name: str, kept: int
) -> None:
    models["llama"].save_pretrained(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:kept])
    with pytest.raises(PRMError, match=str(tmp_path)) as caught:
        StepRewardModel.from_pretrained(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_tensor_is_refused(models: dict[str, StepRewardModel], tmp_path: Path) -> None:
    models["llama"].save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["heads.action.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PRMError, match="missing keys: heads.action.weight"):
        StepRewardModel.from_pretrained(tmp_path)


def test_all_files_of_a_model_have_the_same_permissions(
    models: dict[str, StepRewardModel], tmp_path: Path
) -> None:
    models["llama"].save_pretrained(tmp_path)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_another_kind_of_model_is_refused(backbones: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(PRMError, match="found a 'llama' model"):
        StepRewardModel.from_pretrained(backbones["llama"])
    with pytest.raises(PRMError, match="no config.json"):
        StepRewardModel.from_pretrained(tmp_path)
    with pytest.raises(PRMError, match="cannot load a model"):
        make(str(tmp_path))


def test_a_sequence_longer_than_the_backbone_reads_is_refused(backbones: dict[str, str]) -> None:
    long = StepRewardConfig(encoding=LENGTHS | {"max_length": 1024})
    with pytest.raises(PRMError, match="above the 512 tokens"):
        from_backbone(backbones["gpt2"], config=long)
