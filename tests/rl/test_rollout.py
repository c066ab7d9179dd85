"""Rollouts are what the model would have written, and say exactly what it wrote."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from prm.data.files import read_traces, write_traces
from prm.data.trace import Message
from prm.errors import PRMError
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.dialogue import DeskDialogue, desk_tokenizer
from prm.rl.desk.environment import Desk
from prm.rl.desk.play import Run, annotate, play
from prm.rl.desk.text import read_call
from prm.rl.desk.world import Task, desk_tasks
from prm.rl.environment import BrokenEpisodes, Transition
from prm.rl.rollout import draw, roll_out
from prm.rl.rollout_record import Rollout, SamplingConfig, Start
from prm.rl.rows import RowCache
from prm.shaping import spans_from_mask

SAMPLING = SamplingConfig(temperature=1.5, max_step_tokens=8, max_tokens=700)
GREEDY = SamplingConfig(temperature=0.0, max_step_tokens=8, max_tokens=700)
TASKS = desk_tasks(12, 0, "train")
STARTS = [Start(task, 1 + i % 9, i % 2) for i, task in enumerate(TASKS)]
TRACES = play(
    [Run(task, name, 9, i) for i, name in enumerate(AGENTS) for task in TASKS[:4]], seed=0
)


SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": None,
    "eos_token_id": None,
}


@pytest.fixture(scope="module")
def dialogue() -> DeskDialogue:
    return DeskDialogue(desk_tokenizer(TRACES, vocabulary=700))


@pytest.fixture(scope="module")
def model(dialogue: DeskDialogue) -> LlamaForCausalLM:
    """Taught for a moment, so that some of its steps are calls and end by themselves."""
    torch.manual_seed(0)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(dialogue.tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for trace in [trace for trace in TRACES if trace.meta["voice"] == "silent"] * 3:
        ids, written = map(torch.tensor, dialogue.encode(trace))
        loss = network(input_ids=ids[None], labels=ids.masked_fill(~written, -100)[None]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return network


@pytest.fixture(scope="module")
def rollouts(model: LlamaForCausalLM, dialogue: DeskDialogue) -> list[Rollout]:
    return roll_out(model, dialogue, Desk(), STARTS, sampling=SAMPLING, seed=0, policy="tiny")


def same(one: Rollout, other: Rollout) -> bool:
    return one.trace == other.trace and one.ids.tolist() == other.ids.tolist()


def test_the_sample_is_varied(dialogue: DeskDialogue, rollouts: list[Rollout]) -> None:
    steps = [read_call(w.action) for rollout in rollouts for w in rollout.trace.windows()]
    malformed = sum(isinstance(step, str) for step in steps)
    assert 0 < malformed < len(steps)
    stopped = [r.ids[end - 1] in dialogue.stop_ids for r in rollouts for _, end in r.spans]
    assert 0 < sum(stopped) < len(stopped)
    assert len({end - start for r in rollouts for start, end in r.spans}) > 3
    assert len({r.trace.n_steps for r in rollouts}) > 3


def test_log_probabilities_are_those_of_a_full_pass(
    model: LlamaForCausalLM, rollouts: list[Rollout]
) -> None:
    for rollout in rollouts:
        ids = torch.from_numpy(rollout.ids)[None]
        with torch.no_grad():
            logits = model.eval()(input_ids=ids).logits[0, :-1] / SAMPLING.temperature
        full = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()
        written = rollout.token_mask
        assert not written[0]
        np.testing.assert_allclose(rollout.log_probs[1:][written[1:]], full[written[1:]], atol=1e-4)
        assert np.isnan(rollout.log_probs[~written]).all()


def test_spans_are_those_of_the_mask(rollouts: list[Rollout]) -> None:
    for rollout in rollouts:
        assert spans_from_mask(rollout.token_mask) == rollout.spans
        assert len(rollout.spans) == rollout.trace.n_steps == len(rollout.rewards)
        assert rollout.spans[-1][1] == len(rollout.ids)


def test_no_budget_is_exceeded(rollouts: list[Rollout]) -> None:
    for rollout, start in zip(rollouts, STARTS, strict=True):
        outcome = rollout.trace.outcome
        assert outcome.max_turns == start.max_turns
        assert 1 <= rollout.trace.n_steps <= start.max_turns
        assert (outcome.status == "completed") or rollout.trace.n_steps == start.max_turns
        assert all(end - begin <= SAMPLING.max_step_tokens for begin, end in rollout.spans)


def test_ids_say_what_the_messages_say(dialogue: DeskDialogue, rollouts: list[Rollout]) -> None:
    for rollout in rollouts:
        prompt = dialogue.prompt(rollout.trace.prompt(), rollout.trace.tools or [])
        assert rollout.ids[: rollout.spans[0][0]].tolist() == prompt
        for (start, end), window in zip(rollout.spans, rollout.trace.windows(), strict=True):
            assert dialogue.parse(rollout.ids[start:end].tolist(), window.index) == window.action


def test_a_rollout_depends_on_its_seed_alone(
    model: LlamaForCausalLM, dialogue: DeskDialogue, rollouts: list[Rollout]
) -> None:
    def again(starts: list[Start[Task]], seed: int) -> list[Rollout]:
        return roll_out(
            model, dialogue, Desk(), starts, sampling=SAMPLING, seed=seed, policy="tiny"
        )

    alone = [again([start], 0)[0] for start in STARTS[:5]]
    backwards = again(STARTS[::-1], 0)[::-1]
    assert all(map(same, again(STARTS, 0), rollouts))
    assert all(map(same, alone, rollouts[:5]))
    assert all(map(same, backwards, rollouts))
    assert not any(map(same, again(STARTS, 1), rollouts))


def test_traces_are_records(tmp_path: Path, rollouts: list[Rollout]) -> None:
    traces = [rollout.trace for rollout in rollouts]
    for name in ("a.jsonl", "a.parquet"):
        assert write_traces(traces, tmp_path / name) == len(traces)
        assert list(read_traces(tmp_path / name)) == traces
    for trace in traces:
        values = annotate(trace).state_labels["v"]
        assert len(values) == trace.n_steps + 1


def test_greedy_is_generate_called_turn_by_turn(
    model: LlamaForCausalLM, dialogue: DeskDialogue
) -> None:
    for start, rollout in zip(
        STARTS,
        roll_out(model, dialogue, Desk(), STARTS, sampling=GREEDY, seed=0),
        strict=True,
    ):
        assert rollout.ids.tolist() == turn_by_turn(model, dialogue, start)
        assert (rollout.log_probs[rollout.token_mask] == 0).all()


def turn_by_turn(model: LlamaForCausalLM, dialogue: DeskDialogue, start: Start[Task]) -> list[int]:
    desk = Desk()
    prompts, tools = desk.reset([start.task], start.max_turns, start.sample)
    ids = dialogue.prompt(prompts[0], tools)
    for turn in range(start.max_turns):
        given = torch.tensor([ids])
        written = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            do_sample=False,
            max_new_tokens=GREEDY.max_step_tokens,
            eos_token_id=list(dialogue.stop_ids),
            pad_token_id=dialogue.pad_id,
        )[0, len(ids) :].tolist()
        ids += written
        step = desk.step([dialogue.parse(written, turn)])
        if step.terminated[0] or step.truncated[0]:
            break
        ids += dialogue.follow(step.observations[0], stopped=written[-1] in dialogue.stop_ids)
    return ids


class Fragile(Desk):
    """Breaks in the second turn: episode 2 alone, or all."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        self._alone, self._turns = alone, 0

    def step(self, actions: Sequence[Message | None]) -> Transition:
        self._turns += 1
        if self._turns == 2 and not self._alone:
            raise OSError("gone")
        ended = [episode.ended for episode in self._episodes]
        given = [
            None if over else (action or {"role": "assistant", "content": ""})
            for action, over in zip(actions, ended, strict=True)
        ]
        transition = super().step(given)
        if self._turns == 2:
            raise BrokenEpisodes(transition, {2: OSError("gone")})
        if self._turns > 2:
            assert actions[2] is None
        return transition


def test_an_episode_that_breaks_is_kept_as_invalid_and_the_others_go_on(
    model: LlamaForCausalLM,
    dialogue: DeskDialogue,
    rollouts: list[Rollout],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = roll_out(
            model, dialogue, Fragile(alone=True), STARTS, sampling=SAMPLING, seed=0, policy="tiny"
        )
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 12 rollouts broke in the environment and are kept as invalid; "
        "the first: OSError: gone"
    ]
    assert all(same(a, b) for i, (a, b) in enumerate(zip(found, rollouts, strict=True)) if i != 2)
    broken = found[2].trace
    broken.check()
    assert (broken.outcome.valid, broken.outcome.reward, broken.outcome.success) == (
        False,
        None,
        None,
    )
    assert (broken.outcome.status, broken.n_steps) == ("environment_error", 2)
    assert broken.messages[-1]["role"] == "assistant"
    assert spans_from_mask(found[2].token_mask) == found[2].spans
    assert np.isnan(found[2].rewards[-1])


def test_an_environment_that_breaks_ends_what_was_going_on(
    model: LlamaForCausalLM, dialogue: DeskDialogue, rollouts: list[Rollout]
) -> None:
    found = roll_out(
        model, dialogue, Fragile(alone=False), STARTS, sampling=SAMPLING, seed=0, policy="tiny"
    )
    for rollout, whole in zip(found, rollouts, strict=True):
        assert rollout.trace.outcome.valid == (whole.trace.n_steps == 1)
        assert rollout.trace.n_steps == min(whole.trace.n_steps, 2)


def test_a_rollout_without_room_for_a_step_ends_and_the_others_go_on(
    model: LlamaForCausalLM, dialogue: DeskDialogue, rollouts: list[Rollout]
) -> None:
    room = int(np.median([len(rollout.ids) for rollout in rollouts]))
    tight = replace(SAMPLING, max_tokens=room)
    found = roll_out(model, dialogue, Desk(), STARTS, sampling=tight, seed=0, policy="tiny")
    statuses = [rollout.trace.outcome.status for rollout in found]
    assert "agent_error" in statuses
    assert len(set(statuses)) > 1
    for rollout, whole in zip(found, rollouts, strict=True):
        assert len(rollout.ids) <= room
        assert rollout.ids.tolist() == whole.ids[: len(rollout.ids)].tolist()
        if rollout.trace.outcome.status != "agent_error":
            assert same(rollout, whole)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]])
    uniforms = (np.arange(4000) + 0.5) / 4000
    tokens, log_probs = draw(logits.expand(4000, -1), 0.5, uniforms)
    probs = (logits[0] / 0.5).softmax(-1)
    np.testing.assert_allclose(tokens.bincount(minlength=4) / 4000, probs, atol=1e-3)
    torch.testing.assert_close(log_probs, probs.log()[tokens])


@pytest.mark.parametrize("trace", TRACES[::5], ids=lambda trace: trace.id)
def test_desk_lines_are_read_back(dialogue: DeskDialogue, trace: Any) -> None:
    ids, written = dialogue.encode(trace)
    for (start, end), window in zip(
        spans_from_mask(np.array(written)), trace.windows(), strict=True
    ):
        said, meant = dialogue.parse(ids[start:end], window.index), window.action
        call = read_call(meant)
        assert (said.get("content") or "") == (meant.get("content") or "")
        assert read_call(said) == call if not isinstance(call, str) else "tool_calls" not in said


@pytest.mark.parametrize(
    ("starts", "sampling", "message"),
    [
        ([Start(TASKS[0], 0)], SAMPLING, "max_turns of 1 or more"),
        ([STARTS[0], STARTS[0]], SAMPLING, "expected once, found twice"),
        (STARTS, SamplingConfig(1.0, 12, 2000), "at most 1024, the positions of the model"),
        (STARTS, SamplingConfig(1.0, 12, 20), "expected a prompt of 1 to 8 tokens"),
    ],
)
def test_what_does_not_fit_is_said(
    model: LlamaForCausalLM,
    dialogue: DeskDialogue,
    starts: list[Start[Task]],
    sampling: SamplingConfig,
    message: str,
) -> None:
    with pytest.raises(PRMError, match=message):
        roll_out(model, dialogue, Desk(), starts, sampling=sampling, seed=0)


@pytest.mark.parametrize(
    "kwargs", [{"temperature": -1.0}, {"temperature": float("nan")}, {"max_step_tokens": 0}]
)
def test_bad_sampling_is_said(kwargs: dict[str, Any]) -> None:
    with pytest.raises(PRMError, match="expected"):
        SamplingConfig(**kwargs)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES, intermediate_size=64, max_position_embeddings=64),
        Qwen3Config(**SIZES, intermediate_size=64, num_key_value_heads=2, head_dim=8),
        GPT2Config(**SIZES, n_positions=40),
    ],
    ids=lambda config: config.model_type,
)
def test_rows_are_read_as_if_each_were_alone(config: PreTrainedConfig, attention: str) -> None:
    """Any rows, chunks of any length, rows that are dropped: logits are those of a full pass."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    rng = np.random.default_rng(0)
    cache, left = RowCache(model, 8), list(range(8))
    texts: list[list[int]] = [[] for _ in left]
    with torch.inference_mode():
        for turn in range(9):
            rows = sorted(rng.choice(left, size=rng.integers(1, len(left) + 1), replace=False))
            chunks = [rng.integers(50, size=rng.integers(1, 5)).tolist() for _ in rows]
            logits = cache.read(rows, chunks)
            for row, chunk, found in zip(rows, chunks, logits, strict=True):
                texts[row] += chunk
                full = model(input_ids=torch.tensor([texts[row]])).logits[0, -1]
                torch.testing.assert_close(found, full, atol=1e-5, rtol=1e-4)
            if turn in (2, 4, 6):
                left = left[1:-1] if turn == 4 else left[:-1]
                cache.keep(left)


def test_models_that_forget_are_refused() -> None:
    config = MistralConfig(**SIZES, intermediate_size=64, num_key_value_heads=2, sliding_window=8)
    with pytest.raises(PRMError, match="every layer attends to the whole past"):
        RowCache(AutoModelForCausalLM.from_config(config), 1)


class Mute(DeskDialogue):
    def follow(self, observations: Sequence[Message], *, stopped: bool) -> list[int]:
        return []


def test_steps_that_would_touch_are_refused(
    model: LlamaForCausalLM, dialogue: DeskDialogue
) -> None:
    with pytest.raises(PRMError, match="at least one token between two steps"):
        roll_out(model, Mute(dialogue.tokenizer), Desk(), STARTS, sampling=SAMPLING, seed=0)
