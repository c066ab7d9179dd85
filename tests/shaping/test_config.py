"""Every bound of the configuration is refused with its reason; schedules; what is invariant."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm.errors import PRMError
from prm.shaping.config import Mode, ShapingConfig

weights = st.floats(0, 10)
shares = st.floats(0, 1)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_starts_and_ends_at_its_weights_and_is_halfway_at_half(schedule: Any) -> None:
    config = ShapingConfig(process_weight=0.7, final_weight=0.1, schedule=schedule)
    assert config.weight_at(0.0) == 0.7
    assert config.weight_at(0.5) == pytest.approx(0.4, abs=1e-15)
    assert config.weight_at(1.0) == 0.1


@given(weights, weights, shares, shares, st.sampled_from(["linear", "cosine"]))
def test_a_schedule_is_monotone_and_stays_between_its_ends(
    first: float, final: float, a: float, b: float, schedule: Any
) -> None:
    config = ShapingConfig(process_weight=first, final_weight=final, schedule=schedule)
    early, late = config.weight_at(min(a, b)), config.weight_at(max(a, b))
    low, high = min(first, final), max(first, final)
    assert low - 1e-12 <= early <= high + 1e-12
    assert (late - early) * (final - first) >= -1e-12


@given(weights, shares)
def test_cosine_is_slow_at_both_ends_and_symmetric(first: float, progress: float) -> None:
    cosine = ShapingConfig(process_weight=first, schedule="cosine")
    linear = ShapingConfig(process_weight=first, schedule="linear")
    mirrored = cosine.weight_at(progress) + cosine.weight_at(1 - progress)
    assert mirrored == pytest.approx(first, abs=1e-12)
    gap = cosine.weight_at(progress) - linear.weight_at(progress)
    assert gap >= -1e-12 if progress <= 0.5 else gap <= 1e-12


@given(weights, shares)
def test_a_constant_weight_does_not_move(weight: float, progress: float) -> None:
    assert ShapingConfig(process_weight=weight).weight_at(progress) == weight


@pytest.mark.parametrize("progress", [-0.1, 1.1, math.nan])
def test_progress_outside_training_is_refused(progress: float) -> None:
    with pytest.raises(PRMError, match="expected the share of training done, in \\[0, 1\\]"):
        ShapingConfig().weight_at(progress)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"mode": "pbrs"}, "mode 'pbrs': expected one of terminal, potential, baseline"),
    ({"schedule": "step"}, "schedule 'step': expected one of constant, linear, cosine"),
    ({"normalise": "batch"}, "normalise 'batch': expected one of none, group"),
    ({"process_weight": -1.0}, "process_weight -1: .* pays for what should cost"),
    ({"process_weight": math.nan}, "process_weight nan: expected a finite number of at least 0"),
    ({"terminal_weight": math.inf}, "terminal_weight inf: expected a finite number of at least 0"),
    ({"final_weight": -0.5, "schedule": "linear"}, "final_weight -0.5: .* pays for what should"),
    ({"gamma": 1.2}, "gamma 1.2: .* above one the return diverges"),
    ({"gamma": math.nan}, "gamma nan: expected a number in \\[0, 1\\]"),
    ({"gamma": -0.5}, "gamma -0.5: .* below zero a reward changes sign"),
    ({"lam": 1.5, "mode": "critic"}, "lam 1.5: .* no average"),
    ({"lam": math.nan, "mode": "critic"}, "lam nan: expected a number in \\[0, 1\\]"),
    ({"temperature": 0.0, "mode": "min_form"}, "temperature 0: .* scores are divided by it"),
    ({"temperature": math.inf, "mode": "min_form"}, "temperature inf: expected a finite number"),
    ({"eta": math.nan, "mode": "clip"}, "eta nan: expected a score in score_range 0 to 1"),
    ({"eta": 1.5, "mode": "clip"}, "eta 1.5: .* above it every step would"),
    ({"eta": -0.5, "mode": "clip_delta"}, "eta -0.5: .* below it no step could cost"),
    ({"score_range": (1.0, 0.0)}, "score_range 1 to 0: expected two finite numbers"),
    ({"score_range": (0.0, math.inf)}, "score_range 0 to inf: expected two finite numbers"),
    ({"score_range": (0.5, 0.5)}, "score_range 0.5 to 0.5: .* the lower one first"),
    ({"score_range": (0.0,)}, "score_range 0: expected two finite numbers"),
    ({"lam": 0.9}, "lam 0.9: mode 'potential' does not read it, only critic would"),
    ({"eta": 0.4, "mode": "sum"}, "eta 0.4: mode 'sum' does not read it, only clip and clip_delta"),
    ({"temperature": 1.0, "mode": "clip"}, "temperature 1: mode 'clip' does not read it"),
    ({"final_weight": 0.5}, "final_weight 0.5: schedule 'constant' does not read it"),
]


@pytest.mark.parametrize(("fields", "sentence"), BAD, ids=[sentence[:25] for _, sentence in BAD])
def test_a_bad_field_is_refused_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PRMError, match=sentence) as caught:
        ShapingConfig(**fields)
    assert "\n" not in str(caught.value)


def test_the_edges_of_every_bound_are_allowed() -> None:
    ShapingConfig(gamma=0.0, process_weight=0.0, terminal_weight=0.0)
    ShapingConfig(mode="critic", lam=0.0)
    for eta in (-1.0, 1.0):
        ShapingConfig(mode="clip", eta=eta, score_range=(-1.0, 1.0))


@pytest.mark.parametrize("mode", get_args(Mode))
def test_each_mode_says_in_one_sentence_whether_it_keeps_the_optimal_policy(mode: Mode) -> None:
    config = ShapingConfig(mode=mode)
    assert config.invariant == (mode in {"terminal", "potential", "baseline", "critic"})
    assert config.why.startswith(f"{mode}: ")
    assert not re.search(r"[.\n]\s|\.$", config.why), "one sentence, no full stop"


def test_reasons_differ_between_modes() -> None:
    reasons = {ShapingConfig(mode=mode).why.partition(": ")[2] for mode in get_args(Mode)}
    assert len(reasons) == len(get_args(Mode))


def test_a_critic_that_trusts_the_scores_is_not_invariant() -> None:
    config = ShapingConfig(mode="critic", lam=0.95)
    assert not config.invariant
    assert "below lam = 1" in config.why


@pytest.mark.parametrize("mode", get_args(Mode))
def test_no_mode_is_invariant_without_the_outcome_or_with_group_scales(mode: Mode) -> None:
    config = ShapingConfig(mode=mode)
    unpaid = replace(config, terminal_weight=0.0)
    assert (unpaid.invariant, unpaid.why.partition(":")[0]) == (False, "terminal_weight 0")
    if mode == "critic":
        return  # refused, see test_advantages
    scaled = replace(config, normalise="group")
    assert (scaled.invariant, scaled.why.partition(":")[0]) == (False, "normalise 'group'")


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_process_weight_that_stays_at_zero_changes_no_policy(mode: Mode) -> None:
    off = ShapingConfig(mode=mode, process_weight=0.0)
    assert off.invariant
    assert replace(off, schedule="linear").invariant
    rising = replace(off, schedule="linear", final_weight=1.0)
    assert rising.invariant == ShapingConfig(mode=mode).invariant
