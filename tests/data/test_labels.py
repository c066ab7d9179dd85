"""Label makers: what a label means, and what stays unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm.data.files import read_traces, write_traces
from prm.data.labels import METHODS, LabelOptions, Method, label
from prm.data.trace import Outcome, Trace
from prm.errors import PRMError

Make = Callable[..., Trace]


def make_labels(method: str, trace: Trace, **options: Any) -> tuple[Trace, Counter[str]]:
    notes: Counter[str] = Counter()
    return METHODS[method](trace, LabelOptions(name="y", **options), notes), notes


def test_the_option_lists_every_method() -> None:
    assert set(METHODS) == set(get_args(Method))


@pytest.mark.parametrize("options", [{"name": ""}, {"threshold": float("nan")}])
def test_options_without_a_value(options: dict[str, Any]) -> None:
    with pytest.raises(PRMError, match="--name|--threshold"):
        LabelOptions(**{"name": "y"} | options)


@pytest.mark.parametrize("gamma", [0, -1, 1.5, float("nan")])
def test_a_discount_outside_its_range(gamma: float) -> None:
    with pytest.raises(PRMError, match="--gamma"):
        LabelOptions(name="y", gamma=gamma)


class TestExecuted:
    def test_rewards_are_taken_verbatim_and_missing_stays_missing(self, make_trace: Make) -> None:
        labelled, _ = make_labels("executed", make_trace(3, labels=[-1.0, None, 0.5]))
        assert [step.labels["y"] for step in labelled.steps] == [-1.0, None, 0.5]

    def test_a_threshold_includes_itself(self, make_trace: Make) -> None:
        trace = make_trace(4, labels=[0.49, 0.5, None, 1.0])
        labelled, _ = make_labels("executed", trace, threshold=0.5)
        assert [step.labels["y"] for step in labelled.steps] == [0, 1, None, 1]

    def test_a_source_without_rewards_is_an_error(self, make_trace: Make) -> None:
        with pytest.raises(PRMError, match="InterCode"):
            make_labels("executed", make_trace(2))
        make_labels("executed", make_trace(0))


class TestOutcome:
    @given(n_steps=st.integers(1, 12), gamma=st.floats(0.01, 1))
    def test_a_value_function_of_a_reward_at_the_end(
        self, make_trace: Make, n_steps: int, gamma: float
    ) -> None:
        labelled, _ = make_labels("outcome", make_trace(n_steps, success=True), gamma=gamma)
        states, actions = labelled.states("y", "labels"), labelled.step_labels("y")
        assert states[-1] == 1
        # The potential of the optimal value function pays nothing on the way (Ng 1999).
        np.testing.assert_allclose(gamma * states[1:], states[:-1])
        np.testing.assert_array_equal(actions, states[1:])

    def test_failure_is_zero_everywhere(self, make_trace: Make) -> None:
        labelled, _ = make_labels("outcome", make_trace(3, success=False), gamma=0.5)
        assert labelled.states("y", "labels").tolist() == [0, 0, 0, 0]

    def test_a_reward_needs_a_threshold(self, make_trace: Make) -> None:
        trace = make_trace(1, reward=0.5)
        with pytest.raises(PRMError, match="--threshold"):
            make_labels("outcome", trace)
        for threshold, value in ((0.5, 1), (0.51, 0)):
            labelled, _ = make_labels("outcome", trace, threshold=threshold)
            assert labelled.step_labels("y").tolist() == [value]

    def test_a_threshold_decides_where_there_is_a_reward_else_the_source(
        self, make_trace: Make
    ) -> None:
        for reward, threshold, expected in ((0.9, 0.5, 1), (0.9, None, 0), (None, 0.5, 0)):
            trace = make_trace(1, reward=reward, success=False)
            labelled, _ = make_labels("outcome", trace, threshold=threshold)
            assert labelled.step_labels("y").tolist() == [expected]

    @pytest.mark.parametrize(
        "outcome", [Outcome(), Outcome(reward=0.0, success=False, valid=False)]
    )
    def test_an_unknown_outcome_is_no_zero(self, make_trace: Make, outcome: Outcome) -> None:
        labelled, notes = make_labels("outcome", make_trace(2, outcome=outcome))
        assert np.isnan(labelled.step_labels("y")).all()
        assert np.isnan(labelled.states("y", "labels")).all()
        assert notes == {"unlabelled": 1}


class TestFirstError:
    # Messages: 0 the task; then steps at 1, 3, 5, each with one observation.
    @pytest.mark.parametrize(
        ("message", "step", "expected"),
        [
            (1, 0, [0, None, None]),
            (3, 1, [1, 0, None]),
            (5, 2, [1, 1, 0]),
            (0, None, [None, None, None]),
            (4, None, [1, None, None]),
            (6, None, [1, 1, None]),
        ],
    )
    def test_known_before_wrong_at_unknown_after(
        self, make_trace: Make, message: int, step: int | None, expected: list[float | None]
    ) -> None:
        trace = make_trace(3, meta={"first_error": {"message": message, "step": step}})
        labelled, notes = make_labels("first_error", trace)
        assert [each.labels["y"] for each in labelled.steps] == expected
        assert notes["error_off_step"] == (step is None)

    def test_without_annotation_nothing_is_known(self, make_trace: Make) -> None:
        labelled, notes = make_labels("first_error", make_trace(2))
        assert np.isnan(labelled.step_labels("y")).all()
        assert notes == {"unlabelled": 1}

    def test_an_annotation_of_the_wrong_shape(self, make_trace: Make) -> None:
        with pytest.raises(PRMError, match=r"\$\.meta\.first_error"):
            make_labels("first_error", make_trace(2, meta={"first_error": {"message": "3"}}))

    def test_real_annotations(self, real_traces: Path) -> None:
        path = real_traces / "who-and-when" / "algorithm_generated_odd.jsonl.gz"
        runs = [make_labels("first_error", run)[0] for run in read_traces(path)]
        labels = [run.step_labels("y") for run in runs]
        # 9 of 63 mistakes are in the brief and 1 on the terminal's output.
        assert sum((column == 0).sum() for column in labels) == 53


class TestCommand:
    def test_it_labels_in_order_and_keeps_the_rest(
        self, tmp_path: Path, make_trace: Make, capsys: pytest.CaptureFixture[str]
    ) -> None:
        traces = [make_trace(2, id=i, success=i == "a", labels=[0.0, 1.0]) for i in "ab"]
        write_traces(traces, tmp_path / "t.jsonl")
        label(
            [str(tmp_path / "t.jsonl")], method="outcome", out=str(tmp_path / "l.jsonl"), name="y"
        )
        labelled = list(read_traces(tmp_path / "l.jsonl"))
        assert [trace.step_labels("y").tolist() for trace in labelled] == [[1, 1], [0, 0]]
        assert [trace.step_labels("executed").tolist() for trace in labelled] == [[0, 1], [0, 1]]
        assert "2 traces, 4 steps" in capsys.readouterr().err

    @pytest.mark.parametrize("method", ["outcome", "first_error"])
    def test_labelling_nothing_at_all_is_an_error(
        self, tmp_path: Path, make_trace: Make, method: Method
    ) -> None:
        write_traces([make_trace(id=id) for id in "ab"], tmp_path / "t.jsonl")
        with pytest.raises(PRMError, match=f"--method {method} needs is unknown in 2 traces"):
            label([str(tmp_path / "t.jsonl")], method=method, out=str(tmp_path / "l.jsonl"))
        assert not (tmp_path / "l.jsonl").exists()

    def test_other_labels_of_the_same_name_are_not_lost(
        self, tmp_path: Path, make_trace: Make
    ) -> None:
        source, out = str(tmp_path / "t.jsonl"), str(tmp_path / "l.jsonl")
        write_traces([make_trace(2, labels=[0.5, None])], source)
        label([source], method="executed", out=out)  # the same values
        with pytest.raises(PRMError, match="has other labels 'executed' already"):
            label([source], method="executed", threshold=1.0, out=out)
        label([source], method="executed", threshold=1.0, name="solved", out=out)
        (trace,) = read_traces(out)
        assert trace.step_labels("executed")[0] == 0.5

    @pytest.mark.parametrize(
        "options",
        [
            {"method": "executed", "gamma": 0.5},
            {"method": "first_error", "gamma": 0.5},
            {"method": "first_error", "threshold": 0.5},
        ],
    )
    def test_options_without_meaning_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(PRMError, match="has no meaning"):
            label(["x.jsonl"], **options)
