"""Credit is shaped_advantages for what can be compared, and 0 or NaN for the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.trainer.utils import nanstd

from prm.errors import PRMError
from prm.model.predict import TraceScores
from prm.rl.credit import Credit, Scored, outcome_scale, step_credit
from prm.rl.step_scores import checked_scores, with_scores
from prm.shaping import ShapingConfig
from prm.shaping.config import Mode
from tests.conftest import MakeTrace

MODES: list[Any] = list(get_args(Mode))


def batch(seed: int, *, groups: int = 3, size: int = 4, unknown: float = 0.0) -> list[Scored]:
    """Rollouts of 1 to 5 steps; a share of the outcomes is unknown, and a few of the scores."""
    rng = np.random.default_rng(seed)
    rows = []
    for group in np.repeat(np.arange(groups), size).tolist():
        n_steps = int(rng.integers(1, 6))
        actions, states = rng.random(n_steps), rng.random(n_steps + 1)
        actions[rng.random(n_steps) < 0.1] = np.nan
        outcome = float("nan") if rng.random() < unknown else float(rng.integers(2))
        rows.append(Scored(TraceScores(actions, states), outcome, bool(rng.random() < 0.7), group))
    return rows


def assert_same(found: Credit, expected: Credit) -> None:
    for a, b in zip(found.advantages, expected.advantages, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_rows_without_an_outcome_are_as_if_they_were_not_there(mode: Any) -> None:
    config = ShapingConfig(mode=mode)
    for seed in range(10):
        rows = batch(seed, unknown=0.3)
        known = [index for index, row in enumerate(rows) if not np.isnan(row.outcome)]
        assert len(known) < len(rows)
        whole = step_credit(config, rows)
        alone = step_credit(config, [rows[index] for index in known])
        assert [len(a) for a in whole.advantages] == [len(row.scores.actions) for row in rows]
        assert not any(
            whole.advantages[index].any() for index in range(len(rows)) if index not in known
        )
        part = Credit([whole.advantages[index] for index in known], *whole[1:])
        assert_same(part, alone)
        np.testing.assert_array_equal(whole.process[known], alone.process)
        assert np.isnan(np.delete(whole.process, known)).all()
        assert whole.share == alone.share


@pytest.mark.parametrize("mode", MODES)
def test_a_group_does_not_depend_on_others_or_on_the_order(mode: Any) -> None:
    config = ShapingConfig(mode=mode)
    rows = batch(0)
    order = np.random.default_rng(1).permutation(len(rows)).tolist()
    whole = step_credit(config, rows)
    shuffled = step_credit(config, [rows[index] for index in order])
    assert_same(shuffled, Credit([whole.advantages[index] for index in order], *whole[1:]))
    for first in range(0, len(rows), 4):
        own = step_credit(config, rows[first : first + 4])
        assert_same(own, Credit(whole.advantages[first : first + 4], *whole[1:]))


@pytest.mark.parametrize("mode", MODES)
def test_a_group_of_one_needs_a_critic(mode: Any) -> None:
    (row,) = batch(3, groups=1, size=1)
    row = row._replace(outcome=1.0)
    credit = step_credit(ShapingConfig(mode=mode), [row])
    if mode == "critic":
        # What was got less what was expected.
        states = row.scores.states
        end = 0.0 if row.terminated else states[-1]
        np.testing.assert_allclose(credit.advantages[0], 1.0 + end - states[:-1])
    else:
        assert not credit.advantages[0].any()
        assert np.isnan([credit.share, *credit.process]).all()


def test_nothing_to_compare_is_no_credit() -> None:
    rows = [row._replace(outcome=float("nan")) for row in batch(0)]
    for mode in MODES:
        credit = step_credit(ShapingConfig(mode=mode), rows)
        assert not np.concatenate(credit.advantages).any()
        assert np.isnan([credit.share, *credit.process]).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(MODES), st.floats(0.01, 3))
def test_the_share_of_the_process_is_a_share(seed: int, mode: Any, weight: float) -> None:
    config = ShapingConfig(mode=mode, process_weight=weight)
    share = step_credit(config, batch(seed, unknown=0.2)).share
    assert np.isnan(share) or 0 <= share <= 1
    if mode == "terminal":
        assert np.isnan(share) or share == 0
    elif not np.isnan(share):
        assert share > 0


def test_the_share_grows_from_none_to_all() -> None:
    """From the outcome alone to the scores alone, at any scale of both."""
    rows = batch(1)
    config = ShapingConfig(mode="sum")
    shares = [
        step_credit(replace(config, process_weight=weight), rows).share
        for weight in (0.0, 0.1, 1.0, 10.0, 1e6)
    ]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] > 0.999
    assert step_credit(replace(config, terminal_weight=0.0), rows).share == 1
    scaled = replace(config, process_weight=3.0, terminal_weight=3.0)
    assert step_credit(scaled, rows).share == pytest.approx(step_credit(config, rows).share)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "terminal"])
def test_without_weight_the_process_does_nothing(mode: Any) -> None:
    rows = batch(2)
    found = step_credit(ShapingConfig(mode=mode, process_weight=0.0), rows)
    terminal = step_credit(ShapingConfig(mode="terminal"), rows, estimator="alive_mean")
    assert found.share == 0
    if mode == "critic":
        for row, advantages in zip(rows, found.advantages, strict=True):
            np.testing.assert_array_equal(advantages, row.outcome)
    else:
        assert_same(found, terminal)


def test_the_schedule_ends_without_process() -> None:
    rows = batch(4)
    config = ShapingConfig(mode="delta", schedule="linear")
    assert step_credit(config, rows, progress=0.0).share > 0
    assert step_credit(config, rows, progress=1.0).share == 0
    half = step_credit(config, rows, progress=0.5)
    assert_same(half, step_credit(ShapingConfig(mode="delta", process_weight=0.5), rows))


def test_grpo_is_the_estimator_of_mode_terminal_alone() -> None:
    rows = batch(5)
    for first in range(0, 12, 4):
        outcomes = np.array([row.outcome for row in rows[first : first + 4]])
        found = step_credit(ShapingConfig(mode="terminal"), rows).advantages[first : first + 4]
        for advantages, centred in zip(found, outcomes - outcomes.mean(), strict=True):
            np.testing.assert_allclose(advantages, centred, atol=1e-12)
    config = ShapingConfig(mode="sum")
    assert_same(step_credit(config, rows), step_credit(config, rows, estimator="alive_mean"))


def test_the_process_is_what_the_steps_are_paid() -> None:
    rows = batch(6)
    found = step_credit(ShapingConfig(mode="sum", process_weight=0.5), rows)
    paid = [0.5 * np.nansum(row.scores.actions) for row in rows]
    missing = np.array([np.isnan(row.scores.actions).any() for row in rows])
    np.testing.assert_allclose(found.process[~missing], np.array(paid)[~missing])
    for mode in ("terminal", "baseline", "critic"):
        assert not step_credit(ShapingConfig(mode=mode), rows).process.any()


def test_estimators_that_nothing_reads_are_refused() -> None:
    for mode in ("baseline", "critic"):
        with pytest.raises(PRMError, match="reads no estimator"):
            step_credit(ShapingConfig(mode=mode), batch(0), estimator="outcome")
    with pytest.raises(PRMError, match="gigpo"):
        step_credit(ShapingConfig(mode="sum"), batch(0), estimator="gigpo")


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_the_scale_is_that_of_trl(scale: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        outcomes = rng.normal(size=12)
        outcomes[rng.permutation(12)[:2]] = np.nan
        cells = torch.from_numpy(outcomes.reshape(3, 4) if scale == "group" else outcomes[None])
        expected = (nanstd(cells, dim=1, keepdim=True) + 1e-4).expand(cells.shape).reshape(-1)
        np.testing.assert_allclose(outcome_scale(outcomes, 4, scale), expected, rtol=1e-6)


def test_the_scale_is_finite_where_less_than_two_outcomes_are_known() -> None:
    outcomes = np.array([1.0, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(outcome_scale(outcomes, 2, "group"), 1e-4)
    np.testing.assert_array_equal(outcome_scale(outcomes, 2, "none"), 1.0)


def test_scores_are_kept_under_one_name_and_none_are_invented(make_trace: MakeTrace) -> None:
    trace = make_trace(2)
    some = np.array([0.5, np.nan])
    kept = with_scores(trace, TraceScores(some, np.full(3, np.nan)), "q")
    assert [step.scores for step in kept.steps] == [{"q": 0.5}, {"q": None}]
    assert kept.state_scores == {}
    kept = with_scores(trace, TraceScores(np.full(2, np.nan), np.array([0.0, np.nan, 1.0])))
    assert kept.steps == trace.steps
    assert kept.state_scores == {"prm": [0.0, None, 1.0]}
    kept.check()


def test_one_trace_without_scores_is_no_error(make_trace: MakeTrace) -> None:
    traces = [make_trace(2, id="a"), make_trace(1, id="b")]

    def half(traces: Any) -> list[TraceScores]:
        nothing = TraceScores(np.full(1, np.nan), np.full(2, np.nan))
        return [TraceScores(np.zeros(2), np.zeros(3)), nothing]

    found = checked_scores(half, traces, ShapingConfig(mode="sum"))
    assert np.isnan(found[1].actions).all()
