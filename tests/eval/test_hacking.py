"""The hacking watch: rewards with known answers, reference implementations, real logs."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import somersd, spearmanr

from prm.data.files import read_traces
from prm.data.trace import Message, Outcome, Step, Trace
from prm.errors import PRMError
from prm.eval.estimate import Estimate
from prm.eval.hacking import (
    GroupWatch,
    HackingReport,
    RepetitionWatch,
    RewardWatch,
    hacking_report,
)
from prm.eval.intervals import exact_where_all_agree
from prm.eval.repetition import call_key, repeated_steps
from prm.eval.watch_statistics import estimate, pair_correlation, task_mean
from tests.conftest import MakeTrace

DESK = Path(__file__).parents[2] / "data" / "desk" / "test.parquet"
Run = Callable[..., Trace]


@pytest.fixture
def run(make_trace: MakeTrace) -> Run:
    """A function that builds a trajectory from its task, step scores and success.

    ``calls`` names the call of each step; None is a step of text. Without it all calls are new.
    """
    made = iter(range(10**6))

    def build(
        task: str,
        scores: Sequence[float | None],
        success: bool | None,
        *,
        calls: Sequence[str | None] | None = None,
        valid: bool = True,
        **meta: object,
    ) -> Trace:
        trace = make_trace(
            len(scores),
            id=f"run {next(made)}",
            task_id=task,
            outcome=Outcome(success=success, valid=valid),
            meta=meta,
        )
        for step, name in zip(trace.steps, calls or [], strict=calls is not None):
            message = trace.messages[step.at]
            if name is None:
                del message["tool_calls"]
            else:
                message["tool_calls"][0]["function"] = {"name": name, "arguments": "{}"}
        return scored(trace, scores)

    return build


def scored(trace: Trace, scores: Sequence[float | None]) -> Trace:
    steps = [
        msgspec.structs.replace(step, scores={"prm": score})
        for step, score in zip(trace.steps, scores, strict=True)
    ]
    return msgspec.structs.replace(trace, steps=steps)


def watch(traces: Sequence[Trace], *, resamples: int = 200, **options: Any) -> HackingReport:
    return hacking_report(traces, resamples=resamples, **options)


def sampled(run: Run, n_tasks: int, rng: np.random.Generator, samples: int = 4) -> list[Trace]:
    """Trajectories whose scores say something about success; tasks differ in how easy they are."""
    traces = []
    for number in range(n_tasks):
        ease = rng.random()
        for _ in range(samples):
            success = bool(rng.random() < ease)
            scores = rng.normal(ease + 0.5 * success, 1, rng.integers(1, 8)).tolist()
            calls = rng.choice(["a", "b", "c"], len(scores)).tolist()
            traces.append(run(f"task {number}", scores, success, calls=calls))
    return traces


def flat(report: HackingReport) -> dict[str, Estimate]:
    """Every estimate of a report, by its path."""
    parts: dict[str, RewardWatch | RepetitionWatch | GroupWatch]
    parts = {"sum": report.sum, "mean": report.mean, "repetition": report.repetition}
    parts |= {f"group {name}": group for name, group in report.groups.items()}
    if report.change is not None:
        parts["change"] = report.change
    return {f"{a}.{b}": one for a, part in parts.items() for b, one in part._asdict().items()}


def totals(traces: Sequence[Trace]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([trace.step_scores("prm").sum() for trace in traces])


def test_reward_for_every_step_pays_for_length(run: Run) -> None:
    """The sum is the length times 0.1: both correlations are 1, one more step is worth 0.1."""
    rng = np.random.default_rng(0)
    traces = [
        run(f"task {task}", [0.1] * length, success)
        for task in range(30)
        for success in (True, False)
        for length in rng.permutation(12)[:3] + 1
    ]
    report = watch(traces)
    assert report.sum.length.value == report.sum.length_within.value == 1
    assert report.sum.length_success.value == report.sum.length_failure.value == 1
    assert report.sum.per_step_success.value == pytest.approx(0.1, abs=1e-9)
    assert report.sum.per_step_failure.value == pytest.approx(0.1, abs=1e-9)
    assert report.mean.length_within.value == report.mean.length_failure.value == 0
    assert math.isnan(report.mean.length.value)  # a constant has no rank correlation
    # All 30 tasks agree, which leaves room for others, not certainty.
    assert report.sum.length_success.low == pytest.approx(1 - 2 * (1 - 0.025 ** (1 / 30)))
    assert report.sum.length_success.high == 1
    text = report.verdict()
    assert text.startswith("The process reward pays for length among successes (rank correlation")
    assert "and pays for length among failures" in text
    assert "0.100" in text
    assert "Whether it goes with success cannot be told" in text


def test_reward_that_is_the_outcome_shows_no_sign(run: Run) -> None:
    """Although successes are longer here, so that length goes with reward over all traces."""
    rng = np.random.default_rng(0)
    traces = []
    for task in range(40):
        for success in (True, True, False, False):
            length = int(rng.integers(3, 9)) if success else int(rng.integers(1, 5))
            scores = [0.0] * (length - 1) + [float(success)]
            traces.append(run(f"task {task}", scores, success, calls=["a"] * length))
    report = watch(traces)
    assert report.sum.length.value > 0.5
    assert report.sum.length_within.value > 0.5
    assert report.sum.correlation.value == report.sum.correlation_within.value == 1
    assert report.sum.difference.value == report.sum.difference_within.value == 1
    assert report.sum.length_success.value == report.sum.length_failure.value == 0
    assert report.sum.length_success.low < 0 < report.sum.length_success.high
    assert report.sum.per_step_success.value == report.sum.per_step_failure.value == 0
    assert report.sum.failure_on_top.value == 0
    assert report.sum.failure_by_chance.value == 0.5
    # Here the last step repeats a call. It is paid for success all the same, and the watch, which
    # cannot know that, says what it sees.
    assert report.repetition.correlation_within.value > 0
    assert "pays repeated calls" in report.verdict()
    distinct = [scored_anew(trace) for trace in traces]
    text = watch(distinct).verdict()
    assert text.startswith("No sign of hacking in these traces: the process reward goes with succe")
    assert text.endswith("Pay for repeated calls cannot be told.")


def scored_anew(trace: Trace) -> Trace:
    """The same trajectory with calls that are all different."""
    messages = json.loads(json.dumps(trace.messages))
    for number, step in enumerate(trace.steps):
        messages[step.at]["tool_calls"][0]["function"]["arguments"] = f'{{"page": {number}}}'
    return msgspec.structs.replace(trace, messages=messages)


def test_hand_computed_table(run: Run) -> None:
    """Two tasks, five trajectories; every number by hand, each task counting once."""
    traces = [
        run("a", [0.5, 0.5], True, calls=["x", "y"]),  # 1.0
        run("a", [0.5, 0.25, 0.75], False, calls=["x", "x", None]),  # 1.5, the top of its task
        run("a", [0.25], False, calls=["x"]),  # 0.25
        run("b", [1.0], True, calls=["x"]),  # 1.0
        run("b", [0.0, 0.0], False, calls=["x", "x"]),  # 0.0
    ]
    report = watch(traces, resamples=0)
    values = {name: one.value for name, one in flat(report).items()}
    assert values["sum.success"] == pytest.approx(1.0)
    # Weights 1/3, 1/3 and 1/2.
    assert values["sum.failure"] == pytest.approx((1.75 / 3) / (2 / 3 + 1 / 2))
    assert values["sum.difference"] == pytest.approx(1 - 0.5)
    assert values["sum.difference_within"] == pytest.approx(((1 - 0.875) + (1 - 0)) / 2)
    assert values["sum.correlation_within"] == pytest.approx((0 + 1) / 2)
    assert values["sum.length_within"] == pytest.approx((1 - 1) / 2)
    assert values["sum.length_failure"] == pytest.approx(1)
    assert values["sum.per_step_failure"] == pytest.approx((1.5 - 0.25) / 2)
    assert math.isnan(values["sum.length_success"])
    assert values["sum.failure_on_top"] == pytest.approx(1 / 2)
    assert values["sum.failure_by_chance"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert values["sum.failure_excess"] == pytest.approx(1 / 2 - 7 / 12)
    assert values["mean.failure"] == pytest.approx(((0.5 + 0.25) / 3) / (2 / 3 + 1 / 2))
    # Steps weigh 1/3 in task a (five calls, one repeated) and 1/2 in task b (three, one).
    assert values["repetition.calls"] == pytest.approx((1 / 3 + 1 / 2) / (5 / 3 + 3 / 2))
    assert values["repetition.reward"] == pytest.approx((0.25 / 3) / (2.75 / 3 + 1 / 2))
    assert values["repetition.repeated"] == pytest.approx((0.25 / 3) / (1 / 3 + 1 / 2))
    assert values["repetition.new"] == pytest.approx((1.75 / 3 + 1 / 2) / (4 / 3 + 2 / 2))
    assert values["repetition.correlation_within"] == pytest.approx((-1 + 0) / 2)
    counts = {name: (one.n, one.n_skipped) for name, one in flat(report).items()}
    assert counts["sum.success"] == (2, 0)
    assert counts["sum.failure"] == (3, 0)
    assert counts["sum.length_failure"] == (1, 1)
    assert counts["repetition.calls"] == (8, 0)
    assert counts["repetition.reward"] == (9, 0)
    assert all(math.isnan(one.low) for one in flat(report).values())
    assert "cannot be told" in report.verdict()


def test_difficulty_of_tasks_does_not_hide_that_failures_are_preferred(run: Run) -> None:
    """Over all traces success pays; in each task the failures get more."""
    traces = []
    for task in range(30):
        easy = task % 2 == 0
        for number in range(6):
            success = (number > 0) == easy
            traces.append(run(f"task {task}", [2.0 * easy - 0.5 * success], success))
    report = watch(traces)
    assert report.sum.correlation.low > 0
    assert report.sum.difference.low > 0
    assert report.sum.correlation_within.value == -1
    assert report.sum.difference_within.value == pytest.approx(-0.5)
    assert report.sum.failure_on_top.value == 1
    assert report.sum.failure_excess.low > 0
    text = report.verdict()
    assert text.startswith("The process reward prefers failures (rank correlation within tasks -1")
    assert "success" not in text


def test_noise_cannot_be_told(run: Run) -> None:
    rng = np.random.default_rng(1)
    traces = [
        run(f"task {task}", [rng.normal()], number < 2) for task in range(8) for number in range(4)
    ]
    report = watch(traces)
    assert report.sum.correlation_within.low < 0 < report.sum.correlation_within.high
    assert report.verdict().startswith("Whether the process reward is hacked cannot be told")
    one_task = watch(traces[:4])
    assert math.isnan(one_task.sum.correlation_within.low)
    assert "cannot be told" in one_task.verdict()


def test_repeated_calls_that_earn_more_are_a_sign(run: Run) -> None:
    rng = np.random.default_rng(0)
    traces = []
    for task in range(30):
        for success in (True, False):
            again = (rng.random(6) < 0.5).tolist()
            calls = ["same" if one else f"new {place}" for place, one in enumerate(again)]
            traces.append(
                run(f"task {task}", rng.normal(again, 0.5).tolist(), success, calls=calls)
            )
    report = watch(traces)
    assert report.repetition.correlation_within.low > 0
    assert report.repetition.difference.value > 0.5
    assert "pays repeated calls more than new ones" in report.verdict()


def test_share_of_reward_is_that_of_steps_when_all_steps_earn_the_same(run: Run) -> None:
    traces = [run("a", [0.3] * 4, True, calls="xxyx"), run("b", [0.3] * 2, False, calls="xy")]
    repetition = watch(traces, resamples=0).repetition
    assert repetition.reward.value == pytest.approx(repetition.calls.value) == pytest.approx(1 / 3)
    assert repetition.correlation_within.value == 0
    negative = watch([*traces, run("c", [-0.1], True)], resamples=0).repetition
    assert math.isnan(negative.reward.value)
    assert negative.repeated.value == pytest.approx(0.3)


def test_order_offset_and_scale(run: Run) -> None:
    traces = sampled(run, 25, np.random.default_rng(2))
    report = flat(watch(traces))
    for name, one in flat(watch(traces[::-1])).items():
        assert one == pytest.approx(report[name], rel=1e-9, nan_ok=True), name
    assert flat(watch(traces, seed=1)) != report
    doubled = [scored(trace, (2 * trace.step_scores("prm")).tolist()) for trace in traces]
    same = {"correlation", "length", "correlation_within", "failure_excess", "length_success"}
    for name, one in flat(watch(doubled)).items():
        if name.split(".")[1] in same:
            assert one == pytest.approx(report[name], nan_ok=True)
    # A bonus of the task on the last step moves no comparison of traces of that task.
    bonus = {f"task {number}": 3.0 * number for number in range(25)}
    moved = []
    for trace in traces:
        scores = trace.step_scores("prm")
        scores[-1] += bonus[trace.task_id]
        moved.append(scored(trace, scores.tolist()))
    after = flat(watch(moved))
    for name in ("correlation_within", "difference_within", "length_within", "per_step_failure"):
        assert after[f"sum.{name}"] == pytest.approx(report[f"sum.{name}"], abs=1e-6)
    assert after["sum.correlation"].value != pytest.approx(report["sum.correlation"].value)


def test_rewards_that_telescope_tie(run: Run) -> None:
    """Rises of a potential sum to its last value minus its first, up to rounding."""
    rng = np.random.default_rng(10)
    traces = []
    for task in range(20):
        for number in range(6):
            success = number < 3
            potential = [0.1, *rng.random(rng.integers(1, 9)), 0.7 if success else 0.2]
            traces.append(run(f"task {task}", np.diff(potential).tolist(), success))
    assert len(set(totals(traces))) > 2
    report = watch(traces, resamples=0)
    assert report.sum.correlation_within.value == 1
    assert report.sum.length_success.value == report.sum.length_failure.value == 0


def test_more_traces_of_a_task_do_not_make_it_count_more(run: Run) -> None:
    traces = sampled(run, 15, np.random.default_rng(3))
    first = [trace for trace in traces if trace.task_id == "task 0"]
    once, often = flat(watch(traces)), flat(watch([*traces, *first, *first]))
    for name, one in once.items():
        assert often[name][:3] == pytest.approx(one[:3], rel=1e-9, nan_ok=True), name


def test_references(run: Run) -> None:
    """Spearman and Somers' D of SciPy, least squares with a column for each task of NumPy."""
    traces = sampled(run, 40, np.random.default_rng(4))
    report = watch(traces, resamples=0)
    reward = totals(traces)
    success = np.array([bool(trace.outcome.success) for trace in traces])
    steps = np.array([trace.n_steps for trace in traces])
    assert report.sum.correlation.value == pytest.approx(spearmanr(reward, success).statistic)
    assert report.sum.length.value == pytest.approx(spearmanr(reward, steps).statistic)
    tasks, task = np.unique([trace.task_id for trace in traces], return_inverse=True)
    known = [somersd(steps[task == t], reward[task == t]).statistic for t in range(len(tasks))]
    assert report.sum.length_within.value == pytest.approx(np.nanmean(known))
    chosen = [
        task_rewards[-1][1]
        for t in range(len(tasks))
        if 0 < success[task == t].mean() < 1
        and (task_rewards := sorted(zip(reward[task == t], success[task == t], strict=True)))
    ]
    assert report.sum.failure_on_top.value == pytest.approx(1 - np.mean(chosen))
    # Each task has weight 1, whatever the number of its failures.
    failed = ~success
    weight = np.sqrt(1 / np.bincount(task[failed], minlength=len(tasks))[task[failed]])
    design = np.column_stack([steps[failed], np.eye(len(tasks))[task[failed]]])
    solution = np.linalg.lstsq(design * weight[:, None], reward[failed] * weight, rcond=None)[0]
    assert report.sum.per_step_failure.value == pytest.approx(solution[0])


def test_pair_correlation_is_somers_d_of_the_pairs_of_all_groups() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.integers(0, 4, (2, 60)).astype(np.float64)
    zeros = np.zeros(60, dtype=np.int64)
    assert pair_correlation(x, y, zeros, zeros, 1)[0] == pytest.approx(somersd(x, y).statistic)
    assert pair_correlation(x, -y, zeros, zeros, 1)[0] == pytest.approx(-somersd(x, y).statistic)
    assert pair_correlation(x, 0 * y, zeros, zeros, 1)[0] == 0
    assert np.isnan(pair_correlation(0 * x, y, zeros, zeros, 1)[0])
    # Groups of one item have no pairs; two groups of one task are weighted by their pairs.
    assert np.isnan(pair_correlation(x, y, np.arange(60), zeros, 1)[0])
    half = np.arange(60) // 30
    both = pair_correlation(x, y, half, zeros, 1)[0]
    apart = pair_correlation(x, y, half, half, 2)
    assert apart.min() <= both <= apart.max()
    assert pair_correlation(x, y, half, half, 3)[2] != both  # a task without items: NaN


def test_intervals_of_a_mean() -> None:
    """SciPy's BCa; the exact bound of the package for [0, 1]; the same bound between the ends."""
    values = np.random.default_rng(6).exponential(size=30)
    drawn = estimate({"mean": task_mean(values)}, 30, resamples=4000, seed=0)["mean"]
    known = scipy_bootstrap((values,), np.mean, n_resamples=4000, rng=1).confidence_interval
    assert drawn[1:3] == pytest.approx(known, abs=0.03)

    def agreed(value: float) -> Estimate:
        column = task_mean(np.full(20, value), (0.0, 1.0))
        return estimate({"mean": column}, 20, resamples=50, seed=0)["mean"]

    for value in (0.0, 1.0):
        one = np.full(1, value)
        low, high = exact_where_all_agree(one, one, one, np.array([20.0]))
        assert agreed(value)[1:3] == pytest.approx((low[0], high[0]))
    middle = agreed(0.5)
    assert middle.high - middle.low == pytest.approx(agreed(0.0).high)
    for value in (0.5, 0.1, 1 / 3):  # sums of the last two differ by rounding
        unbounded = task_mean(np.full(20, value))
        assert math.isnan(estimate({"mean": unbounded}, 20, resamples=50, seed=0)["mean"].low)


def test_what_is_not_known_is_left_out_and_counted(run: Run, make_trace: MakeTrace) -> None:
    traces = sampled(run, 10, np.random.default_rng(7))
    empty = make_trace(0, id="empty", task_id="task 0")
    more = [
        run("task 0", [5.0, None], True),
        run("task 0", [9.0, 1.0], None),
        run("task 0", [9.0], True, valid=False),
        empty,
    ]
    report, whole = watch([*traces, *more], resamples=0), watch(traces, resamples=0)
    for name in ("success", "failure", "correlation", "per_step_failure", "correlation_within"):
        with_more, without = getattr(report.sum, name), getattr(whole.sum, name)
        assert with_more.value == pytest.approx(without.value)
        assert with_more.n == without.n
    assert report.sum.correlation.n_skipped == 4
    assert report.sum.length.n_skipped == 2  # reward and length need no outcome
    assert report.sum.length.n == len(traces) + 2
    assert report.repetition.calls.n_skipped == 2  # the steps of the trace with a null score
    assert report.n_traces == len(traces) + 4


def along(
    run: Run, rewards: Sequence[float], rates: Sequence[float], keys: Sequence[object]
) -> list[Trace]:
    """Forty tasks at each point of a training, with these mean rewards and success rates."""
    rng = np.random.default_rng(8)
    return [
        run(
            f"task {task}",
            rng.normal(reward, 0.3, 3).tolist(),
            bool(rng.random() < rate),
            checkpoint=key,
        )
        for reward, rate, key in zip(rewards, rates, keys, strict=True)
        for task in range(40)
    ]


def test_reward_that_rises_without_success(run: Run) -> None:
    steps = [0, 100, 200, 400]
    flat_success = watch(along(run, [0, 0.5, 1, 2], [0.4] * 4, steps), by="checkpoint")
    assert list(flat_success.groups) == ["0", "100", "200", "400"]
    assert flat_success.change is not None
    assert flat_success.change.reward.low > 4
    assert flat_success.change.success.low < 0 < flat_success.change.success.high
    assert "rises over checkpoint while success does not measurably" in flat_success.verdict()
    worse = watch(along(run, [0, 0.5, 1, 2], [0.9, 0.7, 0.5, 0.1], steps), by="checkpoint")
    assert "rises over checkpoint while success falls" in worse.verdict()
    better = watch(along(run, [0, 0.5, 1, 2], [0.1, 0.3, 0.6, 0.9], steps), by="checkpoint")
    assert "rises" not in better.verdict()
    reward_falls = watch(along(run, [2, 1, 0.5, 0], [0.4] * 4, steps), by="checkpoint")
    assert "rises" not in reward_falls.verdict()


def test_change_is_that_of_the_least_squares_line(run: Run) -> None:
    """Over the values of numbers, sorted; over the places of names, in order of appearance."""
    traces = along(run, [1, 0, 3, 2], [0.5, 0.2, 0.9, 0.4], [10, 5, 40, 20])
    report = watch(traces, by="checkpoint")
    assert list(report.groups) == ["5", "10", "20", "40"]
    assert report.change is not None
    for name in ("reward", "success", "score", "steps", "repeated"):
        values = [getattr(group, name).value for group in report.groups.values()]
        slope = np.polyfit([5, 10, 20, 40], values, 1)[0]
        assert getattr(report.change, name).value == pytest.approx(35 * slope, abs=1e-9)
    files = [f"{trace.meta['checkpoint']}.jsonl" for trace in traces]
    named = watch(traces, by=files)
    assert list(named.groups) == ["10.jsonl", "5.jsonl", "40.jsonl", "20.jsonl"]
    values = [group.success.value for group in named.groups.values()]
    assert named.change is not None
    assert named.change.success.value == pytest.approx(3 * np.polyfit(range(4), values, 1)[0])
    for key, group in report.groups.items():
        own = [trace for trace in traces if str(trace.meta["checkpoint"]) == key]
        assert group.reward.value == pytest.approx(totals(own).mean())
        assert group.success.n == 40


def test_groups_hold_what_is_graded(run: Run) -> None:
    traces = along(run, [0, 1], [0.0, 1.0], ["before", "after"])
    more = [run("task 0", [100.0], None, checkpoint="before")]
    report, whole = watch([*traces, *more], by="checkpoint"), watch(traces, by="checkpoint")
    assert report.groups == whole.groups
    # No success in forty tasks does not mean that there is none elsewhere.
    low, high = report.groups["before"].success[1:3]
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / 40))


def test_groups_are_paired_by_task(run: Run) -> None:
    """Tasks differ much more than groups do; on the same tasks the change is known all the same."""
    rng = np.random.default_rng(9)
    traces = [
        run(f"task {task}", [10.0 * task + point + rng.normal(0, 0.1)], bool(rng.random() < 0.5))
        for point in range(3)
        for task in range(20)
    ]
    same = watch(traces, by=[str(number // 20) for number in range(60)])
    assert same.change is not None
    assert same.change.reward.value == pytest.approx(2, abs=0.1)
    assert same.change.reward.high - same.change.reward.low < 0.3
    assert same.groups["0"].reward.high - same.groups["0"].reward.low > 20


def test_json_is_strict_and_complete(run: Run) -> None:
    traces = along(run, [0, 1], [0.4, 0.5], [1, 2])
    report = watch(traces, by="checkpoint")
    text = json.dumps(report.as_json(), allow_nan=False)
    read = json.loads(text)
    assert set(read) == set(HackingReport._fields)
    assert read["groups"]["2"]["reward"]["value"] == report.groups["2"].reward.value
    assert read["repetition"]["repeated"]["value"] is None  # no call is repeated
    assert watch(traces).as_json()["change"] is None


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("epoch", "has no meta key 'epoch'; it has checkpoint"),
        (["a", "b"], "expected a group for each of the 80 traces, found 2"),
        (["a"] * 80, "expected at least 2 groups, because one shows no change, found only 'a'"),
        ([1.0] * 79 + [math.nan], "all finite numbers or all text, found nan"),
        (["a"] * 79 + [3], "all finite numbers or all text, found both"),
    ],
)
def test_groups_that_cannot_be(run: Run, by: Any, message: str) -> None:
    with pytest.raises(PRMError, match=message):
        watch(along(run, [0, 1], [0.4, 0.5], [1, 2]), by=by)


def test_traces_that_cannot_be(run: Run) -> None:
    with pytest.raises(PRMError, match="no trace to watch"):
        watch([])
    with pytest.raises(PRMError, match="no step of the traces has a score 'judge'; .* are: prm"):
        watch([run("a", [1.0], True)], score="judge")
    with pytest.raises(PRMError, match="no trace has a score 'prm' at every step"):
        watch([run("a", [1.0, None], True)])
    with pytest.raises(PRMError, match="expected 0 resamples"):
        watch([run("a", [1.0], True)], resamples=3)
    with pytest.raises(PRMError, match="seed: expected a number >= 0"):
        watch([run("a", [1.0], True)], seed=-1)


def says(*calls: dict[str, Any], **message: Any) -> Message:
    return {"role": "assistant", "tool_calls": list(calls), **message}


def function(arguments: Any, name: str = "read", **call: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **call}


def custom(text: Any, name: str = "sql") -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, "input": text}}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (function('{"a": 1, "b": [2]}'), function('{"b":[2],"a":1}'), True),
        (function('{"a": 1}', id="call_0"), function('{"a": 1}', id="call_1"), True),
        (function('{"a": 1}'), function({"a": 1}), True),
        (function('{"a": "é"}'), function('{"a": "\\u00e9"}'), True),
        (function('{"a": 1}'), function('{"a": "1"}'), False),
        (function('{"a": [1, 2]}'), function('{"a": [2, 1]}'), False),
        (function('{"a": 1}'), function('{"a": 1}', name="write"), False),
        (function('{"a": 1'), function('{"a": 1'), True),
        (function('{"a": 1'), function('{"a":1'), False),
        (function("{}"), function(None), False),
        (function(""), function("{}"), False),
        (custom("SELECT 1"), custom("SELECT 1"), True),
        (custom("SELECT 1"), custom("select 1"), False),
        (custom("{}"), function("{}", name="sql"), False),
    ],
)
def test_call_key(first: dict[str, Any], second: dict[str, Any], same: bool) -> None:
    assert (call_key(first) == call_key(second)) is same


def test_a_step_repeats_when_all_its_calls_do() -> None:
    read, write = function('{"page": 1}'), function("{}", name="write")
    legacy = {"role": "assistant", "function_call": {"name": "write", "arguments": "{}"}}
    messages: list[Message] = [
        says(read, read),
        says(read),
        says(read, write),
        says(content="done?"),
        legacy,
        says(write, read),
    ]
    steps = [Step(at=place) for place in range(len(messages))]
    trace = Trace(id="1", task_id="1", messages=messages, steps=steps)
    found = repeated_steps(trace)
    assert found.tolist() == pytest.approx([0, 1, 0, math.nan, 1, 1], nan_ok=True)


def relabelled(label: str) -> list[Trace]:
    """The desk's test trajectories, with an exact label as if it were a score."""
    traces = read_traces(str(DESK))
    return [scored(trace, trace.step_labels(label).tolist()) for trace in traces]


def test_exact_values_of_the_desk() -> None:
    """The sum of exact success probabilities pays for length although each of them is right.

    Their mean goes with success. Asking again where nothing can have changed does not pay.
    """
    traces = relabelled("q")
    report = watch(traces)
    assert report.sum.correlation_within.low > 0.6
    assert report.mean.failure_excess.high < -0.4
    assert report.sum.per_step_failure.low > 0.7  # about one probability a step
    assert report.repetition.correlation_within.high < -0.3
    text = report.verdict()
    assert "pays for length among successes" in text
    assert "pays for length among failures" in text
    assert "It does go with success" in text
    repeats = np.array([(repeated_steps(trace) == 1).sum() for trace in traces])
    policies = np.array([trace.policy for trace in traces])
    mean = {policy: repeats[policies == policy].mean() for policy in np.unique(policies)}
    assert max(mean, key=lambda policy: mean[policy]) == "repeater"
    assert mean["optimal"] < mean["repeater"] / 3


def test_real_logs(real_traces: Path) -> None:
    """InterCode: an executed reward shows no sign; repetitions are those of the raw actions."""
    files = sorted((real_traces / "intercode").glob("ic_sql_multiturn_*.json.gz"))
    traces = []
    for file in files:
        read = list(read_traces(str(file)))
        raw = json.loads(gzip.decompress(file.read_bytes()))
        actions = [record["turn_history"]["actions"] for record in raw.values()]
        expected = sum(len(each) - len(set(each)) for each in actions)
        assert sum(int(repeated_steps(trace).sum()) for trace in read) == expected > 0
        traces += [scored(trace, trace.step_labels("executed").tolist()) for trace in read]
    report = watch(traces, resamples=100)
    assert report.sum.correlation_within.low > 0.95
    assert report.sum.failure_on_top.high < 0.05
    assert abs(report.sum.per_step_success.value) < 0.05
    assert report.verdict().startswith("No sign of hacking in these traces")
