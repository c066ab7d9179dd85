"""Every shipped training config runs through the command, on tiny data and a tiny backbone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from prm import StepRewardModel, read_traces
from prm.cli import main
from tests.backbones import write_backbone

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "training").glob("*.yaml"))


def intercode_log(path: Path, n_tasks: int) -> None:
    """A made-up log in InterCode's format: the first query fails, the second is right."""
    runs = {
        str(n): {
            "environment": "ic_sql",
            "task_id": n,
            "query": f"How many singers are older than {n}?",
            "turn_history": {
                "actions": [
                    "SELECT * FROM singers",
                    f"SELECT COUNT(*) FROM singer WHERE age>{n}",
                ],
                "observations": ["Error executing query: no such table", f"[({n},)]"],
                "rewards": [0.0, 1.0],
                "valid_action": [False, True],
            },
            "summary": {"max_reward": 1.0, "turns_taken": 2, "turns_max": 10},
        }
        for n in range(n_tasks)
    }
    with gzip.open(path, "wt") as file:
        json.dump(runs, file)


@pytest.fixture(scope="module")
def desk_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    sizes = ["--train", "6", "--validation", "3", "--test", "3", "--samples", "4"]
    assert main(["generate", "desk", "--seed", "5", "--out", str(folder), *sizes]) == 0
    return folder


def test_there_are_the_three_configs() -> None:
    assert [path.stem for path in CONFIGS] == ["desk", "intercode", "lora"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_the_config_trains_a_model_that_scores(
    config: Path, desk_corpus: Path, tmp_path: Path
) -> None:
    options = yaml.safe_load(config.read_text())
    if config.stem == "intercode":
        intercode_log(tmp_path / "ic_sql.json.gz", 40)
        assert (
            main(
                ["convert", str(tmp_path / "ic_sql.json.gz"), "--out", str(tmp_path / "sql.jsonl")]
            )
            == 0
        )
        shares = "{train: 0.6, validation: 0.2, test: 0.2}"
        split = ["split", str(tmp_path / "sql.jsonl"), "--out", str(tmp_path / "split")]
        assert main([*split, "--fractions", shares]) == 0
        data, validation, test = (
            tmp_path / "split" / f"{side}.jsonl.gz" for side in ("train", "validation", "test")
        )
    else:
        data, validation, test = (
            desk_corpus / f"{side}.parquet" for side in ("train", "validation", "test")
        )
    command = [
        "train",
        "--config",
        str(config),
        "--data",
        str(data),
        "--out",
        str(tmp_path / "out"),
    ]
    command += ["--validation", str(validation), "--trainer.max_epochs", "1"]
    if "backbone" in options:
        kind = "bert" if config.stem == "intercode" else "llama"
        command += ["--backbone", write_backbone(tmp_path / "backbone", kind)]
    assert main(command) == 0

    saved = yaml.safe_load((tmp_path / "out" / "train.yaml").read_text())
    assert saved["encoding"] == options["encoding"]
    model = StepRewardModel.from_pretrained(tmp_path / "out")
    assert model.config.readouts == (
        ["action"] if config.stem == "intercode" else ["action", "state"]
    )
    scored = tmp_path / "scored.jsonl"
    assert main(["score", str(test), "--model", str(tmp_path / "out"), "--out", str(scored)]) == 0
    assert all(np.isfinite(trace.step_scores("prm")).all() for trace in read_traces(scored))
