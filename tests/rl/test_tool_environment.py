"""Episodes of tool classes: what TRL answers, what is refused, and what breaks alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.chat_template_utils import get_json_schema
from trl.trainer import grpo_trainer

from prm.data.files import read_traces, write_traces
from prm.data.trace import Message
from prm.errors import PRMError
from prm.rl.environment import BrokenEpisodes, Transition
from prm.rl.rollout import roll_out
from prm.rl.rollout_record import SamplingConfig, Start
from prm.rl.tool_environment import ToolEnvironment, ToolTask, tool_tasks


class Ledger:
    """Reach a total: tools that add, that refuse, and some that are none."""

    made: int = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.paid = 0

    def reset(self, target: int, **columns: Any) -> str | None:
        self.target, self.total, self.columns, self.paid = target, 0, columns, 0
        return f" Reach {target}." if target < 100 else None

    def add(self, amount: int, times: int = 1) -> int:
        """Add to the total.

        Args:
            amount: What to add.
            times: How often.
        """
        self.total += amount * times
        return self.total

    def fill(self, items: list[int]) -> dict[str, Any]:
        """Add many amounts and forget them.

        Args:
            items: What to add.
        """
        self.total += sum(items)
        items.clear()
        return {"total": self.total}

    def refuse(self) -> str:
        """Refuse."""
        raise PermissionError("not today")

    @staticmethod
    def hint() -> str:
        """Give a hint."""
        return "add"

    def get_reward(self) -> float:
        self.paid += 1
        return float(self.total == self.target)

    def _secret(self) -> str:
        """Not a tool."""
        return "secret"

    @property
    def broken(self) -> bool:
        raise AssertionError("a property must not be evaluated")


TASKS = tool_tasks([{"target": n, "prompt": f"Task {n}."} for n in (2, 3, 5, 7, 11, 150)])


def call(name: str | None, arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function, **more}


def says(*calls: dict[str, Any]) -> Message:
    return {"role": "assistant", "content": "", **({"tool_calls": list(calls)} if calls else {})}


def random_message(rng: np.random.Generator) -> Message:
    """Calls that are right, that raise, that are unknown, or whose arguments do not fit."""
    calls = [
        call("add", {"amount": int(rng.integers(3)), "times": 2}),
        call("add", {"amount": 1}),
        call("add", {"number": 1}),
        call("add", {"amount": "a"}),
        call("fill", {"items": rng.integers(4, size=3).tolist()}),
        call("refuse", {}),
        call("hint", {}),
        call("reset", {"target": 0}),
        call("get_reward", {}),
        call("_secret", {}),
        call("no such tool", {}),
        {"type": "lookup", "name": "table"},
    ]
    return says(*(calls[i] for i in rng.integers(len(calls), size=rng.integers(1, 4))))


def play(
    environment: ToolEnvironment, tasks: Sequence[ToolTask], scripts: Sequence[list[Message]]
) -> list[tuple[list[list[Message]], list[float], str]]:
    """Observations, rewards and end of each episode, every script being as long as its budget."""
    environment.reset(tasks, [len(script) for script in scripts], [0] * len(tasks))
    found: list[Any] = [([], [], "") for _ in tasks]
    turn = 0
    while not all(end for _, _, end in found):
        transition = environment.step(
            [
                None if end else script[turn]
                for (_, _, end), script in zip(found, scripts, strict=True)
            ]
        )
        for i, (observations, rewards, end) in enumerate(found):
            if end:
                assert transition.observations[i] == []
                continue
            observations.append(transition.observations[i])
            rewards.append(transition.rewards[i])
            truncated = "truncated" if transition.truncated[i] else ""
            over = "terminated" if transition.terminated[i] else truncated
            found[i] = (observations, rewards, over)
        turn += 1
    return found


def scripts_of(seed: int, lengths: Sequence[int]) -> list[list[Message]]:
    """Random calls, the last message of a script being a final answer in half of them."""
    rng = np.random.default_rng(seed)
    return [
        [*(random_message(rng) for _ in range(n - 1)), says() if n % 2 else random_message(rng)]
        for n in lengths
    ]


def trl_loop(
    monkeypatch: pytest.MonkeyPatch, task: ToolTask, script: list[Message]
) -> list[Message]:
    """The messages after the prompt by TRL's own loop, the model being replaced by a script."""
    ledger = Ledger()
    ledger.reset(**task.columns)
    names = ["add", "fill", "refuse", "hint"]
    rest = iter(script[1:])
    monkeypatch.setattr(grpo_trainer, "parse_response", lambda *_, **__: next(rest, {}))
    trainer = SimpleNamespace(
        _sync_tool_dicts=[{name: getattr(ledger, name) for name in names}],
        _async_tool_dicts=[{}],
        _get_tool_suffix_ids=lambda messages: [0],
        _generate_single_turn=lambda *_, **__: ([[1]], None),
        _is_vlm=False,
        _tokenizer=None,
        environment_factories=None,
        max_completion_length=10**6,
        max_tool_calling_iterations=10**6,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=10**6)),
        tools=[],
        use_vllm=False,
    )
    loop: Any = grpo_trainer.GRPOTrainer._tool_call_loop
    _, completions, *_ = loop(trainer, [[]], [[0]], [[1]], [[script[0]]], None, None, {})
    return list(completions[0])


@pytest.mark.parametrize("seed", range(20))
def test_calls_are_answered_as_the_loop_of_trl_answers_them(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    (script,) = scripts_of(seed, [2 + seed % 5])
    answers, _, _ = play(ToolEnvironment(Ledger), TASKS[:1], [script])[0]
    ours = [message for answer in answers for message in answer]
    theirs = trl_loop(monkeypatch, TASKS[0], json.loads(json.dumps(script)))
    assert ours == [message for message in theirs if message["role"] == "tool"]
    assert len(ours) >= len(script) - 1


def test_arguments_as_json_do_what_arguments_as_objects_do() -> None:
    objects = scripts_of(0, [8, 9, 8])
    texts = json.loads(json.dumps(objects))
    for script in texts:
        for each in (c for m in script for c in m.get("tool_calls", ())):
            if "function" in each:
                each["function"]["arguments"] = json.dumps(each["function"]["arguments"])
    environment = ToolEnvironment(Ledger)
    assert play(environment, TASKS[:3], objects) == play(environment, TASKS[:3], texts)


def test_what_a_tool_does_to_its_arguments_is_not_done_to_the_message() -> None:
    action = says(call("fill", {"items": [1, 1]}))
    answers, rewards, _ = play(ToolEnvironment(Ledger), TASKS[:1], [[action]])[0]
    assert action == says(call("fill", {"items": [1, 1]}))
    assert answers[0][0]["content"] == "{'total': 2}"
    assert rewards == [1.0]


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (call("add", "{'amount': 1}"), "Expecting property name"),
        (call("add", ""), "Expecting value"),
        (call("add", "[1]"), "must be a JSON object, not list"),
        (call("add", None), "must be a JSON object, not NoneType"),
        (call("add", "[" * 100_000), "recursion"),
        (call(None, "{}"), "Tool unknown not found."),
        ({"type": "function", "function": None}, "Tool unknown not found."),
        ({"type": "custom", "custom": {"name": "add"}}, "Unsupported tool call type: custom"),
    ],
)
def test_a_call_that_cannot_be_read_is_answered_and_costs_its_turn(
    bad: dict[str, Any], sentence: str
) -> None:
    script = [says(bad), says(call("add", '{"amount": 2}')), says()]
    answers, rewards, end = play(ToolEnvironment(Ledger), TASKS[:1], [script])[0]
    (answer,) = answers[0]
    assert answer["content"].startswith("{'error': ")
    assert sentence in answer["content"]
    assert (rewards, end) == ([0.0, 0.0, 1.0], "terminated")


def test_answers_are_named_by_the_ids_of_their_calls() -> None:
    action = says(call("hint", {}, id="a"), call("hint", {}), call("gone", {}, id="a"))
    answers, _, _ = play(ToolEnvironment(Ledger), TASKS[:1], [[action]])[0]
    assert [answer.get("tool_call_id") for answer in answers[0]] == ["a", None, "a"]
    legacy = {"role": "assistant", "content": None, "function_call": call("hint", {})["function"]}
    answers, _, _ = play(ToolEnvironment(Ledger), TASKS[:1], [[legacy]])[0]
    assert answers == [[{"role": "tool", "name": "hint", "content": "add"}]]


def test_the_reward_is_paid_once_at_the_end_whichever_it_is() -> None:
    lengths = [1, 2, 3, 4, 5, 6]
    for seed in range(10):
        environment = ToolEnvironment(Ledger)
        found = play(environment, TASKS, scripts_of(seed, lengths))
        ledgers = [environment._instances[i] for i in range(len(TASKS))]
        for (observations, rewards, end), ledger, length in zip(
            found, ledgers, lengths, strict=True
        ):
            assert len(rewards) == len(observations) == length
            assert rewards == [0.0] * (length - 1) + [float(ledger.total == ledger.target)]
            assert end == ("terminated" if length % 2 else "truncated")
            assert ledger.paid == 1


def test_episodes_side_by_side_are_the_episodes_alone_on_new_and_on_used_instances() -> None:
    lengths = [4, 1, 7, 2, 5, 3]
    together, one = ToolEnvironment(Ledger), ToolEnvironment(Ledger)
    before = Ledger.made
    for seed in range(5):
        scripts = scripts_of(seed, lengths)
        found = play(together, TASKS, scripts)
        alone = [
            play(environment, [task], [script])[0]
            for task, script in zip(TASKS, scripts, strict=True)
            for environment in (one if seed % 2 else ToolEnvironment(Ledger),)
        ]
        assert found == alone
    assert Ledger.made - before == 5 + 3 * 6  # five more than the first probe, and the new ones


def test_tools_are_the_public_methods_with_the_schemas_of_transformers() -> None:
    tools = ToolEnvironment(Ledger).reset(TASKS[:1], [1], [0]).tools
    methods: list[Any] = [Ledger.add, Ledger.fill, Ledger.hint, Ledger.refuse]
    assert tools == [get_json_schema(method) for method in methods]


def test_the_row_goes_to_reset_and_its_text_to_the_end_of_the_prompt() -> None:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    rows: list[dict[str, Any]] = [
        {"target": 2, "prompt": prompt, "level": 3},
        {"target": 200, "prompt": prompt},
        {"target": 2},
    ]
    environment = ToolEnvironment(Ledger)
    prompts = environment.reset(tool_tasks(rows), [1] * 3, [0] * 3).messages
    assert prompts == [
        [prompt[0], {"role": "user", "content": "Go. Reach 2."}],
        prompt,
        [{"role": "user", "content": " Reach 2."}],
    ]
    assert prompt[1] == {"role": "user", "content": "Go."}
    assert environment._instances[0].columns == {"prompt": prompt, "level": 3}


class Told(Ledger):
    def reset(self, target: int, max_turns: int, sample: int, **columns: Any) -> str:  # type: ignore[override]
        super().reset(target, **columns)
        return f" {max_turns} {sample} {sorted(columns)}"


def test_reset_is_told_turns_and_sample_where_it_has_a_parameter_for_them() -> None:
    prompts = ToolEnvironment(Told).reset(TASKS[:2], [4, 9], [0, 3]).messages
    contents = [prompt[-1]["content"] for prompt in prompts]
    assert contents == ["Task 2. 4 0 ['prompt']", "Task 3. 9 3 ['prompt']"]


class Silent:
    def reset(self, target: int, prompt: str) -> None:
        self.target = target


def test_a_function_may_pay_in_place_of_the_class() -> None:
    def right(instance: Silent, task: ToolTask, messages: list[Message]) -> float:
        assert instance.target == task.columns["target"]
        return float(messages[-1]["content"] == messages[0]["content"])

    environment = ToolEnvironment(Silent, reward=right)
    assert environment.reset(TASKS[:2], [3, 3], [0, 0]).tools == []
    said: Message = {"role": "assistant", "content": "Task 2."}
    assert environment.step([said, said]).rewards.tolist() == [1.0, 0.0]
    with pytest.raises(PRMError, match="expected a method get_reward or a function reward"):
        ToolEnvironment(Silent)


class Brittle(Ledger):
    """Cannot pay when the total is 13, pays NaN at 14, and has tools that misbehave."""

    def images(self) -> list[Any]:
        """Return images."""
        return [{"type": "image"}]

    def get_reward(self) -> float:
        if self.total == 13:
            raise ConnectionError("judge gone")
        return float("nan") if self.total == 14 else super().get_reward()


@pytest.mark.parametrize(
    ("breaking", "error"),
    [
        (says(call("add", {"amount": 13})), "ConnectionError: judge gone"),
        (says(call("add", {"amount": 14})), "expected a finite number, found nan"),
        (says(call("images", {})), "tool images: expected a result other than a list"),
    ],
)
def test_an_episode_that_breaks_leaves_the_others_as_they_are(
    breaking: Message, error: str
) -> None:
    scripts = [[says(call("add", {"amount": 1}))] * 3 for _ in range(4)]
    whole = play(ToolEnvironment(Brittle), TASKS[:4], scripts)
    environment = ToolEnvironment(Brittle)
    environment.reset(TASKS[:4], [3, 1, 3, 3], [0] * 4)
    broken_instance = environment._instances[1]
    step = says(call("add", {"amount": 1}))
    with pytest.raises(BrokenEpisodes) as caught:
        environment.step([step, breaking, step, step])
    assert list(caught.value.errors) == [1]
    assert error in str(caught.value)
    transitions = [caught.value.transition]
    with pytest.raises(PRMError, match="episode 1 has ended"):
        environment.step([step] * 4)
    transitions += [environment.step([step, None, step, step]) for _ in range(2)]
    assert np.isnan(transitions[0].rewards[1])
    assert not any(t.terminated[1] or t.truncated[1] or t.observations[1] for t in transitions)
    for i in (0, 2, 3):
        assert [t.observations[i] for t in transitions] == whole[i][0]
        assert [t.rewards[i] for t in transitions] == whole[i][1]
    environment.reset(TASKS[:4], [1] * 4, [0] * 4)
    assert environment._instances[1] is not broken_instance


def test_an_answer_that_cannot_be_paid_is_no_end() -> None:
    def gone(*_: Any) -> float:
        raise ConnectionError("judge gone")

    environment = ToolEnvironment(Ledger, reward=gone)
    environment.reset(TASKS[:1], [1], [0])
    with pytest.raises(BrokenEpisodes, match="episode 0: ConnectionError: judge gone") as caught:
        environment.step([says()])
    assert not caught.value.transition.terminated[0]
    assert environment.step([None]).observations == [[]]


class Letters:
    """Bytes as tokens; a line with a letter in it is a call, each letter naming a tool."""

    stop_ids = frozenset({10})
    tools = {"a": "add", "f": "fill", "r": "refuse", "x": "nothing", "i": "images"}

    def prompt(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> list[int]:
        return self._ids(messages)

    def follow(self, observations: Sequence[Message], *, stopped: bool) -> list[int]:
        return [*([] if stopped else [10]), *self._ids(observations), 62]

    def parse(self, ids: Sequence[int], turn: int) -> Message:
        letters = [chr(i) for i in ids if chr(i) in self.tools]
        arguments = [call(self.tools[x], '{"amount": 13}', id=f"{turn}-{x}") for x in letters]
        content = bytes(ids).decode("latin-1")
        return {**says(*arguments), "content": content}

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        return list("\n".join(m["content"] for m in messages).encode())


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def test_rollouts_of_a_model_are_records_and_the_broken_ones_are_invalid(
    model: LlamaForCausalLM, tmp_path: Path
) -> None:
    sampling = SamplingConfig(1.0, max_step_tokens=24, max_tokens=2000)
    starts = [Start(task, 1 + i, k) for i, task in enumerate(TASKS) for k in range(6)]
    environment = ToolEnvironment(Brittle)
    rollouts = roll_out(model, Letters(), environment, starts, sampling=sampling, seed=0)
    traces = [rollout.trace for rollout in rollouts]
    for trace, start in zip(traces, starts, strict=True):
        trace.check()
        assert 1 <= trace.n_steps <= start.max_turns
        assert trace.outcome.valid == (trace.outcome.status != "environment_error")
    assert {trace.outcome.status for trace in traces} == {
        "completed",
        "out_of_turns",
        "environment_error",
    }
    assert {m["role"] for trace in traces for m in trace.messages} >= {"tool"}
    assert write_traces(traces, tmp_path / "a.jsonl") == len(traces)
    assert list(read_traces(tmp_path / "a.jsonl")) == traces
    again = roll_out(model, Letters(), environment, starts, sampling=sampling, seed=0)
    assert [rollout.trace for rollout in again] == traces


def variant(**methods: Any) -> type[Ledger]:
    return type("Variant", (Ledger,), methods)


class Undescribed(Ledger):
    def sub(self, amount: int) -> int:
        """Subtract."""
        return self.total - amount


async def coroutine(self: Any) -> str:
    """Wait."""
    return ""


def no_instance() -> Any:
    raise OSError("no room")


def refusals() -> Iterator[Any]:
    def made(factory: Callable[[], Any], sentence: str) -> Any:
        return pytest.param(lambda: ToolEnvironment(factory), sentence, id=sentence)

    def begun(kind: Any, sentence: str, *, tasks: Any = TASKS[:1], turns: Any = (1,)) -> Any:
        environment = ToolEnvironment(kind)
        samples = [0] * len(tasks)
        return pytest.param(lambda: environment.reset(tasks, turns, samples), sentence, id=sentence)

    def row(sentence: str, *rows: dict[str, Any], id_column: str | None = None) -> Any:
        return pytest.param(lambda: tool_tasks(rows, id_column=id_column), sentence, id=sentence)

    yield made(no_instance, "can be made: OSError: no room")
    yield made(dict, "dict: expected a method reset, found none")
    yield made(variant(wait=coroutine), "Variant.wait: expected a plain method, found a coroutine")
    yield made(variant(reset=coroutine), "Variant.reset: expected a plain method")
    yield made(Undescribed, "no description for the argument 'amount'")
    message = {"role": "user", "content": "Go."}
    yield begun(Ledger, "expected one max_turns and one sample for each of 1 task", turns=())
    yield begun(Ledger, "expected max_turns of 1 or more", turns=(0,))
    lost = [ToolTask("lost", {"aim": 1})]
    yield begun(Ledger, "task 'lost': reset failed: TypeError: Ledger.reset()", tasks=lost)
    images = variant(reset=lambda self, **row: [message])
    yield begun(images, "expected reset to return text or None, found list")
    twice = [ToolTask("twice", {"target": 1, "max_turns": 5})]
    yield begun(Told, "task 'twice': reset failed: the row has a column max_turns", tasks=twice)
    yield row(
        "row 1: expected an id of its own, found '7', the id of row 0",
        {"n": 7},
        {"n": "7"},
        id_column="n",
    )
    yield row("rows that are equal need a column of ids", {"n": 7}, {"n": 7})
    yield row(
        "row 0: at $.n: expected an id (text or a whole number), found None", {}, id_column="n"
    )
    yield row("row 0: no id can be made of its columns", {"n": {1}})
    yield row("at $.prompt: expected text or a list of messages, found int", {"prompt": 3})
    yield row("at $.prompt: expected a message at least, found none", {"prompt": []})
    yield row("at $.prompt[0]: expected an object, found str", {"prompt": ["Go."]})
    yield row("at $.prompt[0].role: expected one of", {"prompt": [{"content": "Go."}]})
    parts = [{**message, "content": [{"type": "image"}]}]
    yield row("at $.prompt[0].content: expected text, found list", {"prompt": [*parts, message]})
    empty = [message, {"role": "user", "content": None}]
    yield row("at $.prompt[1].content: expected text, found NoneType", {"prompt": empty})


@pytest.mark.parametrize(("build", "sentence"), list(refusals()))
def test_what_cannot_be_is_refused_in_a_sentence(build: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(PRMError) as caught:
        build()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_actions_that_do_not_fit_are_refused_before_any_is_taken() -> None:
    environment = ToolEnvironment(Ledger)
    environment.reset(TASKS[:2], [2, 2], [0, 0])
    step = says(call("add", {"amount": 1}))
    for actions, sentence in (
        ([step], "expected 2 actions, found 1"),
        ([step, None], "episode 1 awaits an action"),
    ):
        with pytest.raises(PRMError, match=sentence):
            environment.step(actions)
    transition: Transition = environment.step([step, says()])
    assert transition.observations[0][0]["content"] == "1"
    with pytest.raises(PRMError, match="episode 1 has ended"):
        environment.step([step, step])


def test_a_reset_that_fails_leaves_no_episode() -> None:
    environment = ToolEnvironment(Ledger)
    environment.reset(TASKS[:2], [2, 2], [0, 0])
    with pytest.raises(PRMError, match="task 'lost'"):
        environment.reset([TASKS[0], ToolTask("lost", {})], [2, 2], [0, 0])
    with pytest.raises(PRMError, match="expected 0 actions, found 2"):
        environment.step([says(), says()])
