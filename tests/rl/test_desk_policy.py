"""The base policy of desk: reproducible, taught by what agents wrote, and saved whole."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from prm.data.trace import text_of
from prm.errors import PRMError
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.belief import Tracker
from prm.rl.desk.dialogue import DeskDialogue
from prm.rl.desk.environment import Desk
from prm.rl.desk.play import Run, play
from prm.rl.desk.policy import (
    TEACHERS,
    Policy,
    PolicyConfig,
    _batches,
    _lessons,
    load_policy,
    save_policy,
    teach,
)
from prm.rl.desk.text import read_call
from prm.rl.desk.world import DeskConfig, desk_tasks
from prm.rl.rollout import roll_out
from prm.rl.rollout_record import SamplingConfig, Start

SMALL = PolicyConfig(n_tasks=12, steps=6, batch_size=8, hidden_size=16, n_layers=1, n_heads=2)
TASKS = desk_tasks(10, 0, "test")
RUNS = [Run(task, name, 9, i) for i, name in enumerate(AGENTS) for task in TASKS]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return teach(SMALL, seed=3)


def test_the_same_seed_gives_the_same_weights(policy: Policy) -> None:
    again, other = teach(SMALL, seed=3), teach(SMALL, seed=4)
    weights = [p.model.state_dict()["model.embed_tokens.weight"] for p in (policy, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert weights[0].shape != weights[2].shape or not torch.equal(weights[0], weights[2])


def test_teaching_makes_what_the_teachers_wrote_likelier(policy: Policy) -> None:
    untaught = teach(replace(SMALL, steps=1), seed=3)
    traces = _lessons(SMALL, 3)

    def loss(one: Policy) -> float:
        total = 0.0
        for trace in traces[:10]:
            ids, written = map(torch.tensor, one.dialogue.encode(trace))
            labels = ids.masked_fill(~written, -100)[None]
            total += one.model(input_ids=ids[None], labels=labels).loss.item()
        return total

    assert loss(policy) < loss(untaught) - 1


def test_a_saved_policy_acts_alike(policy: Policy, tmp_path: Path) -> None:
    save_policy(policy, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    starts = [Start(task, 5) for task in TASKS]
    one, two = (
        roll_out(p.model, p.dialogue, Desk(), starts, sampling=SamplingConfig(1.0, 8, 400), seed=0)
        for p in (policy, loaded)
    )
    assert [a.ids.tolist() for a in one] == [b.ids.tolist() for b in two]


def test_only_what_the_teacher_wrote_weighs_and_the_answer_weighs_more(policy: Policy) -> None:
    traces = _lessons(SMALL, 3)
    dialogue = policy.dialogue
    encoded = [dialogue.encode(trace) for trace in traces]
    by_ids = {tuple(ids): np.array(written) for ids, written in encoded}
    answered = practised = 0
    for ids, weights in _batches(encoded, dialogue, replace(SMALL, steps=20), 0):
        for row, weight in zip(ids.tolist(), weights.numpy(), strict=True):
            length = len(row) - row[::-1].index(dialogue.tokenizer.eos_token_id)
            written = by_ids[tuple(row[:length])]
            assert ((weight[:length] > 0) == written).all()
            for place in np.flatnonzero(weight == SMALL.handle_weight):
                assert re.fullmatch(r"r\d\d", dialogue.tokenizer.decode([row[place]]))
                practised += 1
            assert (weight[length:] == 0).all()
            heavy = np.flatnonzero(weight == SMALL.answer_weight)
            said = dialogue.tokenizer.decode(row[:length]).rstrip()
            last = said.removesuffix("<end>").rpartition("<end>")[2]
            assert (len(heavy) > 0) == ("> answer " in last)
            if len(heavy):
                answered += 1
                value = dialogue.tokenizer.decode([row[i] for i in heavy])
                assert re.fullmatch(r"\d{4}<end>", value)
    assert answered > 10
    assert practised > 100


def test_lessons_are_of_several_teachers_and_of_training_tasks_alone() -> None:
    traces = _lessons(SMALL, 3)
    assert all(trace.task_id.startswith("desk-train-3-") for trace in traces)
    assert {trace.policy for trace in traces} <= set(TEACHERS)
    assert {trace.meta["hops"] for trace in traces} == {0, 1, 2, 3, 4}
    for number in range(SMALL.n_tasks):
        own = traces[number * SMALL.samples : (number + 1) * SMALL.samples]
        assert len({trace.policy for trace in own}) == SMALL.samples
        assert len({trace.task_id for trace in own}) == 1


def test_thoughts_say_where_the_walk_stands() -> None:
    for trace in play(RUNS, seed=1, thoughts=True):
        tracker = Tracker(trace.prompt(), DeskConfig())
        links = (tracker.question.name, *tracker.question.path, tracker.question.field)
        for window in trace.windows():
            number, _, link = text_of(window.action["content"]).partition(". ")
            assert int(number) == len(tracker.path)
            assert link == links[int(number)]
            tracker.update(window.action, window.observations)


def test_thinking_traces_survive_the_dialogue(policy: Policy) -> None:
    dialogue = DeskDialogue(policy.dialogue.tokenizer)
    for trace in play(RUNS, seed=1, thoughts=True):
        ids, written = dialogue.encode(trace)
        edges = np.flatnonzero(np.diff([False, *written, False]))
        steps = [ids[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
        for turn, (step, window) in enumerate(zip(steps, trace.windows(), strict=True)):
            parsed = dialogue.parse(step, turn)
            assert isinstance(read_call(window.action), str) or parsed == window.action


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PRMError, match="seed: expected 0 or more, found -1"):
        teach(SMALL, seed=-1)
    with pytest.raises(PRMError, match="expected a folder of save_policy, found none"):
        load_policy(tmp_path)
