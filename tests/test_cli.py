"""The command line as people meet it: what goes where, and one sentence for every bad input."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prm.cli import main
from prm.data.files import read_traces, write_traces
from prm.data.trace import Trace

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def own(**changes: Any) -> dict[str, Any]:
    record = {"schema": "prm-trace/1", "id": "a", "task_id": "t", "steps": [{"at": 1}], **CHAT}
    return {**record, **changes}


BAD = {
    "truncated gzip": ("t.jsonl.gz", gzip.compress(lines(CHAT))[:-4], ["t.jsonl.gz:", "complete"]),
    "invalid JSON": (
        "t.jsonl",
        lines(CHAT, CHAT) + b'{"messages": nope}',
        [":3 (byte ", "'nope}'"],
    ),
    "wrong type": ("t.jsonl", lines(own(), own(steps=[{"at": "1"}])), [":2", "$.steps[0].at"]),
    "unknown format": ("t.json", lines({"a": 1, "b": 2}), ["intercode", "the keys a, b"]),
    "empty file": ("t.jsonl", b"", ["found an empty file"]),
    "newer schema": ("t.jsonl", lines(own(schema="prm-trace/2")), ["pip install -U stepwise-prm"]),
    "mixed formats": ("t.jsonl", lines(CHAT, own()), [":2", "one format"]),
    "repeated id": ("t.jsonl", lines(own(), own()), ["record 0", "record 1"]),
}


def fails(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    """The command leaves with status 1 and one sentence on stderr that has all words."""
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("prm: error: ")
    assert printed.err.count("\n") == 1
    for word in words:
        assert word in printed.err


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file, data, words = BAD[name]
    (tmp_path / file).write_bytes(data)
    out = str(tmp_path / "out.jsonl")
    fails(capsys, ["convert", str(tmp_path / file), "--out", out], file, *words)
    assert os.listdir(tmp_path) == [file]


def test_outputs_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "t.jsonl"
    source.write_bytes(lines(CHAT))
    for out, word in (
        (tmp_path / "missing" / "t.jsonl", "is not a folder"),
        (source, "it is also an input"),
        (tmp_path, "it is a folder"),
        (tmp_path / "t.csv", "suffix"),
    ):
        fails(capsys, ["convert", str(source), "--out", str(out)], str(out), word)
    # Permissions do not bind root, so the answer of the system is simulated.
    monkeypatch.setattr(os, "access", lambda *_: False)
    fails(capsys, ["convert", str(source), "--out", str(tmp_path / "o.jsonl")], "no permission")
    assert source.read_bytes() == lines(CHAT)


@pytest.mark.parametrize("target", ["folder", "file"])
def test_inputs_without_read_permission(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    """Permissions do not bind root, so the refusal is simulated."""
    source = tmp_path / "t.jsonl"
    source.write_bytes(lines(CHAT))

    def refuse(path: Any, *_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("builtins.open" if target == "file" else "os.listdir", refuse)
    path = str(source if target == "file" else tmp_path)
    status = main(["convert", path])
    monkeypatch.undo()
    assert status == 1
    assert capsys.readouterr().err == f"prm: error: {path}: cannot be read (Permission denied)\n"


def test_missing_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, ["convert", str(tmp_path / "t.jsonl")], "no such file")


def test_convert_writes_data_to_stdout_and_counts_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_bytes(lines(CHAT, {**CHAT, "x": float("nan")}))
    assert main(["convert", str(tmp_path / "t.jsonl")]) == 0
    printed = capfd.readouterr()
    records = [json.loads(line) for line in printed.out.splitlines()]
    assert [record["schema"] for record in records] == ["prm-trace/1"] * 2
    assert "2 traces, 2 steps, 1 tasks, 0 rejected" in printed.err
    assert "nonfinite_number  1 in 1 records" in printed.err


def test_rejects_are_kept_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, bad, out = (str(tmp_path / name) for name in ("t.jsonl", "bad.jsonl", "out.jsonl"))
    Path(source).write_bytes(b"{oops\n" + lines(CHAT))
    assert main(["convert", source, "--out", out, "--rejects", bad]) == 0
    assert Path(bad).read_bytes() == b"{oops\n"
    assert len(list(read_traces(out))) == 1
    assert "1 rejected" in capsys.readouterr().err
    Path(source).write_bytes(b"{oops\n{worse\n")
    fails(
        capsys, ["convert", source, "--out", str(tmp_path / "no.jsonl"), "--rejects", bad], "oops"
    )
    fails(capsys, ["convert", source, "--out", out, "--rejects", out], "the same file")


def test_convert_then_label_real_logs(
    tmp_path: Path, real_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = real_traces / "intercode" / "ic_bash_multiturn_gpt-4_10_turns_fs_1.json.gz"
    traces, labelled = str(tmp_path / "t.jsonl.gz"), str(tmp_path / "l.parquet")
    assert main(["convert", str(source), "--out", traces, "--policy", "gpt-4"]) == 0
    command = ["label", traces, "--method", "executed", "--threshold", "1", "--name", "solved"]
    assert main([*command, "--out", labelled]) == 0
    for trace in read_traces(labelled):
        assert trace.policy == "gpt-4"
        assert (max(trace.step_labels("solved")) == 1) == trace.outcome.success
    assert "60 traces, 401 steps" in capsys.readouterr().err


def test_label_reports_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make_trace: Callable[..., Trace]
) -> None:
    write_traces([make_trace()], tmp_path / "t.jsonl")
    for method, word in (("executed", "InterCode"), ("outcome", "1 in 1 records")):
        status = main(
            [
                "label",
                str(tmp_path / "t.jsonl"),
                "--method",
                method,
                "--out",
                str(tmp_path / "l.jsonl"),
            ]
        )
        assert status == (method == "executed")
        assert word in capsys.readouterr().err


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "prm convert" in capsys.readouterr().out
    assert main(["convrt"]) == 2
    with pytest.raises(SystemExit) as left:
        main(["convert", "x", "--format", "parquet"])
    assert left.value.code == 2
