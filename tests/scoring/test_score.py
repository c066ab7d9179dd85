"""The command ``prm score`` and the scorer behind it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from prm import Scorer, StepRewardModel, Trace, read_traces, write_traces
from prm.cli import main
from prm.model.build import from_backbone
from prm.model.config import StepRewardConfig
from tests.backbones import LENGTHS, write_backbone
from tests.conftest import MakeTrace


@pytest.fixture(scope="module", params=["llama", "bert"])
def model_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param)
    backbone = write_backbone(folder / "backbone", request.param)
    model = from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS))
    model.config.calibrators = {"action": {"method": "platt", "slope": 0.7, "intercept": -0.2}}
    model.save_pretrained(folder / "model")
    return str(folder / "model")


def corpus(make_trace: MakeTrace) -> list[Trace]:
    return [
        make_trace(n % 9, id=f"t{n}", task_id=str(n), labels=[1.0] * (n % 9)) for n in range(30)
    ]


def by_id(traces: list[Trace]) -> dict[str, Trace]:
    return {trace.id: trace for trace in traces}


def test_the_command_scores_every_step_and_changes_nothing_else(
    model_folder: str, make_trace: MakeTrace, tmp_path: Path
) -> None:
    traces = corpus(make_trace)
    write_traces(traces, tmp_path / "in.jsonl")
    out = tmp_path / "out.jsonl.gz"
    assert (
        main(["score", str(tmp_path / "in.jsonl"), "--model", model_folder, "--out", str(out)]) == 0
    )
    scored = list(read_traces(out))
    assert [t.id for t in scored] == [t.id for t in traces]
    for before, after in zip(traces, scored, strict=True):
        assert np.isfinite(after.step_scores("prm")).all()
        assert np.isfinite(after.states("prm")).all()
        bare = [msgspec.structs.replace(step, scores={}) for step in after.steps]
        assert msgspec.structs.replace(after, steps=bare, state_scores={}) == before


def test_batch_size_and_order_move_no_score(model_folder: str, make_trace: MakeTrace) -> None:
    model = StepRewardModel.from_pretrained(model_folder)
    traces = corpus(make_trace)
    shuffled = traces[:]
    random.Random(0).shuffle(shuffled)
    one = by_id(list(Scorer(model, batch_tokens=200).score(traces)))
    two = by_id(list(Scorer(model, batch_tokens=50_000).score(shuffled)))
    for id, trace in one.items():
        np.testing.assert_allclose(
            trace.step_scores("prm"), two[id].step_scores("prm"), atol=1e-5, rtol=0
        )
        np.testing.assert_allclose(trace.states("prm"), two[id].states("prm"), atol=1e-5, rtol=0)


def test_scores_of_several_models_live_side_by_side(
    model_folder: str, make_trace: MakeTrace
) -> None:
    model = StepRewardModel.from_pretrained(model_folder)
    (once,) = Scorer(model, name="a").score([make_trace(3)])
    (twice,) = Scorer(model, name="b").score([once])
    np.testing.assert_array_equal(twice.step_scores("a"), twice.step_scores("b"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "nowhere"], "nowhere"),
        (["--batch-tokens", "10"], "below the model's max_length"),
        (["--name", ""], "--name"),
        (["--device", "warp"], "--device warp"),
        (["--out", "in.jsonl/scored.jsonl"], "in.jsonl"),
        (["--out", "scored.txt"], "scored.txt"),
    ],
)
def test_bad_options_are_one_sentence_and_leave_nothing(
    model_folder: str,
    make_trace: MakeTrace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_traces(corpus(make_trace), "in.jsonl")
    options = {"--model": model_folder, "--out": "scored.jsonl"} | dict([arguments])
    assert main(["score", "in.jsonl", *(part for pair in options.items() for part in pair)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("prm: error: ")
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_bad_record_in_the_middle_leaves_no_output(
    model_folder: str, make_trace: MakeTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_traces(corpus(make_trace), path)
    with path.open("a") as file:
        file.write('{"schema": "prm-trace/1", "id": 7}\n')
    assert main(["score", str(path), "--model", model_folder, "--out", str(out)]) == 1
    assert f"{path}:31" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_checkpoint_of_a_newer_schema_is_refused_by_the_command(
    model_folder: str, make_trace: MakeTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StepRewardModel.from_pretrained(model_folder).save_pretrained(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"schema": "prm-model/2"}))
    write_traces([make_trace(1)], tmp_path / "in.jsonl")
    status = main(["score", str(tmp_path / "in.jsonl"), "--model", str(tmp_path / "model")])
    assert status == 1
    assert "expected schema 'prm-model/1', found 'prm-model/2'" in capsys.readouterr().err
