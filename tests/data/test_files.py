"""Files in and out: exact round trips, every container, every kind of damage."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from prm.data.diagnostics import Diagnostics
from prm.data.files import OUTPUTS, read_traces, write_traces
from prm.data.tables import to_dataset
from prm.data.trace import Outcome, Source, Step, Trace
from prm.errors import PRMError, RecordError

HOSTILE = "\x00\x1f\x7f\u0085\u2028\ud83d |\udc00\U0001f600</script>\\u0000\n\r\n"


def joined(text: str) -> str:
    """Two adjacent surrogate halves are one character in JSON, so they are written as one."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


name = st.text(st.characters(codec=None), min_size=1, max_size=20).map(joined)
text = st.one_of(st.text(st.characters(codec=None), max_size=20).map(joined), st.just(HOSTILE))
# The values of these keys have a shape.
SHAPED = {"tool_calls", "function_call", "function", "name", "parameters"}
key = text.filter(lambda word: word not in SHAPED)
number = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
labels = st.dictionaries(text, st.none() | number, max_size=2)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    roles = draw(st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=6))
    messages = [
        {
            **draw(st.dictionaries(key, json_values, max_size=2)),
            "role": role,
            "content": draw(text),
        }
        for role in roles
    ]
    steps = [
        Step(
            at=at,
            labels=draw(labels),
            scores=draw(labels),
            weight=draw(st.none() | st.floats(0, 10)),
            meta=draw(st.dictionaries(text, json_values, max_size=2)),
        )
        for at, role in enumerate(roles)
        if role == "assistant"
    ]
    states = st.lists(st.none() | number, min_size=len(steps) + 1, max_size=len(steps) + 1)
    return Trace(
        id=draw(name),
        task_id=draw(name),
        policy=draw(st.none() | text),
        tools=draw(st.none() | st.lists(st.dictionaries(key, json_values, max_size=2), max_size=2)),
        messages=messages,
        steps=steps,
        outcome=Outcome(
            reward=draw(st.none() | number),
            success=draw(st.none() | st.booleans()),
            # Only a run that failed before it began may have no step.
            valid=draw(st.booleans()) and bool(steps),
            max_turns=draw(st.none() | st.integers(0, 100)),
        ),
        state_labels=draw(st.dictionaries(text, states, max_size=1)),
        source=Source(uri=draw(st.none() | text)),
        meta=draw(st.dictionaries(text, json_values, max_size=3)),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
ROW = {"prompt": "p", "completions": ["a"], "labels": [True]}


class TestRoundTrip:
    @pytest.mark.parametrize("suffix", OUTPUTS)
    @settings(max_examples=40, deadline=None)
    @given(st.lists(traces(), max_size=3, unique_by=lambda trace: trace.id))
    def test_what_is_read_back_is_what_was_written(
        self, folder: Path, suffix: str, written: list[Trace]
    ) -> None:
        path = folder / f"t{suffix}"
        assert write_traces(written, path) == len(written)
        if written or suffix == ".parquet":
            assert list(read_traces(path)) == written

    @settings(max_examples=25, deadline=None)
    @given(st.lists(traces(), min_size=1, max_size=3, unique_by=lambda trace: trace.id))
    def test_a_dataset_holds_the_same_traces(self, written: list[Trace]) -> None:
        dataset = to_dataset(written)
        assert list(read_traces(dataset)) == written
        assert dataset["n_steps"][:] == [trace.n_steps for trace in written]
        assert dataset["reward"][:] == [trace.outcome.reward for trace in written]

    def test_a_saved_dataset_and_its_splits(
        self, tmp_path: Path, make_trace: Callable[..., Trace]
    ) -> None:
        from datasets import DatasetDict

        parts = [[make_trace(id="a")], [make_trace(id="b"), make_trace(id="c")]]
        to_dataset(parts[0]).save_to_disk(tmp_path / "one")
        both = DatasetDict({"x": to_dataset(parts[0]), "y": to_dataset(parts[1])})
        both.save_to_disk(tmp_path / "both")
        assert list(read_traces(tmp_path / "one")) == parts[0]
        assert list(read_traces(tmp_path / "both")) == parts[0] + parts[1]

    @settings(max_examples=40, deadline=None)
    @given(traces())
    def test_the_fast_and_the_careful_reader_agree(self, folder: Path, trace: Trace) -> None:
        path = folder / "pretty.jsonl"
        write_traces([trace], path)
        # White space that our writer never emits takes the careful reader.
        path.write_bytes(path.read_bytes().replace(b"{", b"{ ", 1))
        assert list(read_traces(path)) == [trace]

    def test_equal_traces_make_equal_bytes(
        self, tmp_path: Path, make_trace: Callable[..., Trace]
    ) -> None:
        for suffix in OUTPUTS:
            paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
            for path in paths:
                write_traces([make_trace(), make_trace(id="b")], path)
            assert paths[0].read_bytes() == paths[1].read_bytes()
            if suffix.endswith(".gz"):
                assert paths[0].read_bytes()[3:8] == bytes(5)  # no file name, no time

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), (1, 2), {1: 2}, object()])
    @pytest.mark.parametrize("beside", ["", "\ud800"])
    def test_what_json_cannot_hold_is_refused(
        self, tmp_path: Path, make_trace: Callable[..., Trace], value: object, beside: str
    ) -> None:
        trace = make_trace(meta={"deep": [beside, value]})
        with pytest.raises(PRMError, match=r"trace 'agent/task/0'"):
            write_traces([trace], tmp_path / "t.jsonl")
        assert os.listdir(tmp_path) == []


class TestContainers:
    """The same two records, however a file holds them."""

    compact = [json.dumps(CHAT), json.dumps({**CHAT, "id": "\u2028"})]
    texts = {
        "lines": "\n".join(compact),
        "lines with blanks, CRLF and a BOM": "\ufeff\r\n" + "\r\n\r\n".join(compact) + "\r\n",
        "an array": f"[{', '.join(compact)}]",
        "an indented array": json.dumps([json.loads(text) for text in compact], indent=1),
        "a keyed object": f'{{"0": {compact[0]}, "17": {compact[1]}}}',
        "objects on one line": "".join(compact),
        "indented objects": "\n".join(json.dumps(json.loads(t), indent=2) for t in compact),
    }

    @pytest.mark.parametrize("name", texts)
    @pytest.mark.parametrize("pack", ["plain", "gzip", "two members", "zstd", "two frames"])
    def test_every_container_gives_the_same_records(
        self, tmp_path: Path, name: str, pack: str
    ) -> None:
        data = self.texts[name].encode()
        half, zstd = len(data) // 2, zstandard.ZstdCompressor()
        packed = {
            "plain": data,
            "gzip": gzip.compress(data),
            "two members": gzip.compress(data[:half]) + gzip.compress(data[half:]),
            "zstd": zstd.compress(data),
            "two frames": zstd.compress(data[:half]) + zstd.compress(data[half:]),
        }[pack]
        path = tmp_path / "named_wrongly.json"
        path.write_bytes(packed)
        first, second = read_traces(path)
        assert first.messages == second.messages == CHAT["messages"]
        assert (first.source.record, second.source.record, second.id) == (0, 1, "\u2028")

    def test_a_list_of_messages_is_one_record(self, tmp_path: Path) -> None:
        path = write(tmp_path / "chat.json", CHAT["messages"])
        assert [trace.messages for trace in read_traces(path)] == [CHAT["messages"]]
        write(path, CHAT["messages"], CHAT["messages"])
        assert len(list(read_traces(path))) == 2

    def test_folders_globs_and_lists(self, tmp_path: Path) -> None:
        for name in ("b.jsonl", "a.json", "notes.txt"):
            write(tmp_path / name, {**CHAT, "id": name})
        diagnostics = Diagnostics()
        inside = [trace.id for trace in read_traces(tmp_path, diagnostics=diagnostics)]
        assert inside == ["a.json", "b.jsonl"]
        assert diagnostics.count("skipped_file") == 1
        assert [t.id for t in read_traces(f"{tmp_path}/*.json*")] == inside
        assert [t.id for t in read_traces([tmp_path / "b.jsonl", tmp_path / "a.json"])] == inside[
            ::-1
        ]

    def test_a_table_with_other_columns_is_read_row_by_row(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([ROW, ROW]), tmp_path / "rows.parquet")
        for source in (tmp_path / "rows.parquet", [ROW, ROW]):
            first, second = read_traces(source)
            assert first.step_labels("correct").tolist() == [1]
            assert first.id != second.id
            assert first.policy == ("rows" if isinstance(source, Path) else None)

    @pytest.mark.parametrize("suffix", OUTPUTS)
    def test_standard_input_is_unpacked_as_a_file_is(
        self,
        tmp_path: Path,
        make_trace: Callable[..., Trace],
        monkeypatch: pytest.MonkeyPatch,
        suffix: str,
    ) -> None:
        write_traces([make_trace()], tmp_path / f"t{suffix}")
        reading, writing = os.pipe()  # which cannot seek
        os.write(writing, (tmp_path / f"t{suffix}").read_bytes())
        os.close(writing)
        with open(reading) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert list(read_traces("-")) == [make_trace()]

    def test_nested_columns_are_counted(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([CHAT]), tmp_path / "rows.parquet")
        diagnostics = Diagnostics()
        assert len(list(read_traces(tmp_path / "rows.parquet", diagnostics=diagnostics))) == 1
        assert diagnostics.count("nested_columns") == 1


SAID = '{"role": "assistant", "content": "a"}'


class TestOddValues:
    def read(self, tmp_path: Path, record: str) -> tuple[Trace, Diagnostics]:
        diagnostics = Diagnostics()
        (tmp_path / "odd.jsonl").write_text(record)
        (trace,) = read_traces(tmp_path / "odd.jsonl", diagnostics=diagnostics)
        return trace, diagnostics

    @pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e400"])
    def test_numbers_out_of_range_become_null(self, tmp_path: Path, token: str) -> None:
        trace, diagnostics = self.read(tmp_path, f'{{"messages": [{SAID}], "reward": {token}}}')
        assert trace.outcome.reward is None
        assert diagnostics.count("nonfinite_number") == 1

    def test_integers_stay_exact(self, tmp_path: Path) -> None:
        trace, _ = self.read(tmp_path, f'{{"messages": [{SAID}], "big": {10**400 + 1}}}')
        assert trace.meta["big"] == 10**400 + 1

    def test_lone_surrogates_stay_and_are_counted(self, tmp_path: Path) -> None:
        trace, diagnostics = self.read(
            tmp_path, rf'{{"messages": [{SAID}], "x": "\ud83d", "y": "\ud83d\ude00"}}'
        )
        assert (trace.meta["x"], trace.meta["y"]) == ("\ud83d", "\U0001f600")
        assert diagnostics.count("lone_surrogate") == 1

    def test_repeated_keys_are_counted(self, tmp_path: Path) -> None:
        trace, diagnostics = self.read(tmp_path, f'{{"messages": [{SAID}], "x": 1, "x": 2}}')
        assert trace.meta["x"] == 2
        assert diagnostics.count("duplicate_key") == 1

    def test_repeated_keys_in_our_own_format_are_counted_too(
        self, tmp_path: Path, make_trace: Callable[..., Trace]
    ) -> None:
        write_traces([make_trace()], tmp_path / "t.jsonl")
        own = (tmp_path / "t.jsonl").read_text().replace('"meta":{}}\n', '"meta":{},"meta":{}}')
        _, diagnostics = self.read(tmp_path, own)
        assert diagnostics.count("duplicate_key") == 1


class TestDamage:
    def fails(self, path: Path, *words: str) -> None:
        with pytest.raises(PRMError) as caught:
            list(read_traces(path))
        sentence = str(caught.value)
        assert "\n" not in sentence
        for word in (path.name, *words):
            assert word in sentence

    def test_invalid_json_names_line_and_byte(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.jsonl", CHAT, CHAT, CHAT)
        lines = path.read_text().splitlines()
        for bad in range(3):
            broken = [*lines[:bad], '{"é": tru}', *lines[bad + 1 :]]
            path.write_text("\n".join(broken))
            at = len("\n".join([*lines[:bad], '{"é": ']).encode())
            self.fails(path, f"t.jsonl:{bad + 1} (byte {at})", "valid JSON", "'tru}'")

    def test_invalid_utf8_names_line_and_byte(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.jsonl", CHAT, CHAT)
        path.write_bytes(path.read_bytes().replace(b"ho", b"h\xff"))
        at = path.read_bytes().index(b"\xff")
        self.fails(path, f":1 (byte {at})", "UTF-8", "0xff")

    @pytest.mark.parametrize("indent", [None, 2])
    def test_a_cut_document_names_the_end(self, tmp_path: Path, indent: int | None) -> None:
        path = tmp_path / "t.json"
        text = json.dumps([CHAT, CHAT], indent=indent)[:-2]
        path.write_text(text)
        self.fails(path, f":{text.count(chr(10)) + 1} (byte {len(text)})", "the end of the text")

    @pytest.mark.parametrize("suffix", [".gz", ".zst"])
    @pytest.mark.parametrize("kept", [0.5, 0.9, 0.999])
    def test_a_cut_compressed_file_is_never_taken_for_its_end(
        self, tmp_path: Path, suffix: str, kept: float
    ) -> None:
        data = b"".join(json.dumps({**CHAT, "id": i}).encode() + b"\n" for i in range(2000))
        packed = gzip.compress(data) if suffix == ".gz" else zstandard.compress(data)
        path = tmp_path / f"t.jsonl{suffix}"
        path.write_bytes(packed[: int(len(packed) * kept)])
        self.fails(path, "expected a complete, readable file")

    def test_deep_nesting_is_an_error(self, tmp_path: Path) -> None:
        for text in ("[" * 100_000, json.dumps(CHAT) + "\n" + "[" * 100_000):
            (tmp_path / "t.jsonl").write_text(text)
            self.fails(tmp_path / "t.jsonl", "nested too deeply")

    @pytest.mark.parametrize("text", ["", "\n \r\n", "[]"])
    def test_nothing_to_read_is_an_error(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "t.json").write_text(text)
        self.fails(tmp_path / "t.json", "expected at least one record")

    def test_paths_that_are_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(PRMError, match="no such file"):
            read_traces(tmp_path / "missing.jsonl")
        with pytest.raises(PRMError, match="expected trace files"):
            read_traces(tmp_path)

    def test_a_file_that_is_read_twice_is_not_counted_twice(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.jsonl", CHAT)
        with pytest.raises(RecordError, match=r"again, as in .*t\.jsonl:1"):
            list(read_traces([path, path]))

    @pytest.mark.parametrize("source", [None, 7, {"a": 1}, [1], [CHAT, 1], ["t.jsonl", CHAT]])
    def test_what_is_neither_paths_nor_rows(self, source: Any) -> None:
        with pytest.raises(PRMError, match="expected"):
            list(read_traces(source))

    def test_an_enumeration_names_its_values_and_a_mapping_its_key(
        self, tmp_path: Path, make_trace: Callable[..., Trace]
    ) -> None:
        own = msgspec.to_builtins(make_trace(1, labels=[0.5]))
        own["outcome"]["status"] = "fine"
        self.fails(write(tmp_path / "t.jsonl", own), "one of agent_error, completed, ", "'fine'")
        del own["outcome"]
        own["steps"][0]["labels"]["human"] = "good"
        self.fails(write(tmp_path / "t.jsonl", own), "$.steps[0].labels['human']", "found str")
        own["steps"] = [{}]
        self.fails(write(tmp_path / "t.jsonl", own), "$.steps[0]", "with the key at")

    def test_a_cut_table(self, tmp_path: Path, make_trace: Callable[..., Trace]) -> None:
        write_traces([make_trace()], tmp_path / "t.parquet")
        data = (tmp_path / "t.parquet").read_bytes()
        (tmp_path / "t.parquet").write_bytes(data[: len(data) // 2])
        self.fails(tmp_path / "t.parquet", "Parquet")

    def test_hostile_keys_do_not_break_the_sentence(self, tmp_path: Path) -> None:
        self.fails(write(tmp_path / "t.json", {"a\n\x1b[2J": 1}), r"a\n\x1b[2J")
        labels = {"x\ny": [1, 2]}
        self.fails(write(tmp_path / "t.json", {**CHAT, "labels": labels}), r"$.labels.x\ny")

    def test_one_file_has_one_format(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.jsonl", CHAT, ROW)
        self.fails(path, "t.jsonl:2", "the format openai", "prompt, completions, labels")

    def test_the_formats_are_listed_when_none_matches(self, tmp_path: Path) -> None:
        self.fails(write(tmp_path / "t.json", {"x": 1}), "intercode", "tau_bench", "the keys x")

    @pytest.mark.parametrize("change", [{"id": ""}, {"task_id": ""}])
    def test_empty_names(
        self, tmp_path: Path, make_trace: Callable[..., Trace], change: dict[str, str]
    ) -> None:
        own = msgspec.to_builtins(make_trace(1)) | change
        self.fails(write(tmp_path / "t.jsonl", own), "a string that is not empty")


class TestRejects:
    def test_bad_records_go_there_verbatim_and_the_rest_go_on(self, tmp_path: Path) -> None:
        good = [json.dumps({**CHAT, "id": i}).encode() for i in range(3)]
        bad = [b'{"messages": [tru', b'{"messages": [{"role": "wizard"}]}', b'{"messages": "\xff"}']
        lines = [good[0], bad[0], good[1], bad[1], bad[2], good[2]]
        (tmp_path / "t.jsonl").write_bytes(b"\n".join(lines))
        diagnostics = Diagnostics()
        read = read_traces(
            tmp_path / "t.jsonl", rejects=tmp_path / "bad.jsonl", diagnostics=diagnostics
        )
        assert [trace.id for trace in read] == ["0", "1", "2"]
        assert (tmp_path / "bad.jsonl").read_bytes() == b"".join(line + b"\n" for line in bad)
        assert diagnostics.count("rejected") == 3

    def test_nothing_rejected_leaves_no_file_and_no_file_is_replaced(self, tmp_path: Path) -> None:
        path, rejects = write(tmp_path / "t.jsonl", CHAT), tmp_path / "bad.jsonl"
        assert len(list(read_traces(path, rejects=rejects))) == 1
        assert not rejects.exists()
        rejects.write_text("precious")
        with pytest.raises(PRMError, match="never overwritten"):
            read_traces(path, rejects=rejects)
        assert rejects.read_text() == "precious"

    def test_a_damaged_file_is_still_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(json.dumps(CHAT).encode())[:-9])
        with pytest.raises(RecordError):
            list(read_traces(tmp_path / "t.jsonl.gz", rejects=tmp_path / "bad.jsonl"))
        assert not (tmp_path / "bad.jsonl").exists()


class TestShapes:
    """What passes the check of a record can be looked at, rendered and written."""

    WRONG = (None, 5, "x", [], {}, [1], [None], {"x": []}, True)

    def paths(self, value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """The path of every value inside of ``value``."""
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield (*path, key)
            if isinstance(item, dict | list):
                yield from self.paths(item, (*path, key))

    def test_whatever_value_is_replaced_by_whatever(self, make_trace: Callable[..., Trace]) -> None:
        from prm.eval.baselines import message_text
        from prm.model.render import render_action, render_observations, render_task

        schema = {"name": "f", "description": "d", "parameters": {"properties": {"a": {}}}}
        tools = [{"type": "function", "function": schema}, schema]
        own = msgspec.to_builtins(make_trace(2, tools=tools))
        own["messages"][1]["tool_calls"].append(
            {"id": "c", "type": "custom", "custom": {"name": "bash", "input": "ls"}}
        )
        own["messages"][3]["function_call"] = {"name": "f", "arguments": "{}"}
        own["messages"][3]["content"] = [{"type": "text", "text": "look"}]
        refused = passed = 0
        for path in self.paths({key: own[key] for key in ("messages", "tools")}):
            for wrong in self.WRONG:
                changed = json.loads(json.dumps(own))
                inner = changed
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = wrong
                try:
                    (trace,) = read_traces([changed])
                except RecordError:
                    refused += 1
                    continue
                passed += 1
                assert render_task(trace)
                for window in trace.windows():
                    assert render_action(window)
                    render_observations(window)
                for message in trace.messages:
                    message_text(message)
        assert min(refused, passed) > 100


class TestOutput:
    def test_missing_folders_are_made(
        self, tmp_path: Path, make_trace: Callable[..., Trace]
    ) -> None:
        path = tmp_path / "new" / "er" / "t.jsonl"
        write_traces([make_trace()], path)
        assert list(read_traces(path)) == [make_trace()]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
    @pytest.mark.parametrize("suffix", OUTPUTS)
    def test_a_failure_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, make_trace: Callable[..., Trace], suffix: str, error: BaseException
    ) -> None:
        path = tmp_path / f"t{suffix}"
        write_traces([make_trace()], path)
        before = path.read_bytes()

        def interrupted() -> object:
            yield make_trace(id="new")
            raise error

        with pytest.raises((KeyboardInterrupt, PRMError)):
            write_traces(interrupted(), path)  # type: ignore[arg-type]
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == [path.name]

    def test_unknown_suffixes_and_folders_fail_before_anything_is_read(
        self, tmp_path: Path
    ) -> None:
        def never() -> object:
            raise AssertionError("work began")
            yield

        (tmp_path / "file").touch()
        for name in ("t.csv", "file/t.jsonl", "."):
            with pytest.raises(PRMError):
                write_traces(never(), tmp_path / name)  # type: ignore[arg-type]
