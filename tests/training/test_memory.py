"""The n-gram memory: the best linear model, and offsets that no task's own labels reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression

from prm.data.files import write_traces
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.build import from_backbone
from prm.model.config import StepRewardConfig
from prm.model.encoding import READOUTS, EncodingConfig
from prm.model.network import StepRewardModel
from prm.training.config import NgramConfig, OptimizerConfig, TrainConfig
from prm.training.data import Example, make_examples
from prm.training.memory import fit_memory
from prm.training.train import train
from tests.backbones import LENGTHS, write_backbone
from tests.conftest import MakeTrace

L2 = 0.7
BUCKETS = 2**16


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_backbone(tmp_path_factory.mktemp("backbone"), "llama")


@pytest.fixture
def traces(make_trace: MakeTrace) -> list[Trace]:
    """Twelve traces of six tasks, with labels of three values for actions and states."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(12):
        n_steps = 1 + number % 4
        labels = rng.integers(-1, 2, size=2 * n_steps + 1).astype(float).tolist()
        trace = make_trace(
            n_steps, id=f"agent/{number}", task_id=f"task {number // 2}", labels=labels[:n_steps]
        )
        found.append(msgspec.structs.replace(trace, state_labels={"v": labels[n_steps:]}))
    return found


def prepared(
    backbone: str, traces: list[Trace], head: Any, **options: Any
) -> tuple[StepRewardModel, list[Example]]:
    settings = StepRewardConfig(
        encoding=LENGTHS, head=head, value_range=(-1.0, 1.0), ngram_buckets=BUCKETS
    )
    model = from_backbone(backbone, config=settings)
    config = TrainConfig(
        data=[], out="", label="executed", state_label="v", head=head,
        value_range=(-1.0, 1.0), **options,
    )  # fmt: skip
    return model, make_examples(traces, model.encoder, config, labelled_only=True)[0]


def memory_logits(model: StepRewardModel, examples: list[Example]) -> np.ndarray[Any, Any]:
    """What the fitted memory and biases say: the model's logits without the backbone's."""
    with torch.no_grad():
        for head in model.heads.values():
            head.weight.zero_()
        batch = model.collate([e.sequence for e in examples])
        return np.asarray(model.eval()(batch).double())


@pytest.mark.parametrize("head", ["binary", "ternary"])
def test_the_fit_is_that_of_scikit_learn(backbone: str, traces: list[Trace], head: str) -> None:
    """Its TF-IDF transform and penalised logistic regression, on the same counts of n-grams."""
    positive = {"positive_at": 0.5} if head == "binary" else {}
    model, examples = prepared(backbone, traces, head, **positive)
    fit_memory(model, examples, L2)
    found = memory_logits(model, examples)

    lookups = [lookup for e in examples for lookup in e.sequence.lookups]
    grams = csr_matrix(
        (
            np.concatenate([lookup.weights for lookup in lookups]).astype(float),
            np.concatenate([lookup.buckets for lookup in lookups]),
            np.cumsum([0, *(len(lookup.buckets) for lookup in lookups)]),
        ),
        shape=(len(lookups), BUCKETS),
    )
    kinds = np.array([READOUTS.index(k) for e in examples for k in e.sequence.readouts])
    weighed = TfidfTransformer(norm=None).fit_transform(grams).toarray()
    features = np.hstack([weighed, np.eye(2)[kinds]])
    labels = np.array([label for e in examples for label in e.labels])
    reference = LogisticRegression(C=1 / L2, fit_intercept=False, tol=1e-10, max_iter=10_000)
    reference.fit(features, labels)
    if head == "binary":
        assert np.abs(found[:, 0] - reference.decision_function(features)).max() < 2e-3
    else:
        expected = reference.predict_proba(features)
        assert np.abs(torch.from_numpy(found).softmax(-1).numpy() - expected).max() < 1e-3


def test_an_offset_is_the_memory_of_the_other_tasks(backbone: str, traces: list[Trace]) -> None:
    """Whatever the labels of a task are, its offsets stay the same; those of others move."""

    def offsets(labels: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        model, examples = prepared(backbone, traces, "value")
        changed = [
            e._replace(labels=[labels] * len(e.labels)) if e.task == "task 2" else e
            for e in examples
        ]
        fitted = fit_memory(model, changed, L2)
        kinds = [k for e in fitted for k in e.sequence.readouts]
        biases = np.array([[model.heads[kind].bias.item()] for kind in kinds])
        own = np.array([e.task == "task 2" for e in fitted for _ in e.labels])
        given = [e.offsets for e in fitted if e.offsets is not None]
        logits = np.concatenate(given) + biases
        return logits[own], logits[~own]

    own, others = offsets(-1.0)
    own_changed, others_changed = offsets(1.0)
    assert np.abs(own - own_changed).max() < 1e-4
    assert np.abs(others - others_changed).max() > 0.05


def test_steps_without_a_label_or_weight_teach_nothing(backbone: str, traces: list[Trace]) -> None:
    model, examples = prepared(backbone, traces, "value")
    bare = [
        e._replace(labels=[np.nan] * len(e.labels), weights=[0.0] * len(e.weights))
        if e.task == "task 1"
        else e
        for e in examples
    ]
    light = [
        e._replace(weights=[0.0] * len(e.weights)) if e.task == "task 1" else e for e in examples
    ]
    fit_memory(model, bare, L2)
    found = memory_logits(model, examples)
    fit_memory(model, light, L2)
    assert np.abs(memory_logits(model, examples) - found).max() < 1e-6


def test_the_model_adds_memory_and_network(backbone: str, traces: list[Trace]) -> None:
    model, examples = prepared(backbone, traces, "value")
    fit_memory(model, examples, L2)
    model.eval()
    batch = model.collate([e.sequence for e in examples])
    with torch.no_grad():
        network = model.network_logits(batch)
        whole = model(batch)
        assert model.memory is not None
        remembered = model.memory(batch.buckets, batch.offsets, batch.weights)
    torch.testing.assert_close(whole, network + remembered)
    assert float(remembered.abs().max()) > 0.05


def test_one_task_cannot_be_cross_fitted(backbone: str, traces: list[Trace]) -> None:
    model, examples = prepared(backbone, traces[:2], "value")
    with pytest.raises(PRMError, match="at least 2 training tasks; found 1"):
        fit_memory(model, examples, L2)


def test_gradient_steps_leave_the_memory_as_it_was_fitted(
    backbone: str, traces: list[Trace], tmp_path: Path
) -> None:
    path = str(tmp_path / "corpus.jsonl")
    write_traces(traces, path)
    for name, learning_rate in (("slow", 1e-5), ("fast", 1e-2)):
        config = TrainConfig(
            data=[path],
            out=str(tmp_path / name),
            label="executed",
            positive_at=0.5,
            backbone=backbone,
            ngrams=NgramConfig(buckets=512, l2=0.5),
            validation_fraction=0.3,
            encoding=EncodingConfig(**LENGTHS),
            optimizer=OptimizerConfig(learning_rate=learning_rate),
            batch_tokens=400,
            trainer={"max_epochs": 2, "accelerator": "cpu"},
        )
        train(config)
    slow, fast = (StepRewardModel.from_pretrained(tmp_path / name) for name in ("slow", "fast"))
    assert slow.memory is not None
    assert fast.memory is not None
    assert torch.equal(slow.memory.weight, fast.memory.weight)
    assert slow.memory.weight.abs().max().item() > 0.01
    assert not torch.equal(slow.heads["action"].weight, fast.heads["action"].weight)
