"""The `evaluate` modules: load offline, agree with the library and with published numbers."""

from __future__ import annotations

import doctest
import inspect
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest
from sklearn.metrics import brier_score_loss

from prm.data.files import read_traces
from prm.data.trace import Outcome
from prm.errors import PRMError
from prm.eval.pass_at_kt import cut_counts, pass_at_kt, pass_hat_kt
from prm.eval.steps import calibration_error
from prm.eval.traces import first_error
from tests.conftest import MakeTrace

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.parent.name for path in (ROOT / "eval" / "metrics").glob("*/README.md"))
COMPUTED: dict[str, dict[str, Any]] = {
    "pass_at_kt": {"predictions": [1, 0], "references": ["a", "a"], "turns": [2, 3], "k": [1, 2]},
    "pass_hat_k": {"predictions": [1, 0], "references": ["a", "a"], "k": [1, 2]},
    "first_error": {"predictions": [0, -1], "references": [0, 1]},
    "step_calibration": {"predictions": [0.5, 0.9], "references": [0, 1]},
}
"""Arguments of ``compute`` that each module takes as they are."""
SINGULAR = {"predictions": "prediction", "references": "reference"}
"""What ``add`` calls two of the columns."""
NUMBERS = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`evaluate` copies modules and rows into caches and imports the copies: not in the home."""
    cache = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", cache / "modules")
        patch.setattr(evaluate.config, "HF_METRICS_CACHE", cache / "metrics")
        patch.syspath_prepend(cache / "modules")
        yield
    for name in [name for name in sys.modules if name.split(".")[0] == "evaluate_modules"]:
        del sys.modules[name]


def load(name: str) -> evaluate.EvaluationModule:
    # Modules of one experiment wait a second for one another's file of rows.
    return evaluate.load(str(ROOT / "eval" / "metrics" / name), experiment_id=str(next(NUMBERS)))


def compute(name: str, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = load(name).compute(**arguments)
    return found


def test_every_module_is_tested() -> None:
    assert sorted(COMPUTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of_docstring_and_card_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    module = load(name)
    card = (ROOT / "eval" / "metrics" / name / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", card, flags=re.MULTILINE | re.DOTALL)
    parser = doctest.DocTestParser()
    for text in (inspect.getdoc(type(module)), *blocks):
        assert text is not None
        example = parser.get_doctest(text, {}, name, None, None)
        assert doctest.DocTestRunner().run(example) == (0, len(example.examples))
        assert example.examples
    assert blocks


@pytest.mark.parametrize("name", NAMES)
def test_the_card_names_every_input_and_output(name: str) -> None:
    module = load(name)
    card = (ROOT / "eval" / "metrics" / name / "README.md").read_text()
    options = list(inspect.signature(module._compute).parameters)
    result = compute(name, **COMPUTED[name])
    for word in [*module.features, *options, *result]:
        assert f"`{word}`" in card, word
    # Nothing is swallowed: an option that does not exist is an error.
    with pytest.raises(TypeError, match="threshold"):
        compute(name, **COMPUTED[name], threshold=1)


@pytest.mark.parametrize("name", NAMES)
def test_rows_may_come_in_batches_or_one_by_one_in_any_order(name: str) -> None:
    columns = {key: value for key, value in COMPUTED[name].items() if key != "k"}
    options = {key: value for key, value in COMPUTED[name].items() if key == "k"}
    expected = compute(name, **COMPUTED[name])
    batches, single = load(name), load(name)
    for row in (1, 0):
        batches.add_batch(**{key: value[row : row + 1] for key, value in columns.items()})
        single.add(**{SINGULAR.get(key, key): value[row] for key, value in columns.items()})
    assert batches.compute(**options) == expected
    assert single.compute(**options) == expected


@pytest.mark.parametrize("name", NAMES)
def test_results_are_strict_json_and_lengths_must_agree(name: str) -> None:
    json.dumps(compute(name, **COMPUTED[name]), allow_nan=False)
    short = {**COMPUTED[name], "references": COMPUTED[name]["references"][:1]}
    with pytest.raises(ValueError, match=r"Mismatch in the number of predictions \(2\) and ref"):
        compute(name, **short)


def test_pass_at_kt_is_human_evals_at_a_generous_budget() -> None:
    # n = 4, c = 2: 1 - C(2, 2) / C(4, 2) = 5/6, and its dual 1/6.
    rows = {"predictions": [1, 0, 1, 0], "references": ["a"] * 4, "k": [1, 2, 3]}
    found = compute("pass_at_kt", **rows, turns=[1, 2, 3, 4], t=[4, 1])
    assert found["t"] == [1, 4]
    np.testing.assert_allclose(found["pass_at_kt"], [[1 / 4, 1 / 2], [1 / 2, 5 / 6], [3 / 4, 1]])
    assert compute("pass_hat_k", **rows)["pass_hat_k"] == pytest.approx([1 / 2, 1 / 6, 0])


def test_pass_at_kt_and_pass_hat_k_are_the_librarys(make_trace: MakeTrace) -> None:
    rng = np.random.default_rng(0)
    task = [f"task {number}" for number in rng.integers(6, size=60)]
    turns, success = rng.integers(1, 11, 60).tolist(), rng.integers(2, size=60).tolist()
    traces = [
        make_trace(n, task_id=id, outcome=Outcome(success=bool(solved), max_turns=10))
        for n, id, solved in zip(turns, task, success, strict=True)
    ]
    k, t = [1, 3, 8], [2, 5, 10]
    counts = cut_counts("agent", traces, t)
    expected = np.nanmean(pass_at_kt(counts.successes, counts.samples, k), axis=0)
    rows = {"predictions": success, "references": task, "k": k}
    found = compute("pass_at_kt", **rows, turns=turns, t=t, max_turns=10)
    np.testing.assert_allclose(found["pass_at_kt"], expected)
    enough = (counts.samples[:, :1] >= np.array(k)).sum(axis=0)
    assert found["n_tasks"] == enough.tolist()
    assert found["n_tasks_skipped"] == (6 - enough).tolist()
    dual = np.nanmean(pass_hat_kt(counts.successes, counts.samples, k)[:, :, -1], axis=0)
    assert compute("pass_hat_k", **rows)["pass_hat_k"] == pytest.approx(dual.tolist())
    assert compute("pass_at_kt", **rows, turns=turns)["t"] == [1, 2, 3, 5, 8, 10]


def test_tau_bench_as_published(real_traces: Path) -> None:
    traces = list(read_traces([str(real_traces / "tau-bench" / "gpt-4o-airline.json.gz")]))
    rows = {
        "predictions": [trace.outcome.reward == 1 for trace in traces],
        "references": [trace.task_id for trace in traces],
    }
    reliable = compute("pass_hat_k", **rows, k=[1, 2, 3, 4])
    assert reliable["pass_hat_k"] == pytest.approx([0.420, 0.273, 0.220, 0.200], abs=5e-4)
    turns = [trace.n_steps for trace in traces]
    solved = compute("pass_at_kt", **rows, turns=turns, k=[1, 4], t=[8, 15, 20, 30])
    expected = [[0.210, 0.345, 0.415, 0.420], [0.320, 0.620, 0.720, 0.720]]
    np.testing.assert_allclose(solved["pass_at_kt"], expected, atol=5e-4)


def test_what_is_not_known_is_counted_and_never_a_failure() -> None:
    rows = {
        "predictions": [1, None, math.nan, 0, 1, None],
        "references": ["a", "a", "a", "b", "b", "c"],
        "k": [1, 2, 3],
    }
    reliable = compute("pass_hat_k", **rows)
    assert reliable["pass_hat_k"] == [0.75, 0.0, None]
    # Task c has no known trajectory at all, and is counted as a task all the same.
    assert (reliable["n_tasks"], reliable["n_tasks_skipped"]) == ([2, 1, 0], [1, 2, 3])
    assert (reliable["n_trajectories"], reliable["n_trajectories_skipped"]) == (3, 3)
    solved = compute("pass_at_kt", **rows, turns=[2, 1, 1, 1, None, 1], t=[1, 2])
    assert solved["pass_at_kt"] == [[0.0, 0.5], [None, None], [None, None]]
    assert (solved["n_tasks"], solved["n_tasks_skipped"]) == ([2, 0, 0], [1, 3, 3])
    assert (solved["n_trajectories"], solved["n_trajectories_skipped"]) == (2, 4)


def test_first_error_is_the_librarys() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(-1, 4, 100)
    predicted = np.where(rng.random(100) < 0.5, truth, rng.integers(-1, 4, 100))
    expected = first_error(truth.astype(float), predicted.astype(float))._asdict()
    found = compute("first_error", predictions=predicted, references=truth)
    assert {name: found[name] for name in expected} == expected
    assert (found["n_erroneous"], found["n"]) == ((truth != -1).sum(), 100)


def test_first_error_of_claiming_none_on_agent_process_bench() -> None:
    # 250 traces a subset, 104, 183, 184 and 143 with an error: "no error" scores 38.6 on average.
    truth = np.concatenate([np.repeat([0, -1], [k, 250 - k]) for k in (104, 183, 184, 143)])
    found = compute("first_error", predictions=[-1] * 1000, references=truth)
    assert 100 * found["accuracy"] == pytest.approx(38.6, abs=0.05)
    assert found["f1"] == 0


def test_first_error_misses_and_gaps() -> None:
    found = compute("first_error", predictions=[None, 0, 0], references=[1, 0, None])
    assert (found["accuracy"], found["accuracy_correct"], found["f1"]) == (0.5, None, None)
    assert (found["n"], found["n_correct"], found["n_skipped"]) == (2, 0, 1)


def test_step_calibration_is_the_librarys_and_sklearns() -> None:
    rng = np.random.default_rng(0)
    score = rng.random(500)
    label = (rng.random(500) < score**2).astype(float)
    found = compute("step_calibration", predictions=score, references=label)
    assert found["calibration_error"] == pytest.approx(calibration_error(label, score))
    assert found["brier"] == pytest.approx(brier_score_loss(label, score))
    # The card: what the base rate scores.
    rate = found["base_rate"]
    constant = compute("step_calibration", predictions=[rate] * 500, references=label)
    assert constant["calibration_error"] == pytest.approx(0)
    assert constant["brier"] == pytest.approx(rate * (1 - rate))


def test_without_a_single_known_step_calibration_is_none() -> None:
    found = compute("step_calibration", predictions=[None, 0.5], references=[1, None])
    assert found == {
        "calibration_error": None,
        "brier": None,
        "base_rate": None,
        "n": 0,
        "n_skipped": 2,
    }


BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("pass_at_kt", {"predictions": [1, 0.5]}, PRMError, "predictions[1]: expected success as 1"),
    ("pass_at_kt", {"references": ["a", None]}, PRMError, "references[1]: expected the id of a t"),
    ("pass_at_kt", {"turns": [2.5, 3]}, PRMError, "turns[0]: expected a whole number of turns"),
    ("pass_at_kt", {"turns": [-1, 3]}, PRMError, "found -1"),
    ("pass_at_kt", {"turns": [2, math.inf]}, PRMError, "found inf"),
    ("pass_at_kt", {"max_turns": 2}, PRMError, "turns[1]: expected at most max_turns = 2, found 3"),
    ("pass_at_kt", {"max_turns": 5, "t": [6]}, PRMError, "T = 6 is above the 5 turns"),
    ("pass_at_kt", {"t": [0, 1]}, PRMError, "expected turn budgets T of 1"),
    ("pass_at_kt", {"t": [1.5]}, TypeError, "'float' object cannot be interpreted as an integer"),
    ("pass_at_kt", {"k": [0]}, ValueError, "expected whole numbers K of 1 or more, found [0]"),
    ("pass_at_kt", {"predictions": [None, None]}, PRMError, "none of the 2 runs"),
    ("pass_hat_k", {"predictions": [2, 0]}, PRMError, "predictions[0]: expected success as 1 or 0"),
    ("pass_hat_k", {"references": ["a", None]}, PRMError, "references[1]: expected the id of a t"),
    ("pass_hat_k", {"predictions": [None, None]}, PRMError, "none of the 2 predictions says"),
    ("pass_hat_k", {"k": []}, ValueError, "expected whole numbers K of 1 or more, found []"),
    ("pass_hat_k", {"k": [1.5]}, TypeError, "cannot be interpreted as an integer"),
    ("first_error", {"predictions": [0, -2]}, PRMError, "predictions[1]: expected the place of a"),
    ("first_error", {"references": [0.5, 1]}, PRMError, "references[0]: expected the place of a"),
    ("first_error", {"predictions": [math.inf, 0]}, PRMError, "found inf"),
    ("step_calibration", {"predictions": [0.5, 1.5]}, PRMError, "expected every score in [0, 1]"),
    ("step_calibration", {"references": [0.5, 1]}, PRMError, "expected every label to be 0 or 1"),
]


@pytest.mark.parametrize(("name", "wrong", "error", "sentence"), BAD)
def test_bad_input_is_one_sentence(
    name: str, wrong: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        compute(name, **COMPUTED[name] | wrong)
