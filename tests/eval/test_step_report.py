"""The report: one set of steps for all scorers, paired differences, honest denominators."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest

from prm.data.trace import Outcome, Step, Trace
from prm.errors import PRMError
from prm.eval.estimate import Estimate
from prm.eval.evaluate_steps import as_json, as_table, verdict
from prm.eval.step_report import StepReport, step_report
from prm.eval.steps import auroc

N_TASKS = 25


def scored_traces(noise: float = 0.4, seed: int = 0) -> list[Trace]:
    """Two traces of three steps a task; scores follow the labels as far as noise lets them."""
    rng = np.random.default_rng(seed)
    traces = []
    for number in range(2 * N_TASKS):
        labels = rng.integers(0, 2, 3).astype(float)
        scores = np.clip((labels + rng.normal(0.5, noise, 3)) / 2, 0, 1)
        messages, steps = [{"role": "user", "content": "task"}], []
        for label, score in zip(labels.tolist(), scores.tolist(), strict=True):
            known = {"human": label, "exact": label / 2}
            steps.append(Step(at=len(messages), labels=known, scores={"prm": score}))
            messages.append({"role": "assistant", "content": f"say {rng.integers(9)}"})
        traces.append(
            Trace(
                id=f"agent/{number}",
                task_id=f"{number // 2}",
                messages=messages,
                steps=steps,
                outcome=Outcome(success=bool(labels[-1] == 1)),
                state_labels={"value": [0.5, *labels.tolist()]},
                state_scores={"v": [0.5, *scores.tolist()]},
            )
        )
    return traces


def without(trace: Trace, step: int, kind: str) -> Trace:
    """The trace with one step's labels or scores taken away."""
    steps = list(trace.steps)
    steps[step] = msgspec.structs.replace(steps[step], **{kind: {}})
    return msgspec.structs.replace(trace, steps=steps)


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return scored_traces()


@pytest.fixture(scope="module")
def measured(traces: list[Trace]) -> StepReport:
    return step_report(
        traces,
        label="human",
        rank_label="exact",
        state_label="value",
        state_score="v",
        resamples=200,
    )


def test_values_are_those_of_the_pooled_steps(traces: list[Trace], measured: StepReport) -> None:
    label = np.concatenate([trace.step_labels("human") for trace in traces])
    score = np.concatenate([trace.step_scores("prm") for trace in traces])
    model = measured.scorers["model"]
    assert model["auroc"].value == pytest.approx(auroc(label, score))
    assert measured.base_rate.value == pytest.approx(label.mean())
    assert measured.scorers["constant"]["brier"].value == pytest.approx(label.var())
    assert measured.scorers["constant"]["auroc"][:3] == (0.5, 0.5, 0.5)
    assert (measured.n_traces, measured.n_steps, measured.n_skipped) == (50, 150, 0)


def test_intervals_hold_their_values_and_differences_are_paired(measured: StepReport) -> None:
    for estimates in measured.scorers.values():
        for metric, estimate in estimates.items():
            if metric != "ece" and not math.isnan(estimate.value):  # ece is biased upwards
                assert estimate.low <= estimate.value <= estimate.high, metric
    model, tfidf = measured.scorers["model"], measured.scorers["tfidf"]
    difference = measured.differences["tfidf"]["auroc"]
    assert difference.value == pytest.approx(model["auroc"].value - tfidf["auroc"].value)
    # AUROC of a constant never varies, so a paired difference moves exactly as the model does.
    against_constant = measured.differences["constant"]["auroc"]
    assert against_constant.low == pytest.approx(model["auroc"].low - 0.5)
    assert against_constant.high == pytest.approx(model["auroc"].high - 0.5)


def test_neither_the_order_of_traces_nor_anything_but_the_seed_changes_the_report(
    traces: list[Trace], measured: StepReport
) -> None:
    def model(traces: list[Trace], seed: int) -> list[Estimate]:
        report = step_report(traces, label="human", resamples=50, seed=seed)
        return list(report.scorers["model"].values())

    np.testing.assert_allclose(model(traces, 1), model(traces[::-1], 1), rtol=1e-12)
    assert model(traces, 1) == model(traces, 1)
    assert model(traces, 1) != model(traces, 2)


def test_missing_steps_are_counted_and_left_out_for_every_scorer(traces: list[Trace]) -> None:
    gaps = [without(traces[0], 0, "labels"), without(traces[1], 2, "scores"), *traces[2:]]
    report = step_report(gaps, label="human", resamples=0)
    assert (report.n_steps, report.n_skipped) == (148, 2)
    for estimates in report.scorers.values():
        assert (estimates["auroc"].n, estimates["auroc"].n_skipped) == (148, 2)
        first = estimates["first_error.accuracy"]
        assert first.n + first.n_skipped == 50
        assert 1 <= first.n_skipped <= 2  # the second gap matters only if no error came before it
        parts = [estimates[f"first_error.accuracy_{part}"].n for part in ("erroneous", "correct")]
        assert sum(parts) == first.n
        assert math.isnan(first.low)  # no resamples, no interval


def test_a_trace_without_steps_is_no_success_at_finding_errors(traces: list[Trace]) -> None:
    empty = Trace(id="empty", task_id="0", messages=[], steps=[])
    before, after = (
        step_report(given, label="human", resamples=0) for given in (traces, [*traces, empty])
    )
    first = before.scorers["model"]["first_error.accuracy"]
    assert after.scorers["model"]["first_error.accuracy"] == first._replace(n_skipped=1)
    assert after.n_traces == 51


def test_a_perfect_model_wins_everything() -> None:
    report = step_report(scored_traces(noise=0.0), label="human", resamples=50)
    model = report.scorers["model"]
    for metric in ("auroc", "average_precision", "step_accuracy", "prm_score", "first_error.f1"):
        assert model[metric][:3] == (1.0, 1.0, 1.0), metric
    assert report.best_of_n["last"]["success"] == report.best_of_n["oracle"]["success"]
    assert report.best_of_n["last"]["gain"].low > 0
    words = verdict(report)
    assert words.startswith("The model beats tfidf in average precision by 0.")
    assert "and beats tfidf in Brier score by 0." in words  # lower is better, a gain is positive


def test_a_model_that_knows_nothing_is_not_called_better() -> None:
    traces = scored_traces(noise=1000.0)
    words = verdict(step_report(traces, label="human", resamples=200))
    assert "beats" not in words


def test_soft_labels_keep_their_values(traces: list[Trace], measured: StepReport) -> None:
    assert measured.scorers["model"]["spearman"].value > 0.5
    assert math.isnan(measured.scorers["constant"]["spearman"].value)
    soft = step_report(traces, label="exact", positive_at=0.5, soft_brier=True, resamples=0)
    label = np.concatenate([trace.step_labels("exact") for trace in traces])
    score = np.concatenate([trace.step_scores("prm") for trace in traces])
    assert soft.scorers["model"]["brier"].value == pytest.approx(np.mean((score - label) ** 2))
    assert soft.base_rate == measured.base_rate._replace(
        low=soft.base_rate.low, high=soft.base_rate.high
    )


def test_states_are_one_more_than_steps(measured: StepReport) -> None:
    assert measured.states["model"]["spearman"].n == 200
    assert measured.states["model"]["brier"].value < measured.states["constant"]["brier"].value


def test_logits_need_a_threshold_and_have_no_brier(traces: list[Trace]) -> None:
    def logits(trace: Trace) -> Trace:
        steps = [
            msgspec.structs.replace(step, scores={"prm": 4 * (step.scores["prm"] or 0) - 2})
            for step in trace.steps
        ]
        return msgspec.structs.replace(trace, steps=steps)

    shifted = [logits(trace) for trace in traces]
    with pytest.raises(PRMError, match=r"are no probabilities .* give --threshold"):
        step_report(shifted, label="human", resamples=0)
    report = step_report(shifted, label="human", threshold=0.0, resamples=0)
    plain = step_report(traces, label="human", resamples=0)
    for metric, estimate in report.scorers["model"].items():
        if metric in ("brier", "ece"):
            assert math.isnan(estimate.value)
        else:
            assert estimate.value == pytest.approx(plain.scorers["model"][metric].value)
    assert report.scorers["tfidf"] == plain.scorers["tfidf"]
    assert "prod" not in report.best_of_n


def test_baselines_from_training_traces(traces: list[Trace]) -> None:
    test, train = traces[:20], traces[20:]
    report = step_report(test, train, label="human", resamples=0)
    assert report.fitted_on == "30 training traces"
    learned = np.concatenate([trace.step_labels("human") for trace in train]).mean()
    truth = np.concatenate([trace.step_labels("human") for trace in test])
    assert report.scorers["constant"]["brier"].value == pytest.approx(
        np.mean((truth - learned) ** 2)
    )
    with pytest.raises(PRMError, match="share 1 task \\('10' is one\\)"):
        step_report(traces[:21], traces[20:], label="human", resamples=0)


def test_no_choice_to_make_is_not_reported(traces: list[Trace]) -> None:
    assert step_report(traces[::2], label="human", resamples=0).best_of_n == {}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"label": "gold"},
            "no step of the traces has a label 'gold'; other step labels are: exact, human",
        ),
        ({"score": "x"}, "no step of the traces has a score 'x'; other step scores are: prm"),
        ({"rank_label": "q"}, "no step of the traces has a label 'q'"),
        (
            {"state_label": "value"},
            "no state of the traces has a score 'prm'; other state scores are: v",
        ),
        (
            {"state_label": "q", "state_score": "v"},
            "no state of the traces has a label 'q'; other state labels are: value",
        ),
        ({"positive_at": 2.0}, "all 150 steps .* are negative"),
        ({"positive_at": 0.0}, "all 150 steps .* are positive"),
        ({"resamples": -1}, "--bootstrap: expected 0 .* found -1"),
        ({"resamples": 19}, "20 to 1,000,000, found 19"),
        ({"seed": -1}, "--seed: expected a number >= 0, found -1"),
    ],
)
def test_bad_questions(traces: list[Trace], options: dict[str, object], sentence: str) -> None:
    with pytest.raises(PRMError, match=sentence):
        step_report(traces, **{"label": "human", "resamples": 0, **options})  # type: ignore[arg-type]


def test_label_and_score_on_different_steps_only(traces: list[Trace]) -> None:
    apart = [
        without(without(without(trace, 0, "labels"), 1, "scores"), 2, "scores") for trace in traces
    ]
    with pytest.raises(PRMError, match="no step has both a label 'human' and a score 'prm'"):
        step_report(apart, label="human", resamples=0)


def test_soft_brier_needs_labels_that_are_probabilities(traces: list[Trace]) -> None:
    signed = [
        msgspec.structs.replace(
            trace,
            steps=[
                msgspec.structs.replace(step, labels={"human": 2 * step.labels["human"] - 1})
                for step in trace.steps
            ],
        )
        for trace in traces
    ]
    with pytest.raises(PRMError, match=r"needs labels in \[0, 1\], found 'human' from -1 to 1"):
        step_report(signed, label="human", soft_brier=True, resamples=0)


def test_json_is_strict_and_has_a_denominator_everywhere(measured: StepReport) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    document = json.loads(as_json(measured), parse_constant=refuse)
    assert set(document["first_error"]) == {
        "accuracy",
        "accuracy_erroneous",
        "accuracy_correct",
        "f1",
    }
    assert set(document["auroc"]) == {"value", "low", "high", "n", "n_skipped"}
    assert document["baselines"]["constant"]["spearman"]["value"] is None
    assert set(document["baselines"]) == set(document["differences"])
    assert document["n_steps"] == document["brier"]["n"] == 150
    assert document["first_error"]["f1"]["n"] == document["n_traces"] == 50
    assert document["best_of_n"]["min"]["success"]["n"] == N_TASKS


def test_the_table_names_every_scorer_and_fits_its_page(measured: StepReport) -> None:
    page = as_table(measured)
    for text in (
        "model",
        "tfidf",
        "position",
        "AUROC",
        "150 steps",
        "0 skipped",
    ):
        assert text in page
    assert verdict(measured) in " ".join(page.split())
    assert f"{measured.scorers['model']['auroc'].value:.3f}" in page
    tables = page.split("Intervals: ")[0].split("\n", 1)[1]
    assert max(map(len, tables.splitlines())) <= 80
    assert "…" not in page  # nothing was cut
    for estimates in measured.scorers.values():
        assert str(estimates["brier"]) in page  # nor torn
