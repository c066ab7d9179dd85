"""A study is read whole, and what contradicts itself is refused before anything runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prm.errors import PRMError
from prm.study.config import (
    Arm,
    Base,
    Budget,
    Evaluation,
    Primary,
    ScorerSize,
    StudyConfig,
    Training,
    read_study,
)
from prm.study.layout import Job, begin

ROOT = Path(__file__).parents[2]
PLAIN = """
seeds: [0, 1]
arms:
  - {name: outcome, budget: {kind: fixed, turns: [14]}}
  - name: mix + critic
    budget: {kind: mix, turns: [6, 8, 14], weights: [1, 1, 2]}
    shaping: {mode: critic, lam: 0.9}
    scores: oracle
"""


def study(tmp_path: Path, text: str = PLAIN) -> StudyConfig:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return read_study(path)


def test_the_fields_of_a_file_are_the_study(tmp_path: Path) -> None:
    config = study(tmp_path)
    assert [arm.name for arm in config.arms] == ["outcome", "mix + critic"]
    assert config.arms[0].shaping_config().mode == "terminal"
    assert config.arms[1].shaping_config().lam == 0.9
    assert config.arms[1].budget.sampler().levels.tolist() == [6, 8, 14]


@pytest.mark.parametrize("path", sorted((ROOT / "eval" / "studies").glob("*.yaml")))
def test_the_studies_that_come_along_are_sound(path: Path) -> None:
    config = read_study(path)
    assert len(
        {Job(arm.name, arm, seed).name for arm in config.arms for seed in config.seeds}
    ) == len(config.arms) * len(config.seeds)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds: [0, 1]", "seeds: [0, 0]", "seeds: expected different ones, found 0 twice"),
        ("seeds: [0, 1]", "seeds: []", "seeds: expected one at least"),
        ("seeds: [0, 1]", "seeds: [-1]", "each from 0 to 2**32 - 1"),
        (
            "seeds: [0, 1]",
            "seeds: [0]\nspeed: 3",
            "file: expected the keys arms, seeds, base, ",
        ),
        ("seeds: [0, 1]", "seeds: [0", "expected the YAML of a study"),
        ("seeds: [0, 1]", "seeds: [0]\nseeds: [1]", "expected each key once, found 'seeds' twice"),
        ("seeds: [0, 1]", "[" * 3000, "nested too deep"),
        ("seeds", "base: {folder: ''}\nseeds", "base.folder: expected the folder of a saved model"),
        ("lam: 0.9", "lam: x", "arm 'mix + critic': shaping.lam: expected float, found str"),
        ("lam: 0.9", "process_weight: true", "shaping.process_weight: expected float, found bool"),
        ("name: outcome", "name: MIX + critic", "names that differ in their letters and digits"),
        ("name: outcome", "name: outcome, tasks: 5", "turns_shown alone, found the key tasks"),
        ("mode: critic", "mode: crtic", "shaping.mode: expected one of baseline, "),
        ("name: outcome", "name: mix + critic", "'mix + critic' twice"),
        ("name: outcome", "name: mix critic", "that differ in their letters and digits"),
        ("name: outcome", "name: '!!'", "names of 1 to 100 characters"),
        (
            "seeds",
            "base: {folder: nowhere}\nseeds",
            "base.folder: expected the folder of a saved model",
        ),
        ("seeds", "base: {steps: 0}\nseeds", "base.steps: expected more than 0"),
        ("seeds", "training: {learning_rate: .inf}\nseeds", "training.learning_rate: expected"),
        ("seeds", "evaluation: {turns: [8, 99]}\nseeds", "evaluation.turns: expected at most 40"),
        ("name: outcome", "name: base", "names other than 'base'"),
        ("turns: [14]", "turns: [14, 15]", "arm 'outcome': budget 'fixed': expected one number"),
        ("turns: [14]", "turns: [0]", "arm 'outcome': budget 0: expected at least 1"),
        (
            "kind: fixed",
            "kind: fixd",
            "arms[0].budget.kind: expected one of curriculum, fixed, mix, found 'fixd'",
        ),
        ("weights: [1, 1, 2]", "weights: [1]", "one for each of the 3 budgets"),
        ("lam: 0.9", "lam: 2", "lam 2: expected a number in [0, 1]"),
        (
            "lam: 0.9",
            "lambda: 0.9",
            "temperature, schedule, final_weight, normalise, score_range, found 'lambda'",
        ),
        ("mode: critic, lam: 0.9", "mode: terminal", "mode terminal reads no scores"),
        ("seeds", "primary: {k: 1, t: 7}\nseeds", "primary.t 7: expected one of evaluation.turns"),
        ("seeds", "primary: {k: 9, t: 8}\nseeds", "primary.k 9: expected 1 to"),
        ("seeds", "training: {updates: 0}\nseeds", "training.updates: expected more than 0"),
        ("seeds", "training: {rollouts: 1}\nseeds", "training.rollouts: expected 2 or more"),
        ("seeds", "evaluation: {turns: [8, 8]}\nseeds", "evaluation.turns: expected different"),
    ],
)
def test_contradictions_are_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in PLAIN
    with pytest.raises(PRMError) as caught:
        study(tmp_path, PLAIN.replace(old, new, 1))
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(tmp_path / "study.yaml"))
    assert "\n" not in message


def test_numbers_may_have_exponents(tmp_path: Path) -> None:
    config = study(tmp_path, "training: {learning_rate: 1e-3}" + PLAIN)
    assert config.training.learning_rate == 0.001


def test_a_folder_goes_on_with_its_own_study_alone(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    begin(study(tmp_path), folder)
    begin(study(tmp_path), folder)
    changed = PLAIN.replace("seeds: [0, 1]", "seeds: [0, 2]")
    with pytest.raises(
        PRMError, match=r"it holds a study with seeds\[1\] 1, and this one has 2; give a new folder"
    ):
        begin(study(tmp_path, changed), folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(PRMError, match="expected a new or empty folder"):
        begin(study(tmp_path), tmp_path / "full")


def test_every_key_of_a_study_is_explained() -> None:
    text = (ROOT / "eval" / "studies" / "README.md").read_text()
    parts = {"base": Base, "scorer": ScorerSize, "training": Training, "evaluation": Evaluation}
    keys = {
        *(f"{name}.{key}" for name, part in parts.items() for key in part.__struct_fields__),
        *(f"primary.{key}" for key in Primary.__struct_fields__),
        *(f"budget.{key}" for key in Budget.__struct_fields__),
        *(key for key in Arm.__struct_fields__ if key != "budget"),
    }
    explained = set(re.findall(r"`([\w.]+)`", text))
    assert keys <= explained
