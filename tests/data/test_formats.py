"""Each format: what the publishers printed about the real files, and hand-written odd records."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from prm.data.diagnostics import Diagnostics
from prm.data.files import read_traces, write_traces
from prm.data.formats import FORMATS, FormatName
from prm.data.trace import Trace, pair_results, tool_calls
from prm.errors import PRMError, RecordError


def read(*records: Any, **options: Any) -> tuple[list[Trace], Diagnostics]:
    diagnostics = Diagnostics()
    return list(read_traces(list(records), diagnostics=diagnostics, **options)), diagnostics


def read_file(path: Path, **options: Any) -> tuple[list[Trace], Diagnostics]:
    diagnostics = Diagnostics()
    return list(read_traces(path, diagnostics=diagnostics, **options)), diagnostics


def test_the_option_lists_every_format() -> None:
    assert {"auto", *FORMATS} == set(get_args(FormatName))


class TestInterCode:
    # Success rates as published (%), and InterCode's own counts of tasks.
    published = {
        "gpt-4_10_turns": 73.7,
        "gpt-3.5_10_turns": 47.3,
        "react_10_turns": 58.7,
        "text-davinci-003_10_turns": 15.6,
        "chat-bison-001_10_turns": 9.9,
        "vicuna_10_turns": 6.3,
    }

    def test_published_success_rates_and_counts(self, real_traces: Path) -> None:
        traces = actions = 0
        for name, rate in self.published.items():
            (path,) = (real_traces / "intercode").glob(f"ic_sql_*{name}.json.gz")
            runs, diagnostics = read_file(path)
            successes = sum(run.outcome.success is True for run in runs)
            assert round(100 * successes / len(runs), 1) == rate
            missing = 247 if "bison" in name else 0  # the model refused to act
            assert diagnostics.count("missing_result") == missing
            assert {run.policy for run in runs} == {path.name.removesuffix(".json.gz")}
            assert {type(run.task_id) for run in runs} == {str}
            for run in runs:
                assert run.outcome.reward == max(run.step_labels("executed"))
            traces += len(runs)
            actions += sum(run.n_steps for run in runs)
        assert (traces, actions) == (6202, 45447)

    def test_nothing_of_a_record_is_lost(self, real_traces: Path) -> None:
        for path in (real_traces / "intercode").glob("*bash*"):
            source = list(json.loads(gzip.decompress(path.read_bytes())).values())
            runs, _ = read_file(path)
            for record, run in zip(source, runs, strict=True):
                history = record["turn_history"]
                calls = [tool_calls(window.action)[0] for window in run.windows()]
                assert [call["custom"]["input"] for call in calls] == history["actions"]
                seen = [w.observations[0]["content"] for w in run.windows()]
                assert seen == history["observations"]
                assert run.step_labels("executed").tolist() == history["rewards"]
                assert [step.meta["valid_action"] for step in run.steps] == history["valid_action"]
                rest = record.keys() - {"task_id", "query", "turn_history"}
                assert run.meta == {key: record[key] for key in rest}

    def record(self, **history: Any) -> dict[str, Any]:
        return {
            "task_id": 7,
            "query": "q",
            "turn_history": {"actions": ["a", "b"], "observations": ["x"], **history},
            "summary": {"max_reward": -0.5, "turns_taken": 2, "turns_max": 2},
        }

    def test_a_missing_last_observation_is_kept_as_missing(self) -> None:
        (run,), diagnostics = read(self.record(rewards=[-0.5, -1], thoughts=["t", None]))
        assert [message["role"] for message in run.messages] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert [run.messages[step.at]["content"] for step in run.steps] == ["t", None]
        assert run.step_labels("executed").tolist() == [-0.5, -1]
        assert (run.outcome.success, run.outcome.status) == (False, "out_of_turns")
        assert diagnostics.count("missing_result") == 1

    @pytest.mark.parametrize(
        ("field", "value"), [("rewards", [1.0] * 3), ("observations", []), ("actions", [1])]
    )
    def test_lists_that_do_not_answer_the_actions(self, field: str, value: object) -> None:
        with pytest.raises(RecordError, match=rf"\$\.turn_history\.{field}"):
            read(self.record(**{"rewards": [0.0, 0.0], field: value}))


class TestTauBench:
    def test_published_numbers(self, real_traces: Path) -> None:
        runs, diagnostics = read_file(real_traces / "tau-bench" / "gpt-4o-airline.json.gz")
        assert len(runs) == len({run.id for run in runs}) == 200
        assert sum(run.outcome.reward or 0 for run in runs) / 200 == pytest.approx(0.420)
        by_task = Counter(run.task_id for run in runs if run.outcome.success)
        # Published Pass^4: all four trials of a task succeed.
        assert sum(successes == 4 for successes in by_task.values()) / 50 == pytest.approx(0.200)
        assert diagnostics.count("duplicate_call_id") == 73
        assert diagnostics.tallies["duplicate_call_id"].records == 49
        assert diagnostics.count("missing_result") == diagnostics.count("orphan_result") == 0
        # Five runs were stopped by tau-bench's limit of 30 agent messages, ungraded.
        stopped = [run.n_steps for run in runs if run.outcome.status == "out_of_turns"]
        assert stopped == [30] * 5

    @pytest.mark.parametrize(
        "change", [{"traj": []}, {"info": {"error": "timeout"}}, {"reward": None}]
    )
    def test_an_infrastructure_failure_is_no_zero(self, change: dict[str, Any]) -> None:
        traj = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
        record = {"task_id": 1, "trial": 2, "reward": 0.0, "info": {}, "traj": traj, **change}
        (run,), diagnostics = read(record, policy="p")
        assert run.id == "p/1/2"
        outcome = run.outcome
        assert (outcome.valid, outcome.reward, outcome.success) == (False, None, None)
        assert run.meta["reward"] == record["reward"]
        assert diagnostics.count("environment_failure") == 1


class TestAgentRx:
    def test_published_annotations(self, real_traces: Path) -> None:
        folder = real_traces / "agentrx"
        runs, diagnostics = read_file(
            folder / "tau_dataset_failed.json.gz", annotations=folder / "tau_ground_truth.json.gz"
        )
        roles: Counter[str] = Counter()
        for run in runs:
            failures = run.meta["annotation"]["failures"]
            roles.update(run.messages[each["step_number"] - 1]["role"] for each in failures)
            error = run.meta["first_error"]
            assert error["message"] == min(each["step_number"] for each in failures) - 1
            at = None if error["step"] is None else run.steps[error["step"]].at
            assert at in (None, error["message"])
        assert roles == {"assistant": 28, "user": 11}
        assert len(runs) == 29
        assert diagnostics.count("unannotated") == 0

    def test_annotations_are_joined_by_id_and_counted(self, real_traces: Path) -> None:
        folder = real_traces / "agentrx"
        runs, diagnostics = read_file(
            folder / "tau_dataset_full_first45.json.gz",
            annotations=folder / "tau_ground_truth.json.gz",
        )
        annotated = [run for run in runs if "first_error" in run.meta]
        assert len(annotated) + diagnostics.count("unannotated") == len(runs) == 45
        assert len(annotated) + diagnostics.count("unused_annotation") == 29
        assert not any(run.outcome.success for run in annotated)

    def test_bad_annotations(self, tmp_path: Path) -> None:
        record = {"task_id": 1, "reward": 0.0, "info": {}, "traj": [], "records": {}}
        path = tmp_path / "annotations.json"
        for annotation, word in (
            ([{"failures": []}], "trajectory_id"),
            ([{"trajectory_id": 1}, {"trajectory_id": 1}], "one annotation for each"),
            ([{"trajectory_id": 1, "failures": [{"step_number": 5}]}], "step_number"),
            ([{"trajectory_id": 1, "failures": [{"step_number": "5"}]}], "step_number"),
        ):
            path.write_text(json.dumps(annotation))
            with pytest.raises(PRMError, match=word):
                read(record, annotations=path)
        path.write_text('{"trajectory_id": 1}')
        with pytest.raises(PRMError, match="a format with annotations"):
            read({"messages": []}, annotations=path)


class TestWhoAndWhen:
    def test_every_mistake_is_placed(self, real_traces: Path) -> None:
        runs, diagnostics = read_file(
            real_traces / "who-and-when" / "algorithm_generated_odd.jsonl.gz"
        )
        assert len(runs) == 63
        assert diagnostics.count("annotation_mismatch") == 2
        for run in runs:
            error = run.meta["first_error"]
            assert error["message"] == int(run.meta["mistake_step"])
            speaker = run.messages[error["message"]]["name"]
            on_step = error["message"] > 0 and speaker != "Computer_terminal"
            assert (error["step"] is not None) == on_step
            assert run.outcome.success is False
            assert run.prompt()[0]["content"].startswith("You are given")
            assert {run.messages[step.at]["name"] for step in run.steps} <= run.meta[
                "system_prompt"
            ].keys() | {message["name"] for message in run.messages}
        # A constant guess of message 1 is right in 19 of these 63.
        assert sum(run.meta["first_error"]["message"] == 1 for run in runs) == 19

    def test_the_speaker_decides_not_the_role(self) -> None:
        history = [
            {"content": "task", "name": "Expert", "role": "assistant"},
            {"content": "a", "name": "Expert", "role": "user"},
            {"content": "out", "name": "Computer_terminal", "role": "user"},
            {"content": "b", "name": "Other", "role": "assistant"},
        ]
        (run,), diagnostics = read(
            {"history": history, "mistake_step": "2", "mistake_agent": "Other"}
        )
        assert [message["role"] for message in run.messages] == [
            "user",
            "assistant",
            "user",
            "assistant",
        ]
        native = [message.get("native_role", message["role"]) for message in run.messages]
        assert native == [item["role"] for item in history]
        assert run.meta["first_error"]["step"] is None
        assert diagnostics.count("annotation_mismatch") == 1

    @pytest.mark.parametrize("mistake", ["4", "-1", "first", 9])
    def test_a_mistake_that_is_no_message(self, mistake: object) -> None:
        with pytest.raises(RecordError, match="mistake_step"):
            read({"history": [{"content": "t", "role": "user"}], "mistake_step": mistake})


def chat(*messages: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"messages": list(messages), **keys}


USER = {"role": "user", "content": "u"}
SAY = {"role": "assistant", "content": "a"}


class TestOpenAI:
    def test_a_published_conversation(self, real_traces: Path) -> None:
        path = real_traces / "formats" / "openai-chat" / "openhands_fncall-llm-message.json"
        (run,), diagnostics = read_file(path)
        assert run.messages == json.loads(path.read_bytes())
        roles = [message["role"] for message in run.messages]
        assert run.n_steps == roles.count("assistant")
        assert not diagnostics.tallies

    def test_messages_are_kept_exactly(self) -> None:
        contents: list[Any] = [None, "", [], [{"type": "text", "text": "p"}], "x"]
        messages = [
            USER,
            *({"role": "assistant", "content": content} for content in contents),
            {"role": "assistant"},
        ]
        (run,), _ = read(chat(*messages))
        assert run.messages == messages
        assert run.n_steps == 6

    def test_arguments_in_every_shape(self) -> None:
        shapes: list[Any] = [
            '{"a": "02139"}',
            {"a": "02139"},
            "",
            "null",
            "[1]",
            '{"a": 1}{"a": 2}',
            None,
        ]
        calls = [
            {"id": str(i), "function": {"name": "f", "arguments": a}} for i, a in enumerate(shapes)
        ]
        record = chat(USER, {"role": "assistant", "tool_calls": calls})
        (run,), diagnostics = read(record)
        assert run.messages == record["messages"]
        assert diagnostics.count("invalid_arguments") == 5
        assert diagnostics.count("object_arguments") == 1
        assert diagnostics.count("missing_result") == 7

    def test_legacy_functions(self) -> None:
        call = {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "f", "arguments": "{}"},
        }
        result = {"role": "function", "name": "f", "content": "3"}
        (run,), diagnostics = read(chat(USER, call, result, SAY, functions=[{"name": "f"}]))
        assert run.tools == [{"type": "function", "function": {"name": "f"}}]
        assert [pair_results(window).results for window in run.windows()] == [(0,), ()]
        assert not diagnostics.tallies

    def test_parallel_calls_answered_out_of_order_with_a_repeated_id(self) -> None:
        calls = [{"id": i, "function": {"name": "f", "arguments": "{}"}} for i in ("a", "b", "b")]
        results = [
            {"role": "tool", "tool_call_id": i, "content": str(n)} for n, i in enumerate("bxab")
        ]
        (run,), diagnostics = read(chat(USER, {"role": "assistant", "tool_calls": calls}, *results))
        (window,) = run.windows()
        assert pair_results(window) == ((2, 0, 3), (1,))
        assert diagnostics.count("orphan_result") == diagnostics.count("duplicate_call_id") == 1

    @pytest.mark.parametrize(
        "mark",
        [{"is_demo": True}, {"sampled": False}, {"loss": False}, {"is_copied_context": True}],
    )
    def test_given_messages_are_no_steps(self, mark: dict[str, bool]) -> None:
        greeting, demo = dict(SAY), {**SAY, **mark}
        (run,), diagnostics = read(chat({"role": "system"}, greeting, USER, demo, SAY))
        assert [step.at for step in run.steps] == [4]
        assert diagnostics.count("given_message") == 2

    def test_known_keys_and_the_rest(self) -> None:
        record = chat(
            USER, {**SAY, "weight": 0}, SAY, id=3, task_id=4, model="m", reward=1, success=True,
            labels=[True, None], extra={"x": None}, tools='[{"type": "function"}]',
        )  # fmt: skip
        (run,), _ = read(record)
        assert (run.id, run.task_id, run.policy, run.tools) == (
            "3",
            "4",
            "m",
            [{"type": "function"}],
        )
        assert [step.labels["human"] for step in run.steps] == [1.0, None]
        assert [step.weight for step in run.steps] == [0, None]
        assert run.outcome.reward == 1
        assert run.outcome.success is True
        assert run.meta == {"model": "m", "extra": {"x": None}}

    def test_labels_by_name_and_by_message(self) -> None:
        (run,), _ = read(chat(USER, SAY, USER, SAY, labels={"x": [0.5, -1]}, step_labels={"3": -1}))
        assert [step.labels for step in run.steps] == [
            {"x": 0.5, "human": None},
            {"x": -1, "human": -1},
        ]

    @pytest.mark.parametrize(
        ("keys", "path"),
        [
            ({"labels": [1, 1]}, "$.labels"),
            ({"labels": {"x": []}}, "$.labels.x"),
            ({"step_labels": {"0": 1}}, "$.step_labels.0"),
            ({"labels": [1], "step_labels": {"1": 1}}, "$.step_labels"),
            ({"tools": "[1]"}, "$.tools"),
            ({"reward": "1"}, "$.reward"),
            ({"success": 1}, "$.success"),
        ],
    )
    def test_wrong_values_name_their_path(self, keys: dict[str, Any], path: str) -> None:
        with pytest.raises(RecordError) as caught:
            read(chat(USER, SAY, **keys))
        assert caught.value.path == path

    @pytest.mark.parametrize(
        "message",
        [
            {"role": "wizard"},
            {},
            {"role": "assistant", "tool_calls": "f()"},
            {"role": "assistant", "tool_calls": ["f()"]},
            {"role": "assistant", "function_call": "f"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]},
        ],
    )
    def test_messages_that_are_not_openai_s(self, message: dict[str, Any]) -> None:
        with pytest.raises(RecordError, match=r"\$\.messages\[1\]"):
            read(chat(USER, message))

    def test_the_same_prompt_is_the_same_task(self) -> None:
        (a, b, c), _ = read(
            chat(USER, SAY), chat(USER, USER, SAY), chat(USER, {**SAY, "content": "z"})
        )
        assert a.task_id == c.task_id != b.task_id
        assert len({a.id, b.id, c.id}) == 3

    def test_a_trace_without_steps_is_refused(self) -> None:
        with pytest.raises(RecordError, match=r"\$.steps: expected at least one step"):
            read(chat(USER))


class TestTRL:
    def test_labels_keep_their_values(self) -> None:
        labels: list[Any] = [True, False, -1, 0, 1, 0.25, None]
        row = {"prompt": "p", "completions": list("abcdefg"), "labels": labels, "x": 1}
        (run,), _ = read(row)
        assert [step.labels["correct"] for step in run.steps] == [1, 0, -1, 0, 1, 0.25, None]
        assert [message["content"] for message in run.messages] == ["p", *"abcdefg"]
        assert run.meta == {"x": 1}

    def test_a_conversational_prompt(self) -> None:
        prompt = [{"role": "system", "content": "s"}, USER, SAY, USER]
        (run,), _ = read({"prompt": prompt, "completions": ["a"], "labels": [1]})
        assert run.prompt() == prompt

    def test_one_label_for_each_completion(self) -> None:
        with pytest.raises(RecordError, match=r"\$\.labels: expected 2 values"):
            read({"prompt": "p", "completions": ["a", "b"], "labels": [1]})


class TestOwn:
    def record(self, tmp_path: Path, make_trace: Any, **changes: Any) -> Any:
        write_traces([make_trace()], tmp_path / "t.jsonl")
        return {**json.loads((tmp_path / "t.jsonl").read_bytes()), **changes}

    def test_unknown_keys_move_to_meta(self, tmp_path: Path, make_trace: Any) -> None:
        record = self.record(tmp_path, make_trace, later=[1])
        record["steps"][1]["why"] = "x"
        record["outcome"]["cost"] = 0.5
        (trace,), diagnostics = read(record)
        assert trace.meta == {"later": [1], "outcome": {"cost": 0.5}}
        assert [step.meta for step in trace.steps] == [{}, {"why": "x"}]
        assert diagnostics.count("unknown_key") == 3

    def test_an_unknown_key_never_replaces_meta(self, tmp_path: Path, make_trace: Any) -> None:
        with pytest.raises(RecordError, match=r"\$\.later"):
            read(self.record(tmp_path, make_trace, later=1, meta={"later": 2}))

    def test_absent_fields_take_their_defaults(self) -> None:
        steps = {"messages": [SAY], "steps": [{"at": 0}]}
        (trace,), _ = read({"schema": "prm-trace/1", "id": "a", "task_id": "t", **steps})
        assert (trace.policy, trace.tools, trace.outcome.valid) == (None, None, True)

    def test_a_run_that_failed_before_it_began_is_kept(self, make_trace: Any) -> None:
        (run,), diagnostics = read(msgspec.to_builtins(make_trace(0)))
        assert (run.n_steps, list(run.windows()), run.outcome.valid) == (0, [], False)
        assert diagnostics.count("no_steps") == 1

    def test_policy_overrides(self, tmp_path: Path, make_trace: Any) -> None:
        write_traces([make_trace()], tmp_path / "t.jsonl")
        (trace,) = read_traces(tmp_path / "t.jsonl", policy="new")
        assert trace.policy == "new"

    @pytest.mark.parametrize(
        ("change", "path"),
        [
            ({"schema": "prm-trace/2"}, "$.schema"),
            ({"schema": "prm-trace/one"}, "$.schema"),
            ({"steps": [{"at": "1"}]}, "$.steps[0].at"),
            ({"steps": [{"at": 0}]}, "$.steps[0].at"),
            ({"steps": [{"at": 3}, {"at": 1}]}, "$.steps[1].at"),
            ({"steps": [{"at": 1, "weight": -1}]}, "$.steps[0].weight"),
            ({"steps": 3}, "$.steps"),
            ({"messages": [1]}, "$.messages[0]"),
            ({"state_labels": {"v": [1]}}, "$.state_labels.v"),
            ({"outcome": {"status": "fine"}}, "$.outcome.status"),
            ({"outcome": {"max_turns": -3}}, "$.outcome.max_turns"),
            ({"meta": []}, "$.meta"),
        ],
    )
    def test_a_broken_rule_names_its_path(
        self, tmp_path: Path, make_trace: Any, change: dict[str, Any], path: str
    ) -> None:
        record = self.record(tmp_path, make_trace, **change)
        for text in (json.dumps(record), json.dumps(record, separators=(",", ":"))):
            (tmp_path / "bad.jsonl").write_text(text)
            with pytest.raises(RecordError) as caught:
                list(read_traces(tmp_path / "bad.jsonl"))
            assert caught.value.path == path
            assert caught.value.line == 1
