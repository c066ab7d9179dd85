"""Work in processes: what fails, what needs it, and what goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from prm.study.config import read_study
from prm.study.layout import write_json
from prm.study.processes import Work, in_processes


def test_what_needs_failed_work_fails_with_its_reason_and_the_rest_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    works = [
        Work("last", write_json, (tmp_path / "last.json", {}), needs=("bad",)),
        Work("good", write_json, (tmp_path / "good.json", {"a": 1})),
        Work("after good", write_json, (tmp_path / "good.json", {"a": 2}), needs=("good",)),
        Work("bad", read_study, (tmp_path / "nowhere.yaml",)),
        Work("later still", write_json, (tmp_path / "later.json", {}), needs=("last",)),
    ]
    failed = in_processes(works, tmp_path, 2)
    assert list(failed) == ["bad", "last", "later still"]
    assert "nowhere.yaml: expected the YAML of a study" in failed["bad"]
    assert failed["last"] == f"it needs bad, which failed: {failed['bad']}"
    assert failed["later still"].startswith("it needs last, which failed: it needs bad")
    assert [path.name for path in tmp_path.iterdir()] == ["good.json"]
    assert '"a": 2' in (tmp_path / "good.json").read_text()
    assert "study: 5 of 5: " in capfd.readouterr().err
