"""StepRewardFunction pays a trajectory what its steps are paid, and refuses to do nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOTrainer

from prm.data.trace import Outcome, Trace
from prm.errors import PRMError
from prm.model.build import from_backbone
from prm.model.config import StepRewardConfig
from prm.model.predict import TraceScores
from prm.rl.trl import StepRewardFunction
from prm.scoring.scorer import Scorer
from prm.shaping import ShapingConfig, step_rewards
from tests.backbones import LENGTHS, write_backbone
from tests.rl.chat_tokenizer import chat_tokenizer
from tests.rl.trl_runs import settings

PROMPT = [{"role": "user", "content": "How many rows?"}]


def look(page: int) -> str:
    """Look at a page.

    Args:
        page: its number.
    """
    return f"row {page}"


def completion(n_steps: int) -> list[dict[str, Any]]:
    """Calls, each answered, and an answer at last: ``n_steps`` assistant messages."""
    said: list[dict[str, Any]] = []
    for page in range(n_steps - 1):
        function = {"name": "look", "arguments": {"page": page}}
        calls = [{"type": "function", "function": function}]
        said.append({"role": "assistant", "content": "", "tool_calls": calls})
        said.append({"role": "tool", "name": "look", "content": look(page)})
    return [*said, {"role": "assistant", "content": f"{n_steps} steps"}]


COMPLETIONS = [completion(n) for n in (1, 2, 5)]


def by_text(traces: Sequence[Trace]) -> list[TraceScores]:
    """Scores in [0, 1] that depend on what is said."""
    rngs = [np.random.default_rng([*json.dumps(trace.messages).encode()]) for trace in traces]
    return [
        TraceScores(rng.random(trace.n_steps), np.full(trace.n_steps + 1, np.nan))
        for rng, trace in zip(rngs, traces, strict=True)
    ]


def paid(function: StepRewardFunction, **columns: Any) -> list[float]:
    return function(prompts=[PROMPT] * 3, completions=COMPLETIONS, **columns)


def scores() -> list[np.ndarray]:
    """What the scorer gives the completions."""
    kept: list[TraceScores] = []

    def keep(traces: Sequence[Trace]) -> list[TraceScores]:
        kept.extend(by_text(traces))
        return kept

    paid(StepRewardFunction(keep, ShapingConfig(mode="sum")))
    return [one.actions for one in kept]


@pytest.mark.parametrize("mode", ["progress", "sum", "clip", "delta", "clip_delta", "min_form"])
def test_a_trajectory_is_paid_what_its_steps_are_paid(mode: Any) -> None:
    shaping = ShapingConfig(mode=mode, process_weight=0.7, gamma=0.9)
    expected = [
        step_rewards(shaping, action_scores=actions, terminal_reward=0.0, terminated=True).returns[
            0
        ]
        for actions in scores()
    ]
    np.testing.assert_allclose(paid(StepRewardFunction(by_text, shaping)), expected)


def test_closed_forms() -> None:
    """All scores; the last one; the first one (delta credits no step with the last score)."""
    found = {
        mode: paid(StepRewardFunction(by_text, ShapingConfig(mode=mode)))
        for mode in ("sum", "progress", "delta")
    }
    np.testing.assert_allclose(found["sum"], [actions.sum() for actions in scores()])
    np.testing.assert_allclose(found["progress"], [actions[-1] for actions in scores()])
    np.testing.assert_allclose(found["delta"], [0.0, *(a[0] for a in scores()[1:])])


@pytest.mark.parametrize("mode", ["terminal", "potential", "baseline", "critic"])
def test_modes_that_would_do_nothing_are_refused(mode: Any) -> None:
    with pytest.raises(PRMError, match=f"mode '{mode}': .* use StepGRPOTrainer"):
        StepRewardFunction(by_text, ShapingConfig(mode=mode))


@pytest.mark.parametrize("setting", [{"normalise": "group"}, {"terminal_weight": 0.5}])
def test_settings_that_it_does_not_read_are_refused(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(PRMError, match=f"{name} .*: a reward function sees no group"):
        StepRewardFunction(by_text, ShapingConfig(mode="sum", **setting))


def test_the_schedule_follows_the_state_of_the_trainer() -> None:
    shaping = ShapingConfig(mode="sum", schedule="linear", process_weight=2.0, final_weight=1.0)
    function = StepRewardFunction(by_text, shaping)
    whole = np.array(paid(StepRewardFunction(by_text, ShapingConfig(mode="sum"))))
    for step, weight in ((0, 2.0), (5, 1.5), (10, 1.0), (11, 1.0)):
        state = SimpleNamespace(global_step=step, max_steps=10)
        np.testing.assert_allclose(paid(function, trainer_state=state), weight * whole)
    np.testing.assert_allclose(paid(function), 2 * whole)
    np.testing.assert_allclose(
        paid(function, trainer_state=SimpleNamespace(global_step=0, max_steps=0)), 2 * whole
    )


def test_scorers_see_messages_and_tools_but_no_outcome() -> None:
    seen: list[Trace] = []

    def keep(traces: Sequence[Trace]) -> list[TraceScores]:
        seen.extend(traces)
        return by_text(traces)

    paid(StepRewardFunction(keep, ShapingConfig(mode="sum"), tools=[look]))
    assert [trace.messages for trace in seen] == [PROMPT + said for said in COMPLETIONS]
    assert [trace.n_steps for trace in seen] == [1, 2, 5]
    for trace in seen:
        (schema,) = trace.tools or []
        assert schema["function"]["parameters"]["properties"]["page"]["type"] == "integer"
        assert trace.outcome == Outcome()
    assert len({trace.id for trace in seen}) == 3


def test_scores_that_do_not_fit_are_refused() -> None:
    high = StepRewardFunction(
        lambda traces: [TraceScores(a + 1, s) for a, s in by_text(traces)],
        ShapingConfig(mode="sum"),
    )
    with pytest.raises(PRMError, match="expected score_range 0 to 1"):
        paid(high)
    few = StepRewardFunction(lambda traces: by_text(traces)[1:], ShapingConfig(mode="sum"))
    with pytest.raises(PRMError, match="expected those of 3 traces, found 2"):
        paid(few)


@pytest.mark.parametrize("prompt", ["How many rows?", PROMPT], ids=["plain", "chat"])
def test_it_is_a_reward_function_of_the_stock_trainer(tmp_path: Path, prompt: Any) -> None:
    tokenizer = chat_tokenizer()
    torch.manual_seed(0)
    policy = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    backbone = write_backbone(tmp_path / "backbone", "llama")
    model = from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS))
    function = StepRewardFunction(Scorer(model), ShapingConfig(mode="sum"))
    said: list[Any] = []

    def nothing(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        said.append((prompts, completions))
        return [0.0] * len(completions)

    trainer = GRPOTrainer(
        policy,
        [nothing, function],
        settings(tmp_path / "run", max_completion_length=8),
        train_dataset=Dataset.from_dict({"prompt": [prompt] * 3}),
        processing_class=tokenizer,
    )
    trainer.train()
    ((prompts, completions),) = said
    expected = function(prompts=prompts, completions=completions)
    assert all(0 < reward < 1 for reward in expected)
    first = trainer.state.log_history[0]
    assert first["rewards/step_reward/mean"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert first["reward"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert first["grad_norm"] > 0
