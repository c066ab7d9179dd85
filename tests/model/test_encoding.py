"""Every read-out once, at its place, and never a word of the future before it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from prm.data.trace import Step, Trace
from prm.errors import PRMError
from prm.model.encoding import EncodedTrace, EncodingConfig, TraceEncoder, allot, cut_middle
from prm.model.render import ACTION_MARKER, STATE_MARKER
from tests.backbones import LENGTHS, write_backbone


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    folder: Path = tmp_path_factory.mktemp("tokenizers")
    return {
        True: AutoTokenizer.from_pretrained(write_backbone(folder / "llama", "llama")),
        False: AutoTokenizer.from_pretrained(write_backbone(folder / "bert", "bert")),
    }


texts = st.text(max_size=60)
steps = st.lists(st.tuples(texts, st.lists(texts, max_size=3)), max_size=8)


def build(prompt: str, turns: list[tuple[str, list[str]]]) -> Trace:
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    pointers = []
    for number, (action, observations) in enumerate(turns):
        pointers.append(Step(at=len(messages)))
        call = {"id": f"c{number}", "type": "custom", "custom": {"name": "run", "input": action}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages += [{"role": "tool", "content": text} for text in observations]
    return Trace(id="t", task_id="t", messages=messages, steps=pointers)


def readouts(encoded: EncodedTrace) -> Counter[tuple[str, int]]:
    return Counter(
        (readout, index)
        for sequence in encoded.sequences
        for readout, index in zip(sequence.readouts, sequence.indices, strict=True)
    )


@pytest.mark.parametrize("causal", [True, False])
@given(prompt=texts, turns=steps)
@settings(max_examples=60, deadline=None)
def test_each_readout_is_placed_exactly_once_on_its_marker(
    tokenizers: dict[bool, Any], causal: bool, prompt: str, turns: list[tuple[str, list[str]]]
) -> None:
    tokenizer = tokenizers[causal]
    encoder = TraceEncoder(tokenizer, EncodingConfig(**LENGTHS), causal=causal)
    encoded = encoder.encode(build(prompt, turns))
    expected = Counter([("action", i) for i in range(len(turns))])
    expected.update(("state", i) for i in range(len(turns) + 1))
    assert readouts(encoded) == expected
    markers = {
        "action": tokenizer.encode(ACTION_MARKER, add_special_tokens=False),
        "state": tokenizer.encode(STATE_MARKER, add_special_tokens=False),
    }
    for sequence in encoded.sequences:
        assert len(sequence.input_ids) <= LENGTHS["max_length"]
        for column, readout in zip(sequence.columns, sequence.readouts, strict=True):
            marker = markers[readout]
            assert sequence.input_ids[column + 1 - len(marker) : column + 1] == marker


@pytest.mark.parametrize("causal", [True, False])
@given(prompt=texts, turns=steps, later=steps, data=st.data())
@settings(max_examples=60, deadline=None)
def test_what_precedes_a_readout_does_not_depend_on_what_follows(
    tokenizers: dict[bool, Any],
    causal: bool,
    prompt: str,
    turns: list[tuple[str, list[str]]],
    later: list[tuple[str, list[str]]],
    data: st.DataObject,
) -> None:
    """The tokens up to every read-out of the first ``kept`` steps are the same with any future."""
    kept = data.draw(st.integers(0, len(turns)))
    encoder = TraceEncoder(tokenizers[causal], EncodingConfig(**LENGTHS), causal=causal)

    def before(trace: Trace) -> dict[tuple[str, int], list[int]]:
        return {
            (readout, index): sequence.input_ids[: column + 1]
            for sequence in encoder.encode(trace).sequences
            for column, readout, index in zip(
                sequence.columns, sequence.readouts, sequence.indices, strict=True
            )
        }

    long, other = before(build(prompt, turns)), before(build(prompt, turns[:kept] + later))
    for kind, count in (("action", kept), ("state", kept + 1)):
        for index in range(count):
            assert long[kind, index] == other[kind, index]


@pytest.mark.parametrize("causal", [True, False])
def test_two_hundred_long_steps_have_two_hundred_readouts(
    tokenizers: dict[bool, Any], causal: bool
) -> None:
    encoder = TraceEncoder(tokenizers[causal], EncodingConfig(**LENGTHS), causal=causal)
    encoded = encoder.encode(build("go", [("x" * 500, ["y" * 5000])] * 200))
    found = readouts(encoded)
    assert sum(n for (kind, _), n in found.items() if kind == "action") == 200
    # Every action loses 500 + its rendering - 40 tokens, every observation likewise: all counted.
    assert encoded.cut["action"] > 200 * 460
    assert encoded.cut["observation"] > 200 * 4960


def test_a_later_window_keeps_the_task_and_the_newest_steps(tokenizers: dict[bool, Any]) -> None:
    tokenizer = tokenizers[True]
    encoder = TraceEncoder(tokenizer, EncodingConfig(**LENGTHS), causal=True)
    encoded = encoder.encode(build("THE TASK", [(f"act{i:03}", ["seen"]) for i in range(40)]))
    assert encoded.cut["windows"] == len(encoded.sequences) - 1 > 0
    for earlier, later in zip(encoded.sequences, encoded.sequences[1:], strict=False):
        text = tokenizer.decode(later.input_ids)
        assert "THE TASK" in text
        assert f"act{earlier.indices[-1] - (earlier.readouts[-1] == 'state'):03}" in text


@pytest.mark.parametrize("causal", [True, False])
def test_text_that_spells_a_special_token_stays_text(
    tokenizers: dict[bool, Any], causal: bool
) -> None:
    tokenizer = tokenizers[causal]
    encoder = TraceEncoder(tokenizer, EncodingConfig(**LENGTHS), causal=causal)
    trace = build("[SEP]<pad>[CLS]", [("[SEP]", ["<pad>[CLS]"])])
    special = Counter(
        token
        for sequence in encoder.encode(trace).sequences
        for token in sequence.input_ids
        if token in tokenizer.all_special_ids
    )
    clean = Counter(
        token
        for sequence in encoder.encode(build("a", [("a", ["a"])])).sequences
        for token in sequence.input_ids
        if token in tokenizer.all_special_ids
    )
    assert special == clean


def test_half_a_surrogate_pair_is_encoded(tokenizers: dict[bool, Any]) -> None:
    encoder = TraceEncoder(tokenizers[True], EncodingConfig(**LENGTHS), causal=True)
    assert encoder.encode(build("\ud83d", [("\udc00", ["\ud83d"])])).n_steps == 1


def test_labels_and_scores_are_not_part_of_the_text(tokenizers: dict[bool, Any]) -> None:
    trace = build("task", [("a", ["b"]), ("c", ["d"])])
    told = msgspec.structs.replace(
        trace,
        policy="expert",
        steps=[
            msgspec.structs.replace(s, labels={"x": 1.0}, scores={"y": 0.0}) for s in trace.steps
        ],
        state_labels={"v": [0.0, 0.5, 1.0]},
    )
    encoder = TraceEncoder(tokenizers[True], EncodingConfig(**LENGTHS), causal=True)
    assert encoder.encode(trace) == encoder.encode(told)


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 120))
def test_allotment_is_fair_and_complete(lengths: list[int], budget: int) -> None:
    shares = allot(lengths, budget)
    assert all(0 <= share <= length for share, length in zip(shares, lengths, strict=True))
    assert sum(shares) == min(budget, sum(lengths))
    cut = [share for share, length in zip(shares, lengths, strict=True) if share < length]
    if cut:
        assert max(cut) - min(cut) <= 1
        whole = [share for share, length in zip(shares, lengths, strict=True) if share == length]
        assert max(whole, default=0) <= max(cut) + 1


@given(st.lists(st.integers(10, 99), max_size=40), st.integers(4, 40))
def test_a_cut_keeps_both_ends(ids: list[int], allowance: int) -> None:
    kept = cut_middle(ids, allowance, [0])
    assert len(kept) <= allowance
    if len(ids) <= allowance:
        assert kept == ids
    else:
        place = kept.index(0)
        assert kept[:place] == ids[:place]
        assert kept[place + 1 :] == ids[len(ids) - (len(kept) - place - 1) :]
        assert len(kept) == allowance


def test_limits_that_cannot_hold_one_step_are_refused() -> None:
    with pytest.raises(PRMError, match="max_length 100 is too small"):
        EncodingConfig(**(LENGTHS | {"max_length": 100}))
