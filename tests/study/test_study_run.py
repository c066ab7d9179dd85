"""A study does what is missing, goes on where it was stopped, and survives an arm that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prm.cli import main
from prm.data.files import read_traces
from prm.rl.desk.policy import PolicyConfig, save_policy, teach

STUDY = """
base: {{folder: {base}, hidden_folder: {base}}}
scorer: {{folder: {scorer}}}
training: {{updates: 1, groups: 2, rollouts: 2}}
evaluation: {{turns: [5, 6], tasks: 2, samples: 2, states: 3}}
primary: {{k: 1, t: 6}}
seeds: [3]
arms:
  - {{name: outcome, budget: {{kind: fixed, turns: [6]}}}}
  - name: outcome + oracle
    budget: {{kind: mix, turns: [5, 6]}}
    shaping: {{mode: critic, lam: 0.5}}
    scores: oracle
  - {{name: with a model, budget: {{kind: fixed, turns: [6]}}, shaping: {{mode: sum}}}}
  - {{name: hidden, budget: {{kind: fixed, turns: [6]}}, turns_shown: false}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tiny = PolicyConfig(n_tasks=8, steps=2, batch_size=8, hidden_size=16, n_layers=1, n_heads=2)
    save_policy(teach(tiny), tmp_path / "policy")
    (tmp_path / "no-model").mkdir()
    (tmp_path / "no-model" / "config.json").write_text("{}")
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(base=tmp_path / "policy", scorer=tmp_path / "no-model"))
    return path


def test_a_study(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["study", str(config), "--out", str(out), "--bootstrap", "20", "--processes", "2"]
    assert main(command) == 1
    printed = capsys.readouterr()
    # The model's arm has no model; the others are done, and the report says so.
    assert "1 parts or arms failed; the first, with-a-model-s3" in printed.err
    assert list(json.loads((out / "failed.json").read_text())) == ["with-a-model-s3"]
    assert "outcome + oracle" in printed.out
    assert (out / "report" / "report.html").is_file()
    done = {path.name: path.stat().st_mtime_ns for path in (out / "arms").iterdir()}
    known = {"base", "base-turns-hidden", "exact-optimum", "random"}
    assert set(done) == {*known, "outcome-s3", "outcome-oracle-s3", "hidden-s3"}
    assert {path.stem for path in (out / "measured").iterdir()} == set(done)
    tasks = {
        name: {
            (t.task_id, t.outcome.max_turns, t.meta["sample"])
            for t in read_traces(out / "arms" / name / "rollouts.jsonl.zst")
        }
        for name in done
    }
    assert all(len(found) == 2 * 2 * 2 for found in tasks.values())
    assert len(set(map(frozenset, tasks.values()))) == 1
    log = (out / "arms" / "outcome-oracle-s3" / "log.jsonl").read_text().splitlines()
    assert 0 <= json.loads(log[0])["prm/score"] <= 1

    assert main(command) == 1
    again = {path.name: path.stat().st_mtime_ns for path in (out / "arms").iterdir()}
    assert again == done
