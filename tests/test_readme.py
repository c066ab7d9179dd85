"""The commands and the code of the README run as they stand, on a small corpus."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from prm.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SMALL = ["--trainer.max_epochs", "1", "--decoder", "{layers: 1, width: 32, heads: 2}"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ["--train", "25", "--validation", "5", "--test", "5", "--samples", "4"]
    assert main(["generate", "desk", "--out", "data/desk", *sizes]) == 0
    commands = [
        shlex.split(line)[1:]
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("prm ")
    ]
    assert len(commands) >= 6
    for command in commands:
        extra = {"train": SMALL, "eval": ["--bootstrap", "20"]}.get(command[0], [])
        assert main([*command, *extra]) == 0, command
    printed = capsys.readouterr().out
    assert "The model" in printed
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.count("desk-test-") == 20


def test_every_file_that_the_readme_names_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(r"`(training/[^`]+\.yaml)`", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_readme_uses_only_commands_that_exist() -> None:
    for words in re.findall(r"^prm (\w+)(?: (\w+))?", README, flags=re.MULTILINE):
        assert words[0] in COMMANDS or " ".join(words) in COMMANDS
