"""Errors and recoveries: closed forms, what is skipped, intervals, and logs with known numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap

from prm.data.files import read_traces
from prm.data.trace import Outcome, Trace
from prm.errors import PRMError
from prm.eval.estimate import Estimate
from prm.eval.recovery import PolicyRecovery, RecoveryReport, recovery_report
from tests.conftest import MakeTrace

DESK = Path(__file__).parents[2] / "data" / "desk" / "test.parquet"
Run = Callable[..., Trace]


@pytest.fixture
def run(make_trace: MakeTrace) -> Run:
    """A function that builds a trajectory from its task, labels and success, with a new id."""
    made = iter(range(10**6))

    def build(
        task: str,
        labels: Sequence[float | None],
        success: bool | None,
        *,
        turns: int | None = 4,
        valid: bool = True,
        policy: str = "agent",
        **meta: object,
    ) -> Trace:
        outcome = Outcome(success=success, max_turns=turns, valid=valid)
        return make_trace(
            len(labels),
            id=f"run {next(made)}",
            task_id=task,
            policy=policy,
            labels=labels,
            label="good",
            outcome=outcome,
            meta=meta,
        )

    return build


def measure(
    traces: Sequence[Trace],
    *,
    label: str = "good",
    good_at: float = 1.0,
    horizon_key: str | None = None,
    remaining: Sequence[int] | None = None,
    resamples: int = 200,
) -> tuple[RecoveryReport, PolicyRecovery]:
    """The report, and its part for the one policy "agent"."""
    report = recovery_report(
        traces,
        label=label,
        good_at=good_at,
        horizon_key=horizon_key,
        remaining=remaining,
        resamples=resamples,
    )
    return report, report.policies["agent"]


def values(estimates: Sequence[Estimate]) -> list[float]:
    return [one.value for one in estimates]


def counts(estimates: Sequence[Estimate]) -> list[tuple[int, int]]:
    return [(one.n, one.n_skipped) for one in estimates]


def sampled(run: Run, n_tasks: int, rng: np.random.Generator, samples: int = 3) -> list[Trace]:
    """Trajectories of tasks that differ in how likely an error and a success are."""
    traces = []
    for number in range(n_tasks):
        ease = rng.random()
        for _ in range(samples):
            labels = (rng.random(rng.integers(1, 8)) < 0.4 + 0.6 * ease).astype(float).tolist()
            traces.append(run(f"task {number}", labels, bool(rng.random() < ease), turns=8))
    return traces


def first_error(trace: Trace) -> int | None:
    """The first step below 1, by a plain loop; for trajectories that are labelled throughout."""
    for index, step in enumerate(trace.steps):
        label = step.labels["good"]
        assert label is not None
        if label < 1:
            return index
    return None


def recovered(traces: Sequence[Trace], least: int) -> float:
    """Share of successes among trajectories with ``least`` turns left after the first error."""
    found = []
    for trace in traces:
        first, turns = first_error(trace), trace.outcome.max_turns
        assert turns is not None
        if first is not None and turns - first - 1 >= least:
            found.append(bool(trace.outcome.success))
    return sum(found) / len(found) if found else math.nan


def test_hand_computed_table(run: Run) -> None:
    """Seven trajectories of seven tasks, four turns each: turns left are 3, 3, 3, 2, 0."""
    traces = [
        run("a", [0, 1], True),
        run("b", [0.5, 0, 1], False),
        run("c", [0, 0], False),
        run("d", [1, 0, 1, 1], True),
        run("e", [1, 1, 1, 0], False),
        run("f", [1, 1], True),
        run("g", [1], False),
    ]
    report, agent = measure(traces, remaining=[3, 0, 2])
    assert report.remaining == (0, 2, 3)
    assert (agent.n_tasks, agent.n_traces) == (7, 7)
    assert values(agent.recovery_at_least) == pytest.approx([2 / 5, 2 / 4, 1 / 3])
    assert counts(agent.recovery_at_least) == [(5, 0), (4, 0), (3, 0)]
    assert values(agent.recovery_up_to_next) == pytest.approx([0, 1, 1 / 3])
    assert counts(agent.recovery_up_to_next) == [(1, 0), (1, 0), (3, 0)]
    assert agent.success_without_error[0] == 1 / 2
    assert agent.error_share.value == pytest.approx(5 / 7)
    assert agent.first_error_step.value == pytest.approx((0 + 0 + 0 + 1 + 3) / 5)
    assert agent.first_error_place.value == pytest.approx((0 + 0 + 0 + 1 / 4 + 3 / 4) / 5)
    assert report.steps == ("0", "1", "2", "3")
    assert values(agent.first_error_at) == pytest.approx([3 / 5, 1 / 5, 0, 1 / 5])
    assert values(agent.error_rate) == pytest.approx([3 / 7, 3 / 6, 0, 1 / 2])
    assert counts(agent.error_rate) == [(7, 0), (6, 0), (3, 0), (2, 0)]


def test_good_at_moves_what_is_an_error(run: Run) -> None:
    traces = [run("a", [0.5, 1], True), run("b", [0, 1], False), run("c", [1, 1], True)]
    assert measure(traces)[1].error_share.value == pytest.approx(2 / 3)
    assert measure(traces, good_at=0.5)[1].error_share.value == pytest.approx(1 / 3)


def test_default_grid_reaches_from_no_turn_left_to_the_most_there_are(run: Run) -> None:
    traces = [run("a", [1, 0], True, turns=12), run("b", [1, 0], True, turns=9)]
    assert measure(traces)[0].remaining == (0, 1, 2, 3, 5, 8, 10)
    assert measure([run("a", [0], True, turns=None)])[0].remaining == (0,)


def test_later_steps_share_the_last_place(run: Run) -> None:
    long = [1.0] * 11
    traces = [
        run("a", [*long, 0, 0], True, turns=20),
        run("b", [*long, 1, 0], True, turns=20),
        run("c", [0], False, turns=20),
    ]
    report, agent = measure(traces)
    assert report.steps == (*map(str, range(10)), "10+")
    assert values(agent.first_error_at) == pytest.approx([1 / 3] + [0] * 9 + [2 / 3])
    assert agent.error_rate[-1].value == pytest.approx(3 / 6)
    assert counts(agent.error_rate)[-1] == (6, 0)
    assert agent.first_error_step.value == pytest.approx((11 + 12 + 0) / 3)


def test_what_is_not_known_is_skipped_and_counted(run: Run) -> None:
    traces = [
        run("a", [0, None], True),
        run("b", [None, 0], True),  # an unlabelled step may be the first error
        run("c", [1, None], False),  # or the only one
        run("d", [1, 0], False, turns=None),
        run("e", [0, 1], None),
        run("f", [0, 1], True, valid=False),
        run("g", [1, 1], None),
        run("h", [1, 1], True, turns=None),  # its budget does not matter
    ]
    _, agent = measure(traces, remaining=[0, 3])
    assert values(agent.recovery_at_least) == [1, 1]
    assert counts(agent.recovery_at_least) == [(1, 5), (1, 5)]
    assert agent.success_without_error[3:] == (1, 3)
    assert agent.success_where_unknown[3:] == (2, 0)
    assert agent.success_where_unknown.value == 0.5
    assert agent.error_share[3:] == (6, 2)
    assert agent.error_share.value == pytest.approx(4 / 6)
    assert agent.first_error_step[3:] == (4, 2)
    assert counts(agent.error_rate) == [(7, 1), (6, 2)]


def test_an_unknown_success_outside_the_cell_skips_nothing(run: Run) -> None:
    traces = [run("a", [1, 1, 0], None), run("b", [0], True)]
    _, agent = measure(traces, remaining=[0, 2])
    assert counts(agent.recovery_at_least) == [(1, 1), (1, 0)]
    assert counts(agent.recovery_up_to_next) == [(0, 1), (1, 0)]


def test_horizon_is_the_success_on_the_tasks_of_each_value(run: Run) -> None:
    traces = [
        run("a", [0], True, hops=2),
        run("a", [None], False, hops=2),
        run("b", [1], False, hops=2),
        run("c", [1], None, hops=10),
        run("d", [1], True, hops=10),
        run("d", [1], True, hops=10, policy="other"),
    ]
    report, agent = measure(traces, horizon_key="hops")
    assert report.horizon_values == (2, 10)
    assert values(agent.horizon) == [(0.5 + 0) / 2, 1]
    assert counts(agent.horizon) == [(3, 0), (1, 1)]
    assert counts(report.policies["other"].horizon) == [(0, 0), (1, 0)]
    assert math.isnan(report.policies["other"].horizon[0].value)


def test_parts_make_the_whole(run: Run) -> None:
    report, agent = measure(sampled(run, 20, np.random.default_rng(0)))
    assert sum(values(agent.first_error_at)) == pytest.approx(1)
    assert sum(one.n for one in agent.recovery_up_to_next) == agent.recovery_at_least[0].n
    mean_step = np.arange(len(report.steps)) @ values(agent.first_error_at)
    assert agent.first_error_step.value == pytest.approx(mean_step)


def test_total_probability(run: Run) -> None:
    traces = sampled(run, 20, np.random.default_rng(1))
    _, agent = measure(traces)
    erred = agent.error_share.value
    total = erred * agent.recovery_at_least[0].value
    total += (1 - erred) * agent.success_without_error.value
    assert total == pytest.approx(np.mean([bool(trace.outcome.success) for trace in traces]))


def test_with_as_many_samples_of_every_task_means_are_plain_shares(run: Run) -> None:
    traces = sampled(run, 20, np.random.default_rng(2))
    _, agent = measure(traces, remaining=range(8))
    assert values(agent.recovery_at_least) == pytest.approx(
        [recovered(traces, least) for least in range(8)]
    )


def test_a_task_counts_once_however_often_it_was_sampled(run: Run) -> None:
    """Copies of the trajectories of some tasks change counts, and no value or interval."""
    traces = sampled(run, 20, np.random.default_rng(3))
    copies = [
        msgspec.structs.replace(trace, id=f"copy {trace.id}")
        for trace in traces
        if int(trace.task_id.split()[1]) % 2
    ]
    once, more = measure(traces)[1], measure([*traces, *copies])[1]
    for one, other in zip(once.recovery_at_least, more.recovery_at_least, strict=True):
        assert other[:3] == pytest.approx(one[:3], abs=1e-9, nan_ok=True)
    assert more.error_share[:3] == pytest.approx(once.error_share[:3], abs=1e-9)
    assert more.error_share.n > once.error_share.n


def test_order_changes_nothing_and_policies_stay_apart(run: Run) -> None:
    rng = np.random.default_rng(4)
    other = [msgspec.structs.replace(t, policy="other") for t in sampled(run, 10, rng)]
    traces = [*sampled(run, 15, rng, samples=9), *other]
    report, agent = measure(traces, remaining=[0, 2])
    for _ in range(10):
        shuffled = [traces[place] for place in rng.permutation(len(traces))]
        assert measure(shuffled, remaining=[0, 2])[0].as_json() == report.as_json()
    assert list(report.policies) == ["agent", "other"]
    alone = recovery_report(other, label="good", remaining=[0, 2], resamples=200)
    ours = report.policies["other"].as_json()
    assert alone.policies["other"].error_share == report.policies["other"].error_share
    assert alone.policies["other"].as_json()["recovery_at_least"] == ours["recovery_at_least"]
    assert agent.error_share != report.policies["other"].error_share


def test_intervals_agree_with_a_plain_loop_over_resampled_tasks(run: Run) -> None:
    """scipy's BCa of a loop that knows nothing of ratios: both ends, within Monte Carlo error."""
    traces = sampled(run, 25, np.random.default_rng(5))
    tasks = [traces[start : start + 3] for start in range(0, len(traces), 3)]

    def statistic(drawn: np.ndarray) -> float:
        return recovered([trace for number in drawn for trace in tasks[int(number)]], 5)

    reference = scipy_bootstrap(
        (np.arange(len(tasks)),),
        statistic,
        n_resamples=3000,
        vectorized=False,
        method="BCa",
        random_state=np.random.default_rng(0),
    )
    (ours,) = measure(traces, remaining=[5], resamples=10_000)[1].recovery_at_least
    expected = reference.confidence_interval
    assert (ours.low, ours.high) == pytest.approx((expected.low, expected.high), abs=0.02)
    assert 0.1 < ours.high - ours.low < 0.6


def test_intervals_cover_the_truth_about_as_often_as_they_say(run: Run) -> None:
    """Tasks are easy or hard; 3 of 4 errors happen on hard ones, which weigh so much."""
    rng = np.random.default_rng(6)
    truth = (0.3 * 0.9 + 0.9 * 0.2) / (0.3 + 0.9)
    covered = []
    for _ in range(100):
        traces = []
        for number in range(40):
            errs, solves = (0.3, 0.9) if rng.random() < 0.5 else (0.9, 0.2)
            for _ in range(3):
                label, success = float(rng.random() >= errs), bool(rng.random() < solves)
                traces.append(run(f"task {number}", [label], success))
        one = measure(traces, remaining=[0], resamples=400)[1].recovery_at_least[0]
        covered.append(one.low <= truth <= one.high)
    assert 0.88 <= np.mean(covered) <= 0.99


@pytest.mark.parametrize("samples", [1, 4])
def test_bound_where_no_trajectory_recovers(run: Run, samples: int) -> None:
    """Exact for 30 tasks, whatever the samples: 1 - 0.025^(1/30)."""
    traces = [run(f"task {n}", [1, 0], False) for n in range(30) for _ in range(samples)]
    never = measure(traces, remaining=[0])[1].recovery_at_least[0]
    assert never[:2] == (0, 0)
    assert never.high == pytest.approx(1 - 0.025 ** (1 / 30))
    assert never.n == 30 * samples


def test_bound_where_all_recover_counts_trajectories_that_are_sure_to_be_independent(
    run: Run,
) -> None:
    """One of three trajectories of 30 tasks errs: one a task leaves 10 of them."""
    traces = [
        run(f"task {number}", [float(sample > 0)], sample == 0)
        for number in range(30)
        for sample in range(3)
    ]
    always = measure(traces, remaining=[0])[1].recovery_at_least[0]
    assert (always.value, always.high) == (1, 1)
    assert always.low == pytest.approx(0.025 ** (1 / 10))


def test_bound_where_steps_share_a_cell_counts_tasks(run: Run) -> None:
    """Three late steps of a trajectory are no three pieces of evidence."""
    traces = [run(f"task {number}", [0.0] + [1.0] * 12, True, turns=20) for number in range(30)]
    late = measure(traces)[1].error_rate[-1]
    assert (late.value, late.n) == (0, 90)
    assert late.high == pytest.approx(1 - 0.025 ** (1 / 30))


def test_no_interval_where_nothing_varies_or_too_little_is_known(run: Run) -> None:
    same = [run(f"task {number}", [1, 0], True) for number in range(10)]
    step = measure(same)[1].first_error_step
    assert (step.value, step.n) == (1, 10)
    assert math.isnan(step.low)
    assert math.isnan(step.high)
    varied = sampled(run, 10, np.random.default_rng(7))
    assert math.isnan(measure(varied, resamples=0)[1].error_share.low)
    assert not math.isnan(measure(varied)[1].error_share.low)
    alone = [run("a", [0, 1], True), run("a", [1, 1], False)]
    assert measure(alone)[1].error_share.value == 0.5
    assert math.isnan(measure(alone)[1].error_share.low)


def test_json_is_strict(run: Run) -> None:
    report, _ = measure([run("a", [1, 0], True, hops=2)], horizon_key="hops", remaining=[0, 3])
    found = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert found["horizon"] == {"key": "hops", "values": [2]}
    agent = found["policies"]["agent"]
    assert agent["recovery_at_least"][1]["value"] is None
    assert agent["recovery_at_least"][0] == {
        "value": 1,
        "low": None,
        "high": None,
        "n": 1,
        "n_skipped": 0,
    }


def test_sentences_for_bad_input(run: Run) -> None:
    fine = run("a", [0], True, hops=2)
    with pytest.raises(PRMError, match="no trace to evaluate"):
        measure([])
    with pytest.raises(PRMError, match="no step of the traces has a label 'right'.*good"):
        measure([fine], label="right")
    with pytest.raises(PRMError, match=r"no trace has a known first error.*below 1 .*label is 1"):
        measure([run("a", [1, 1], True)])
    with pytest.raises(PRMError, match="no trace has a known first error"):
        measure([run("a", [None, 0], True)])
    with pytest.raises(PRMError, match=r"first error at step 2 \(from 0\), beyond the 2 turns"):
        measure([run("a", [1, 1, 0], True, turns=2)])
    with pytest.raises(PRMError, match=r"remaining: expected .* >= 0, found \[-1\]"):
        measure([fine], remaining=[-1])
    with pytest.raises(PRMError, match="remaining"):
        measure([fine], remaining=[])
    with pytest.raises(PRMError, match="'run 0' has no meta key 'length'; it has hops"):
        measure([fine], horizon_key="length")
    for value in ("2", True, None, math.nan):
        with pytest.raises(PRMError, match="expected a number as meta key 'hops'"):
            measure([run("a", [0], True, hops=value)], horizon_key="hops")
    with pytest.raises(PRMError, match="task 'a' has 'hops' 2 in one trace and 3 in another"):
        measure([fine, run("a", [0], True, hops=3)], horizon_key="hops")


def test_exact_labels_of_desk_know_who_errs() -> None:
    """The optimum never errs; luck that ends all hope leaves no label, and no success either."""
    report = recovery_report(
        list(read_traces(DESK)), label="optimal", horizon_key="hops", resamples=200
    )
    optimal = report.policies["optimal"]
    assert optimal.error_share.value == 0
    assert 0 < optimal.error_share.high < 0.1
    assert optimal.recovery_at_least[0].n == 0
    assert report.horizon_values == (2, 3, 4)
    for one in report.policies.values():
        assert one.success_where_unknown.value == 0 or one.success_where_unknown.n == 0
        assert one.error_share.n + one.error_share.n_skipped == one.n_traces
        assert sum(cell.n for cell in one.horizon) == one.n_traces


@pytest.mark.parametrize(
    ("model", "within_1", "within_10"), [("gpt-4", 0.0706, 0.7369), ("gpt-3.5", 0.0851, 0.4729)]
)
def test_intercode_from_its_published_rates(
    real_traces: Path, model: str, within_1: float, within_10: float
) -> None:
    """With "not solved yet" as the error, the first one is at step 0 or there is none, so all
    follows from Pass@(1,1) and Pass@(1,10)."""
    log = real_traces / "intercode" / f"ic_sql_multiturn_{model}_10_turns.json.gz"
    traces = list(read_traces(log, policy="agent"))
    _, agent = measure(traces, label="executed", remaining=[0, 9])
    assert agent.error_share.value == pytest.approx(1 - within_1, abs=5e-5)
    assert agent.success_without_error.value == 1
    recovery = (within_10 - within_1) / (1 - within_1)
    assert values(agent.recovery_at_least) == pytest.approx([recovery] * 2, abs=2e-4)
    assert agent.recovery_up_to_next[0].n == 0
    assert values(agent.first_error_at) == [1] + [0] * 9
