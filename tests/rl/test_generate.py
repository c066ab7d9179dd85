"""The corpora are what the command writes, and load without loss."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from scipy.stats import chi2_contingency

from prm.data.files import read_traces
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.play import annotate
from prm.rl.generate import generate

ROOT = Path(__file__).parents[2]
SPLITS = ("train", "validation", "test")


def small(out: Path, seed: int) -> dict[str, bytes]:
    generate("desk", seed=seed, out=str(out), train=3, validation=1, test=2, samples=4)
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path) -> None:
    first = small(tmp_path / "a", seed=5)
    assert set(first) == {f"{split}.parquet" for split in SPLITS}
    assert small(tmp_path / "b", seed=5) == first
    other = small(tmp_path / "c", seed=6)
    assert all(other[name] != first[name] for name in first)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    before = small(tmp_path, seed=5)
    with pytest.raises(PRMError, match="train.parquet: is there already"):
        small(tmp_path, seed=6)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(PRMError, match="is not a folder"):
        small(tmp_path / "train.parquet", seed=5)


def test_the_corpora_are_what_the_command_writes(tmp_path: Path) -> None:
    generate("desk", seed=0, out=str(tmp_path))
    for split in SPLITS:
        name = f"{split}.parquet"
        # The records: the packed bytes may differ between versions of pyarrow.
        written = list(read_traces(tmp_path / name))
        assert written == list(read_traces(ROOT / "data/desk" / name)), split


def test_datasets_gives_the_same_records(tmp_path: Path) -> None:
    from datasets import load_dataset

    table = load_dataset(str(ROOT / "data"), "desk", cache_dir=str(tmp_path))
    assert set(table) == set(SPLITS)
    for split in SPLITS:
        traces = list(read_traces(ROOT / "data/desk" / f"{split}.parquet"))
        rows = list(table[split])
        assert [msgspec.json.decode(row["trace"], type=Trace) for row in rows] == traces
        assert [row["success"] for row in rows] == [trace.outcome.success for trace in traces]
        assert [row["n_steps"] for row in rows] == [trace.n_steps for trace in traces]
        assert list(read_traces(table[split])) == traces


def test_the_corpora_hold_what_the_card_says() -> None:
    tasks: dict[str, set[str]] = {}
    for split, n_tasks in zip(SPLITS, (500, 80, 160), strict=True):
        traces = list(read_traces(ROOT / "data/desk" / f"{split}.parquet"))
        policies = Counter((trace.task_id, trace.policy) for trace in traces)
        assert len(traces) == len(policies) == 6 * n_tasks
        assert {trace.policy for trace in traces} == set(AGENTS)
        assert len({trace.id for trace in traces}) == len(traces)
        tasks[split] = {trace.task_id for trace in traces}
        assert len(tasks[split]) == n_tasks
        for trace in traces[:50]:
            assert annotate(trace) == trace
    assert not tasks["train"] & tasks["test"] | tasks["validation"] & tasks["test"]
    assert not tasks["train"] & tasks["validation"]


def test_wording_tells_nothing_about_quality() -> None:
    traces = list(read_traces(ROOT / "data/desk/train.parquet"))
    voices = sorted({trace.meta["voice"] for trace in traces})
    for value in ("success", "policy"):
        kinds = [
            str(trace.outcome.success if value == "success" else trace.policy) for trace in traces
        ]
        counts = Counter(zip((trace.meta["voice"] for trace in traces), kinds, strict=True))
        table = [[counts[voice, kind] for kind in sorted(set(kinds))] for voice in voices]
        assert chi2_contingency(table).pvalue > 1e-3, value


@pytest.mark.parametrize(
    ("environment", "options", "complaint"),
    [
        ("shop", {}, "expected the environment 'desk', found 'shop'"),
        ("desk", {"seed": -1}, "seed of 0 or more"),
        ("desk", {"test": 0}, "at least 1 task in each split"),
        ("desk", {"samples": 13}, "expected 1 to 12 samples"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, environment: str, options: dict[str, int], complaint: str
) -> None:
    with pytest.raises(PRMError, match=complaint):
        generate(environment, out=str(tmp_path / "out"), **options)
    assert not (tmp_path / "out").exists()
