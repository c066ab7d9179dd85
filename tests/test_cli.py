"""The command line as people meet it: what goes where, and one sentence for every bad input."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prm.cli import _parse, main
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
    assert "\x1b" not in printed.err
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
        (source / "t.jsonl", "is not a folder"),
        ("", "needs a file name"),
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
    assert "2 traces, 2 steps, 1 task, 0 rejected" in printed.err
    assert "nonfinite_number  1 in 1 record " in printed.err


def test_rejects_are_kept_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, bad, out = (str(tmp_path / name) for name in ("t.jsonl", "bad.jsonl", "out.jsonl"))
    Path(source).write_bytes(b"{oops\n" + lines(CHAT))
    assert main(["convert", source, "--out", out, "--rejects", bad]) == 0
    assert Path(bad).read_bytes() == b"{oops\n"
    assert len(list(read_traces(out))) == 1
    assert "1 rejected" in capsys.readouterr().err
    Path(source).write_bytes(b"{oops\n{worse\n")
    os.unlink(bad)
    fails(
        capsys, ["convert", source, "--out", str(tmp_path / "no.jsonl"), "--rejects", bad], "oops"
    )
    same = f"{tmp_path}/./no.jsonl"
    command = ["convert", source, "--out", same.replace("/./", "/"), "--rejects", same]
    fails(capsys, command, "the same file")


@pytest.mark.parametrize("option", ["--out", "--rejects"])
def test_annotations_are_an_input_that_no_output_replaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    source, notes = tmp_path / "t.jsonl", tmp_path / "notes.jsonl"
    source.write_bytes(lines(CHAT))
    notes.write_bytes(b"[]")
    command = ["convert", str(source), "--annotations", str(notes), option, str(notes)]
    fails(capsys, command, "notes.jsonl")
    assert notes.read_bytes() == b"[]"


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
    for method, word in (("executed", "InterCode"), ("outcome", "1 trace")):
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
        assert status == 1
        assert word in capsys.readouterr().err


def test_a_table_without_rows_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_traces([], tmp_path / "t.parquet")
    fails(capsys, ["convert", str(tmp_path / "t.parquet")], "at least one trace")


def test_control_characters_of_the_data_stay_off_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_bytes(lines(own(id="\x1b[2J\n"), own(id="\x1b[2J\n")))
    fails(capsys, ["convert", str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "o.jsonl")], "2J")
    (tmp_path / "t.jsonl").write_bytes(lines(own(id="\x1b[2J\n", x=1)))
    assert main(["convert", str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "o.jsonl")]) == 0
    shown = capsys.readouterr().err
    assert r"\x1b[2J\n" in shown
    assert shown.isascii()
    assert "\x1b" not in shown


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "prm convert" in capsys.readouterr().out
    assert main(["convrt"]) == 2
    assert main(["eval", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "prm eval steps" in shown
    assert "prm convert" not in shown
    assert main(["eval"]) == 2


def wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].partition("error: ")[2] == sentence


def test_wrong_usage_is_one_sentence_that_names_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "picture").write_bytes(b"\x89PNG")
    for arguments, sentence in (
        (["label", "x"], "the following arguments are required: --method"),
        (["convert", "x", "--policy"], "--policy: expected a value"),
        (["convert", "x", "--policy", "a", "--policy=b"], "--policy: expected once, found twice"),
        (["eval", "steps", "x", "--lab", "y"], "unrecognized arguments: --lab=y"),
        (
            ["convert", "x", "--config", str(tmp_path / "picture")],
            "--config: expected a YAML file, found bytes that are no text",
        ),
    ):
        wrong_usage(capsys, arguments, sentence)
    with pytest.raises(SystemExit):
        main(["eval", "steps", "--help"])
    assert "--state-label" in capsys.readouterr().out


def test_no_value_of_an_option_is_lost(tmp_path: Path) -> None:
    """Lists add up; a part wins over its whole, and an option over the file, in any order."""
    (tmp_path / "c.yaml").write_text("label: file\nseed: 3\n")
    words = ["--data", "a", "--data", "[b,c]", "--label", "word", "--out", "o", "--data=d[0]"]
    words += ["--trainer.devices", "2", "--trainer", "{max_epochs: 1}"]
    words += ["--config", str(tmp_path / "c.yaml")]
    _, ((config,), _) = _parse("train", words)
    assert config.data == ["a", "b", "c", "d[0]"]
    assert (config.label, config.seed) == ("word", 3)
    assert config.trainer == {"max_epochs": 1, "devices": 2}


def test_a_terminated_command_cleans_up(tmp_path: Path) -> None:
    """SIGTERM, as Ctrl-C: no temporary file stays, and the status is 143."""
    command = [sys.executable, "-m", "prm", "convert", "-", "--out", str(tmp_path / "t.jsonl")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        while not list(tmp_path.iterdir()):
            time.sleep(0.02)
        process.terminate()
        assert process.stderr.read() == b"prm: terminated\n"
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_a_closed_standard_output_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(lines(CHAT))
    command = f"{sys.executable} -m prm convert {tmp_path}/t.jsonl >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "prm: error: standard output is closed\n")
