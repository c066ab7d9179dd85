"""What the report says of policies follows from their numbers, on policies with known ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from prm.errors import PRMError
from prm.rl.desk.world import DeskConfig
from prm.study.arm import run_scripted
from prm.study.config import Arm, Budget, Evaluation, StudyConfig
from prm.study.layout import RUNS
from prm.study.measure import measure
from prm.study.measures import MEASURES
from tests.study.study_parts import TURNS, decisions, exact, measured, policies


def test_the_optimum_has_no_regret_and_others_have_what_is_missing() -> None:
    best = exact()
    lower = msgspec.structs.replace(best, success=(0.5 * np.array(best.success)).tolist())
    both = policies({"best": [best], "lower": [lower]})
    for estimate in both.estimate("best", MEASURES["regret"]):
        assert estimate.value == pytest.approx(0, abs=1e-12)
    missing = 0.5 * np.array(best.success).mean(axis=1)
    found = [estimate.value for estimate in both.estimate("lower", MEASURES["regret"])]
    assert found == pytest.approx(missing.tolist())
    worst = both.estimate("lower", MEASURES["regret_worst"])[0]
    assert worst.value == pytest.approx(missing.max())


def test_where_all_runs_succeed_the_luck_in_it_has_its_exact_bound() -> None:
    best = exact()
    certain = msgspec.structs.replace(best, success=[[0.0] * 60, best.success[1], [1.0] * 60])
    found = policies({"certain": [certain]})
    never, _, always = found.estimate("certain", MEASURES["success"])
    assert (never.value, never.low) == (0, 0)
    assert (always.value, always.high) == (1, 1)
    assert always.low == pytest.approx(1 - never.high)
    assert never.high == pytest.approx(1 - 0.025 ** (1 / 60))
    # Runs that all succeed at T = 14 do better than the optimum's 0.99, and may be its.
    regret = found.estimate("certain", MEASURES["regret"])[2]
    assert regret.value < 0 < regret.high


def test_success_by_hops_is_that_of_the_tasks_with_so_many() -> None:
    one = measured({6: 0.1, 8: 0.2, 14: 0.6})
    found = policies({"one": [one]}).estimate("one", MEASURES["hops"])
    table = np.array(one.success)
    for count, estimate in zip((2, 3, 4), found, strict=True):
        own = [place for place, hops in enumerate(one.hops) if hops == count]
        assert estimate.value == pytest.approx(table[:, own].mean())


def test_a_conditional_share_is_a_ratio_of_means() -> None:
    one = measured(dict.fromkeys(TURNS, 0.5))
    weights = np.zeros((3, 60))
    weights[0, :10] = 1
    parts = np.zeros((3, 60))
    parts[0, :4] = 1
    one = msgspec.structs.replace(one, erred=weights.tolist(), recovered=parts.tolist())
    found = policies({"one": [one]}).estimate("one", MEASURES["natural_recovery"])[0]
    assert found.value == pytest.approx(0.4)
    assert found.low < 0.4 < found.high


def test_differences_are_paired_and_turn_their_sign() -> None:
    hard = measured(dict.fromkeys(TURNS, 0.5))
    noisy = np.random.default_rng(1).uniform(0, 0.9, (3, 60))
    a = msgspec.structs.replace(hard, success=noisy.tolist())
    b = msgspec.structs.replace(hard, success=(noisy + 0.05).tolist())
    both = policies({"a": [a], "b": [b]})
    for forth, back in zip(
        both.difference("b", "a", MEASURES["success"]),
        both.difference("a", "b", MEASURES["success"]),
        strict=True,
    ):
        # The tasks differ by up to 0.9, the two policies on each of them by 0.05.
        assert forth.value == pytest.approx(0.05)
        assert -back.value == pytest.approx(0.05)
    assert both.estimate("a", MEASURES["success"])[0].high - 0.05 > 0.05


def test_states_that_allow_no_mistake_count_for_decisions_alone() -> None:
    one = decisions(0.5, 0.3)
    found = policies({"one": [exact()]}, {"one": [one]})
    assert found.estimate("one", MEASURES["single_step"])[0].value == pytest.approx(
        np.mean(one.optimal_rate)
    )
    for name, rates in (("after_repeat", one.repeat_rate), ("after_stray", one.stray_rate)):
        kept = [rate for rate in rates if rate is not None]
        assert found.estimate("one", MEASURES[name])[0].value == pytest.approx(np.mean(kept))


def test_other_tasks_are_not_compared() -> None:
    one = exact()
    other = msgspec.structs.replace(one, tasks=[f"other {task}" for task in one.tasks])
    with pytest.raises(PRMError, match="policy 'b' was run on other tasks or budgets"):
        policies({"a": [one], "b": [other]})


def test_the_known_agents_have_known_numbers(tmp_path: Path) -> None:
    config = StudyConfig(
        arms=[Arm(name="x", budget=Budget(kind="fixed", turns=[6]))],
        seeds=[0],
        evaluation=Evaluation(turns=(6, 9, 14), tasks=100, samples=4, states=1),
    )
    found = {}
    for name in ("optimal", "random"):
        run_scripted(config, name, name, tmp_path / name)
        found[name] = [measure(tmp_path / name / RUNS, DeskConfig())]
    both = policies(found)
    assert both.estimate("optimal", MEASURES["own_optimal"])[0].value == 1
    for estimate in both.estimate("optimal", MEASURES["regret"]):
        assert estimate.low <= 0 <= estimate.high
    for estimate in both.difference("optimal", "random", MEASURES["success"]):
        assert estimate.low > 0
    assert both.estimate("random", MEASURES["own_optimal"])[0].value < 0.5
    # The tighter T is, the fewer checks the optimum can afford.
    checks = [one.value for one in both.estimate("optimal", MEASURES["checks"])]
    assert checks == sorted(checks)
    assert both.estimate("optimal", MEASURES["repeated"])[0].value < 0.2
