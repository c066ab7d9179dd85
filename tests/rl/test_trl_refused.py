"""What StepGRPOTrainer and its rollouts refuse, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prm.errors import PRMError
from prm.model.build import from_backbone
from prm.model.config import StepRewardConfig
from prm.model.predict import TraceScores
from prm.rl.budgets import FixedBudget
from prm.rl.desk.world import shortest
from prm.scoring.scorer import Scorer
from prm.shaping import ShapingConfig
from tests.backbones import LENGTHS, write_backbone
from tests.rl.trl_runs import (
    TASKS,
    Lottery,
    noise,
    sampled,
    settings,
    trained,
    watched,
)


def with_readouts(*readouts: str) -> Callable[[Path], dict[str, Any]]:
    def build(folder: Path) -> dict[str, Any]:
        backbone = write_backbone(folder / "backbone", "llama")
        config = StepRewardConfig(encoding=LENGTHS, readouts=readouts)
        return {"scorer": Scorer(from_backbone(backbone, config=config))}

    return build


@pytest.mark.parametrize(
    ("shaping", "args", "given", "sentence"),
    [
        (
            "baseline",
            {},
            with_readouts("action"),
            "needs state scores, and the model has read-outs",
        ),
        ("sum", {}, with_readouts("state"), "needs action scores, and the model has read-outs"),
        ("potential", {}, {}, "mode 'potential' needs state scores: expected a scorer, found none"),
        ("sum", {}, {}, "mode 'sum' needs action scores: expected a scorer, found none"),
        ("sum", {"scale_rewards": "group"}, {"scorer": noise}, "scale_rewards 'group': expected"),
        ("sum", {"scale_rewards": True}, {"scorer": noise}, "expected 'none' in mode 'sum'"),
        (
            ShapingConfig(mode="terminal", normalise="group"),
            {"scale_rewards": "group"},
            {},
            "scale_rewards 'group' beside normalise 'group'",
        ),
        (
            "terminal",
            {"multi_objective_aggregation": "normalize_then_sum"},
            {},
            "expected 'sum_then_normalize'",
        ),
        ("terminal", {"loss_type": "vespo"}, {}, "loss_type 'vespo'"),
        ("terminal", {"top_p": 0.9}, {}, "top_p 0.9: tokens would be drawn from a part"),
        ("terminal", {"top_k": 50}, {}, "top_k 50: tokens would be drawn from a part"),
        ("terminal", {"min_p": 0.1}, {}, "min_p 0.1: tokens would be drawn from a part"),
        ("terminal", {"repetition_penalty": 1.1}, {}, "from another distribution"),
        ("terminal", {"generation_kwargs": {"top_p": 0.5}}, {}, "from another distribution"),
        ("terminal", {"temperature": 0.0}, {}, "temperature 0"),
        ("terminal", {"use_vllm": True}, {}, "use_vllm: these rollouts are sampled"),
        ("terminal", {}, {"tools": [shortest]}, "tools: given beside rollouts"),
        ("terminal", {}, {"rollout_func": print}, "rollout_func: given beside rollouts"),
        ("terminal", {}, {"environment_factory": Lottery}, "environment_factory: given beside"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused_at_once(
    tmp_path: Path, shaping: Any, args: dict[str, Any], given: Any, sentence: str
) -> None:
    if isinstance(shaping, str):
        shaping = ShapingConfig(mode=shaping)
    kwargs = given(tmp_path) if callable(given) else given
    with pytest.raises(PRMError, match=sentence) as caught:
        watched(settings(tmp_path, **args), shaping, **kwargs)
    assert "\n" not in str(caught.value)


def spoiled(change: Callable[[list[TraceScores]], Any]) -> dict[str, Any]:
    return {"scorer": lambda traces: change(noise(traces))}


@pytest.mark.parametrize(
    ("mode", "given", "sentence"),
    [
        ("sum", spoiled(lambda found: found[1:]), "expected those of 12 traces, found 11"),
        (
            "sum",
            spoiled(lambda found: [TraceScores(a[1:], s) for a, s in found]),
            r"expected \d action scores .*found shape \(",
        ),
        (
            "baseline",
            spoiled(lambda found: [TraceScores(a, s[1:]) for a, s in found]),
            r"expected \d state scores .*found shape \(",
        ),
        (
            "sum",
            spoiled(lambda found: [TraceScores(2 + a, s) for a, s in found]),
            r"action score 0 .* is 2\.\d+: expected score_range 0 to 1",
        ),
        (
            "critic",
            spoiled(lambda found: [TraceScores(a, s - 5) for a, s in found]),
            r"state score 0 .* is -\d\.\d+: expected score_range 0 to 1",
        ),
        (
            "potential",
            spoiled(lambda found: [TraceScores(a, s * np.nan) for a, s in found]),
            "mode 'potential' needs state scores, and the scorer gives none",
        ),
        (
            "delta",
            spoiled(lambda found: [TraceScores(a * np.nan, s) for a, s in found]),
            "mode 'delta' needs action scores, and the scorer gives none",
        ),
    ],
    ids=range(7),
)
def test_scores_that_do_not_fit_are_refused(
    tmp_path: Path, mode: Any, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PRMError, match=sentence) as caught:
        trained(settings(tmp_path), ShapingConfig(mode=mode), **given)
    assert "\n" not in str(caught.value)


def test_prompts_are_tasks(tmp_path: Path) -> None:
    from datasets import Dataset

    other = Dataset.from_dict({"prompt": ["Who lives in Oslo?"] * 3})
    with pytest.raises(PRMError, match="expected the id of a task .*found Who lives in Oslo"):
        trained(settings(tmp_path), ShapingConfig("terminal"), train_dataset=other)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tasks": [TASKS[0], TASKS[1], TASKS[0]]}, "found 3 with 2 different ids"),
        ({"tasks": []}, "expected one at least"),
        ({"budget": FixedBudget(2.0, unit="shortest")}, "expected the argument shortest"),
    ],
)
def test_rollouts_that_make_no_sense_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PRMError, match=sentence):
        sampled(**given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_step_tokens": 0}, "expected 1 <= max_step_tokens < max_tokens"),
        ({"max_tokens": 20}, "expected a prompt of 1 to 8 tokens"),
        ({"max_tokens": 5_000}, "max_tokens: expected at most 1000"),
        (
            {"budget": FixedBudget(1.0, unit="shortest"), "shortest": lambda task: 0},
            "expected 3 finite numbers of at least 1",
        ),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PRMError, match=sentence):
        trained(settings(tmp_path), ShapingConfig("terminal"), rollouts=sampled(**given))


def test_a_budget_below_one_turn_is_refused() -> None:
    with pytest.raises(PRMError, match="budget 0: expected at least 1"):
        FixedBudget(0)
