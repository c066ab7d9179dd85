"""StepGRPOTrainer on rollouts of TRL's own loop: its tools, its environments, its generation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.build import from_backbone
from prm.model.config import StepRewardConfig
from prm.model.predict import TraceScores
from prm.rl.trl.traces import trace_of
from prm.scoring.scorer import Scorer
from prm.shaping import ShapingConfig, spans_from_mask
from tests.backbones import LENGTHS, write_backbone
from tests.rl.chat_tokenizer import chat_tokenizer
from tests.rl.trl_runs import Watched, advantages_of_group, noise, settings

QWEN = chat_tokenizer()
END = "<|im_end|>"


def call(page: int) -> str:
    return f'<tool_call>\n{{"name": "look", "arguments": {{"page": {page}}}}}\n</tool_call>'


PLANS = [
    [f"I look.\n{call(0)}{END}", f"{call(1)}{END}", f"Two rows.{END}"],
    [f"I know it.{END}"],
    [f"{call(3)}\n{call(4)}{END}", f"Both seen.{END}"],
    [f"{call(5)}{END}", "I talk on and on" + " and on" * 200],
    [f"{call(99)}{END}", f"Never said.{END}"],
    [f"{call(7)}{END}", f"{call(8)}{END}", f"{call(9)}{END}", f"Found.{END}"],
]
"""What the policy says in each rollout. The fourth is cut; the answer to the fifth is too long."""
STEPS = [3, 1, 2, 2, 1, 4]
CUT = [False, False, False, True, True, False]
QUESTION = [{"role": "user", "content": "How many rows?"}]


class Shelf:
    """An environment of TRL with one tool."""

    def reset(self, **row: Any) -> str:
        return " Look at the shelf."

    def look(self, page: int) -> str:
        """Look at a page.

        Args:
            page: its number.
        """
        return f"row {page}" * (500 if page == 99 else 1)


def look(page: int) -> str:
    """Look at a page.

    Args:
        page: its number.
    """
    return Shelf().look(page)


def long_is_good(completions: Any, **columns: Any) -> list[float]:
    return [len(completion) / 7 for completion in completions]


class Scripted(Watched):
    """Says what is planned, whatever the model."""

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        opened = QWEN.get_vocab()["<tool_response>"]
        turns = [list(ids).count(opened) for ids in prompt_ids]
        if not any(turns):
            self.begun = [list(ids) for ids in prompt_ids]
            rows = list(range(len(prompt_ids)))
        else:
            rows = [self._row(list(ids)) for ids in prompt_ids]
        said = [PLANS[row][self._turn(row, n)] for row, n in zip(rows, turns, strict=True)]
        return [QWEN(text)["input_ids"][: self.max_completion_length] for text in said], None

    def _row(self, ids: list[int]) -> int:
        (row,) = (
            row
            for row, plan in enumerate(PLANS)
            if ids[len(self.begun[row]) :][: len(QWEN(plan[0])["input_ids"])]
            == QWEN(plan[0])["input_ids"]
        )
        return row

    def _turn(self, row: int, results: int) -> int:
        return results // 2 if row == 2 else results


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(QWEN),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=2_000,
            bos_token_id=None,
            eos_token_id=QWEN.eos_token_id,
            pad_token_id=QWEN.pad_token_id,
        )
    )


def run(folder: Path, kind: type[Watched] = Scripted, **kwargs: Any) -> Watched:
    plain: dict[str, Any] = {
        "per_device_train_batch_size": 6,
        "num_generations": 6,
        "max_completion_length": 250,
        "max_steps": 2,
    }
    args = settings(folder, **plain | kwargs.pop("args", {}))
    given: dict[str, Any] = {
        "reward_funcs": long_is_good,
        "train_dataset": Dataset.from_dict({"prompt": [QUESTION] * 2}),
        "processing_class": chat_tokenizer(),
        "shaping": ShapingConfig(mode="potential"),
    }
    trainer = kind(model(), args=args, **given | kwargs)
    trainer.train()
    return trainer


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL warns that its environments are experimental."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


class Seen:
    """A scorer that keeps the traces it is shown."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []

    def __call__(self, traces: Sequence[Trace]) -> list[TraceScores]:
        self.traces += traces
        return noise(traces)


@pytest.mark.parametrize("source", [{"environment_factory": Shelf}, {"tools": [look]}], ids=list)
@pytest.mark.parametrize("turn_limit", ["end", "cut"])
@pytest.mark.parametrize("mask_truncated", [False, True])
def test_steps_are_the_assistant_messages(
    tmp_path: Path, source: dict[str, Any], turn_limit: Any, mask_truncated: bool
) -> None:
    scorer = Seen()
    trainer = run(
        tmp_path,
        scorer=scorer,
        turn_limit=turn_limit,
        args={"mask_truncated_completions": mask_truncated},
        **source,
    )
    for batch, (_, output) in enumerate(trainer.batches):
        traces = scorer.traces[6 * batch :][:6]
        assert [trace.n_steps for trace in traces] == STEPS
        kept = (output["completion_mask"] * output["tool_mask"]).bool()
        expected = advantages_of_group(
            ShapingConfig(mode="potential"),
            noise(traces),
            [len(trace.messages[1:]) / 7 for trace in traces],
            [turn_limit == "end" or not cut for cut in CUT],
        )
        assert not output["advantages"][~kept].any()
        for row, (ids, mask, laid, values, trace) in enumerate(
            zip(output["completion_ids"], kept, output["advantages"], expected, traces, strict=True)
        ):
            spans = spans_from_mask(mask.numpy())
            # TRL's mask_truncated_completions leaves those alone that end with a whole message.
            if mask_truncated and row == 3:
                assert not spans
                continue
            assert len(spans) == len(values) == trace.n_steps
            for (start, end), value, window in zip(spans, values, trace.windows(), strict=True):
                np.testing.assert_allclose(laid[start:end], value, rtol=1e-6, atol=1e-7)
                text = str(QWEN.decode(ids[start:end]))
                assert all(str(c["function"]["arguments"]["page"]) in text for c in calls(window))
                assert window.action["content"] in text
                assert "row" not in text or not calls(window)


def calls(window: Any) -> list[dict[str, Any]]:
    return window.action.get("tool_calls") or []


def test_scorers_see_the_whole_conversation_and_the_tools(tmp_path: Path) -> None:
    scorer = Seen()
    run(tmp_path, scorer=scorer, environment_factory=Shelf)
    for trace, plan, cut in zip(scorer.traces, PLANS * 2, CUT * 2, strict=True):
        prompt, *rest = trace.messages
        assert prompt == {"role": "user", "content": "How many rows? Look at the shelf."}
        assert [one["function"]["name"] for one in trace.tools or []] == ["look"]
        results = [message["content"] for message in rest if message["role"] == "tool"]
        pages = [c["function"]["arguments"]["page"] for w in trace.windows() for c in calls(w)]
        assert results == [f"row {page}" for page in pages if page != 99]
        if not cut:
            assert rest[-1]["content"] == plan[-1].removesuffix(END)
    assert len({trace.task_id for trace in scorer.traces}) == 1


def test_no_two_traces_have_one_id(tmp_path: Path) -> None:
    """Neither with two batches of rollouts in an update."""
    kept: list[Trace] = []
    args = {"gradient_accumulation_steps": 2, "steps_per_generation": 1}
    run(tmp_path, scorer=noise, environment_factory=Shelf, on_traces=kept.extend, args=args)
    assert len({trace.id for trace in kept}) == len(kept) == 24


def test_traces_say_whether_they_were_cut(tmp_path: Path) -> None:
    kept: list[Trace] = []
    run(tmp_path, scorer=noise, environment_factory=Shelf, on_traces=kept.extend)
    statuses = [trace.outcome.status for trace in kept]
    assert statuses == ["out_of_turns" if cut else "completed" for cut in CUT] * 2


def test_a_step_reward_model_scores_them(tmp_path: Path) -> None:
    backbone = write_backbone(tmp_path / "backbone", "llama")
    scorer = Scorer(from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS)))
    kept: list[Trace] = []
    trainer = run(tmp_path / "run", scorer=scorer, environment_factory=Shelf, on_traces=kept.extend)
    assert all(np.isfinite(trace.states("prm")).all() for trace in kept)
    assert trainer.logged("steps") == [np.mean(STEPS)] * 2
    assert all(0 < share < 1 for share in trainer.logged("process_share"))


@pytest.mark.parametrize("prompt", ["How many rows?", QUESTION], ids=["plain", "chat"])
def test_answers_without_tools_are_one_step(tmp_path: Path, prompt: Any) -> None:
    scorer = Seen()
    trainer = run(
        tmp_path,
        Watched,
        scorer=scorer,
        shaping=ShapingConfig(mode="sum"),
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": [prompt] * 2}),
        args={"max_completion_length": 6},
    )
    traces = scorer.traces[:6]
    assert {trace.n_steps for trace in traces} == {1}
    scores = np.array([scores.actions[0] for scores in noise(traces)])
    _, output = trainer.batches[0]
    expected = (scores - scores.mean())[:, None] * output["completion_mask"].numpy()
    np.testing.assert_allclose(output["advantages"], expected, atol=1e-6)


def test_a_completion_without_an_assistant_message_is_refused() -> None:
    with pytest.raises(PRMError, match="completion 7: expected an assistant message at least"):
        trace_of(QUESTION, [{"role": "tool", "content": "row 1"}], id="7")
