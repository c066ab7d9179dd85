"""The recipes of ``training/rl`` run as they stand, on tiny models, for an update or a few."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from prm.data.files import read_traces
from prm.errors import PRMError
from prm.model.build import from_backbone
from prm.model.config import StepRewardConfig
from prm.rl.chat import ChatDialogue
from prm.rl.desk.policy import PolicyConfig, load_policy, save_policy, teach
from prm.rl.tool_environment import ToolEnvironment, tool_tasks
from tests.backbones import LENGTHS, write_backbone
from tests.rl.chat_tokenizer import chat_tokenizer

RECIPES = Path(__file__).parents[2] / "training" / "rl"


def recipe(name: str) -> ModuleType:
    """The recipe as a module."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(monkeypatch: pytest.MonkeyPatch, name: str, *words: object) -> ModuleType:
    """The recipe, with a command line that is going to be read."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    return recipe(name)


@pytest.fixture(scope="module")
def step_reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one with random weights."""
    folder = tmp_path_factory.mktemp("scorer")
    backbone = write_backbone(folder / "backbone", "llama")
    model = from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS))
    model.save_pretrained(folder / "model")
    return folder / "model"


# trl_desk.


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that has hardly been taught."""
    folder = tmp_path_factory.mktemp("desk") / "base"
    config = PolicyConfig(hidden_size=16, n_layers=1, n_tasks=8, steps=2, batch_size=4)
    save_policy(teach(config), folder)
    return folder


def test_desk_on_outcomes(
    tmp_path: Path,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_desk(monkeypatch, tmp_path, base, "--turns", 10)
    traces = list(read_traces(tmp_path / "rollouts-0.jsonl.gz"))
    assert [trace.policy for trace in traces] == ["base"] * 3 + ["trained"] * 3
    assert traces[0].task_id == traces[3].task_id
    assert {trace.outcome.max_turns for trace in traces} == {10}
    assert "FixedBudget" in capsys.readouterr().out


def test_desk_on_mixed_budgets_and_step_rewards(
    tmp_path: Path,
    base: Path,
    step_reward_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = ("--budget", "mix", "--turns", 6, 9)
    scored = ("--mode", "baseline", "--scorer", step_reward_model)
    train_desk(monkeypatch, tmp_path, base, *more, *scored)
    traces = list(read_traces(tmp_path / "rollouts-0.jsonl.gz"))
    assert [trace.outcome.max_turns for trace in traces] == [6, 6, 6, 9, 9, 9] * 2
    assert "BudgetMix" in capsys.readouterr().out
    # Outcomes are all 0, so what moved the policy are the scores of its steps.
    before, after = load_policy(base).model, load_policy(tmp_path / "policy-0").model
    moved = [
        (one - other).abs().max().item()
        for one, other in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert max(moved) > 0


def train_desk(monkeypatch: pytest.MonkeyPatch, out: Path, base: Path, *words: object) -> None:
    (out / "base").symlink_to(base)
    small = ("--steps", 1, "--groups", 2, "--rollouts", 2, "--test-tasks", 3)
    command(monkeypatch, "trl_desk", "--out", out, *small, *words).main()


# trl_qwen.


def write_qwen(folder: Path, template: str, *, calls: int = 0) -> Path:
    """A tiny one with the chat template ``template``, taught ``calls`` times to call its tool."""
    tokenizer = chat_tokenizer(template)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2_000,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    if calls:
        module = recipe("trl_qwen")
        game = ToolEnvironment(module.HiddenNumber)
        (messages,), tools = game.reset(tool_tasks(module.rows(1, 0)), [1], [0])
        asked = ChatDialogue(tokenizer).prompt(messages, tools)
        call = '<tool_call>\n{"name": "guess", "arguments": {"number": 7}}\n</tool_call><|im_end|>'
        ids = torch.tensor([[*asked, *tokenizer(call)["input_ids"]]])
        targets = ids.clone()
        targets[:, : len(asked)] = -100
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(calls):
            model(input_ids=ids, labels=targets).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen of one layer that calls its tool now and then, with the template of Qwen2.5."""
    return write_qwen(tmp_path_factory.mktemp("qwen"), "qwen2_5", calls=100)


@pytest.mark.parametrize("lora", [(), ("--lora", 4)], ids=["weights", "lora"])
def test_qwen_in_our_loop(
    tmp_path: Path,
    model: Path,
    step_reward_model: Path,
    lora: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scored = ("--scorer", step_reward_model, *lora)
    qwen(monkeypatch, tmp_path, model, "--turns", 2, 3, *scored).main()
    traces = list(read_traces(tmp_path / "rollouts-0.jsonl.gz"))
    assert len(traces) == 4
    assert max(trace.n_steps for trace in traces) > 1
    for trace in traces:
        assert trace.n_steps <= (trace.outcome.max_turns or 0) <= 3
        assert np.isfinite(trace.states("prm")).all()
        assert [tool["function"]["name"] for tool in trace.tools or []] == ["guess"]
    assert " a second" in capsys.readouterr().out
    assert (tmp_path / "model" / "tokenizer.json").exists()
    assert (tmp_path / "model" / "adapter_config.json").exists() == bool(lora)


def test_adapters_that_are_trained_are_sampled_from(
    tmp_path: Path, step_reward_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that has been taught nothing, so that rollouts differ and some are better than others.
    model = write_qwen(tmp_path / "qwen", "qwen2_5")
    words = ("--lora", 4, "--scorer", step_reward_model, "--mode", "sum", "--turns", 3)
    module = qwen(monkeypatch, tmp_path, model, *words, "--steps", 3, "--learning-rate", 0.05)
    trainer = module.ours(module.arguments(), [])
    trainer.train()
    # They begin as zeros, which change nothing.
    moved = [p.abs().max() for name, p in trainer.model.named_parameters() if "lora_B" in name]
    assert max(moved) > 0.01
    name = "prm/log_prob_difference"
    differences = [row[name] for row in trainer.state.log_history if name in row]
    assert len(differences) == 3
    assert max(differences) < 1e-4


def test_qwen_with_a_template_for_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3's own template drops the thoughts of the past."""
    model = write_qwen(tmp_path / "qwen", "qwen3")
    words = ("--turns", 2, "--template-options", '{"enable_thinking": false}')
    with pytest.raises(PRMError, match="it is rewritten"):
        qwen(monkeypatch, tmp_path / "out", model, *words).main()
    qwen(monkeypatch, tmp_path / "out", model, *words, "--training-template").main()
    assert len(list(read_traces(tmp_path / "out" / "rollouts-0.jsonl.gz"))) == 4


def test_qwen_in_the_loop_of_trl(
    tmp_path: Path, model: Path, step_reward_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--loop", "trl", "--turns", 2, "--scorer", step_reward_model)
    qwen(monkeypatch, tmp_path, model, *words).main()
    traces = list(read_traces(tmp_path / "rollouts-0.jsonl.gz"))
    assert len(traces) == 4
    assert 1 < max(trace.n_steps for trace in traces) <= 3
    for trace in traces:
        assert np.isfinite(trace.states("prm")).all()
        assert [tool["function"]["name"] for tool in trace.tools or []] == ["guess"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--loop", "trl", "--turns", 2, 3), "one number of --turns"),
        (("--vllm",), "expected --loop trl"),
        (("--at-once", 3), "a divisor"),
    ],
)
def test_contradictions_are_refused(
    tmp_path: Path,
    words: tuple[object, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command(monkeypatch, "trl_qwen", "--out", tmp_path, *words).main()
    assert message in capsys.readouterr().err


def test_the_hidden_number_is_found_by_halving() -> None:
    module = recipe("trl_qwen")
    game = module.HiddenNumber()
    for number in range(1, 101):
        game.reset(number=number)
        assert game.get_reward() == 0.0
        low, high = 1, 100
        for _ in range(7):
            middle = (low + high) // 2
            answer = game.guess(middle)
            low, high = (middle + 1, high) if "higher" in answer else (low, middle - 1)
            if middle == number:
                break
        assert game.get_reward() == 1.0


def qwen(monkeypatch: pytest.MonkeyPatch, out: Path, model: Path, *words: object) -> ModuleType:
    """The recipe, about to take one update of two groups of two."""
    small = ("--steps", 1, "--groups", 2, "--rollouts", 2, "--at-once", 2)
    short = ("--max-step-tokens", 32, "--max-tokens", 600)
    given = ("--out", out, "--model", model, *small, *short, *words)
    return command(monkeypatch, "trl_qwen", *given)
