"""Claims come out as the numbers say, whichever way, and the answer says the same."""

from __future__ import annotations

import msgspec
import pytest

from prm.study.claims import Claim, claims, roles
from prm.study.config import BASE, OPTIMUM, RANDOM, Arm, Budget, Primary, StudyConfig
from prm.study.findings import Policies
from prm.study.known import known_answers
from prm.study.learning import Learning
from prm.study.measures import MEASURES
from prm.study.words import answer
from tests.study.study_parts import TURNS, decisions, exact, measured, policies

LARGEST = Budget(kind="fixed", turns=[14])
CONFIG = StudyConfig(
    arms=[
        Arm(name="outcome", budget=LARGEST),
        Arm(name="process", budget=LARGEST, shaping={"mode": "baseline"}),
        Arm(name="oracle", budget=LARGEST, shaping={"mode": "baseline"}, scores="oracle"),
        Arm(name="small sum", budget=LARGEST, shaping={"mode": "sum", "process_weight": 0.1}),
        Arm(name="sum", budget=LARGEST, shaping={"mode": "sum"}),
        Arm(name="mix", budget=Budget(kind="mix", turns=TURNS)),
        Arm(
            name="mixed process", budget=Budget(kind="mix", turns=TURNS), shaping={"mode": "critic"}
        ),
        Arm(name="tight", budget=Budget(kind="fixed", turns=[6])),
        Arm(name="hidden", budget=LARGEST, turns_shown=False),
    ],
    seeds=[0],
    primary=Primary(k=1, t=8),
)
SUCCESS = {
    BASE: {6: 0.1, 8: 0.1, 14: 0.1},
    "outcome": {6: 0.1, 8: 0.2, 14: 0.8},
    "process": {6: 0.1, 8: 0.2, 14: 0.8},
    "sum": {6: 0.0, 8: 0.1, 14: 0.2},
    "mix": {6: 0.2, 8: 0.5, 14: 0.8},
}


def study(
    success: dict[str, dict[int, float]] = SUCCESS,
    *,
    checks: float = 3.0,
    sum_steps: float = 9.0,
    quality: tuple[float, float] = (0.5, 0.5),
) -> Policies:
    """Base checks once and the optimum twice; base has quality 0.45 and recovers in 0.2."""
    runs = {
        name: [
            measured(
                rates,
                checks=checks if name == "outcome" else 1.0,
                steps=sum_steps if name == "sum" else 6.0,
                seed=place,
            )
        ]
        for place, (name, rates) in enumerate(success.items())
    }
    states = {BASE: [decisions(0.45, 0.2)], "outcome": [decisions(*quality, seed=1)]}
    return policies(runs | {OPTIMUM: [exact()]}, states)


def by_letter(found: list[Claim]) -> dict[str, Claim]:
    return {claim.letter: claim for claim in found}


def test_roles() -> None:
    parts = roles(CONFIG, [arm.name for arm in CONFIG.arms])
    assert (parts.outcome, parts.mix) == ("outcome", "mix")
    # Controls and arms that are not told the turns play no part.
    assert parts.process == ["process"]
    assert parts.sums == ["sum", "small sum"]
    assert parts.mix_process == ["mixed process"]
    assert parts.specialists == {6: "tight", 14: "outcome"}
    assert roles(CONFIG, ["process"]).outcome is None


def test_claims_that_are_borne_out() -> None:
    found = by_letter(claims(CONFIG, study()))
    assert {letter: claim.verdict for letter, claim in found.items()} == dict.fromkeys(
        "abcdef", "borne out"
    )
    assert found["a"].numbers[0].estimate.value == pytest.approx(0.7, abs=0.02)
    assert found["e"].numbers[0].estimate.value == pytest.approx(0.2, abs=0.02)
    assert found["f"].numbers[0].estimate.value == pytest.approx(3, abs=0.02)


def test_claims_that_are_contradicted() -> None:
    success = SUCCESS | {
        "outcome": {6: 0.2, 8: 0.5, 14: 0.2},
        "process": {6: 0.2, 8: 0.5, 14: 0.8},
        "sum": {6: 0.2, 8: 0.6, 14: 0.2},
        "mix": {6: 0.0, 8: 0.0, 14: 0.0},
    }
    found = claims(CONFIG, study(success, checks=0.5, sum_steps=5, quality=(0.9, 0.2)))
    verdicts = {claim.letter: claim.verdict for claim in found}
    assert verdicts == dict.fromkeys("abcdef", "contradicted") | {"a": "cannot be told"}


def test_what_makes_no_difference_cannot_be_told() -> None:
    same = [measured(dict.fromkeys(TURNS, 0.1))]
    found = claims(CONFIG, policies(dict.fromkeys([*SUCCESS, OPTIMUM], same)))
    verdicts = {claim.letter: claim.verdict for claim in found}
    # Half of a regret is less than the whole, so that (d) alone holds of copies.
    assert verdicts == dict.fromkeys("abef", "cannot be told") | {"d": "borne out"}


def test_claims_without_arms_for_them_are_left_out() -> None:
    some = {name: rates for name, rates in SUCCESS.items() if name in (BASE, "outcome")}
    assert "".join(by_letter(claims(CONFIG, study(some)))) == "abc"
    assert claims(CONFIG, study({BASE: SUCCESS[BASE]})) == []


def test_known_answers() -> None:
    placebos = [
        Arm(name="shuffled", budget=LARGEST, shaping={"mode": "baseline"}, scores="placebo"),
        Arm(
            name="shuffled critic",
            budget=LARGEST,
            shaping={"mode": "critic", "lam": 0.9},
            scores="placebo",
        ),
    ]
    config = StudyConfig(arms=[*CONFIG.arms[:2], *placebos], seeds=[0])
    success = {6: 0.1, 8: 0.2, 14: 0.8}
    runs = {
        OPTIMUM: [exact()],
        RANDOM: [measured(dict.fromkeys(TURNS, 0.0))],
        "outcome": [measured(success)],
        "shuffled": [measured(success)],
        "shuffled critic": [measured({6: 0.1, 8: 0.1, 14: 0.5}, seed=1)],
    }
    states = {name: [decisions(0.5, 0.5)] for name in runs}
    best = msgspec.structs.replace(decisions(1, 0.5), optimal_rate=[1.0] * 40)
    found = known_answers(config, policies(runs, states | {OPTIMUM: [best]}))
    assert len(found) == 5
    assert all(known.holds for known in found)
    worse = runs | {RANDOM: [measured(dict.fromkeys(TURNS, 0.9))], OPTIMUM: runs["outcome"]}
    broken = known_answers(config, policies(worse, states))
    assert [known.holds for known in broken[:3]] == [False, False, False]


def test_the_answer_says_which_way_it_came_out() -> None:
    nothing = [0.0]
    curve = Learning(nothing, {14: nothing}, nothing, nothing, nothing, nothing, last_rise=0.0)
    learned = {"outcome": curve, "mix": curve._replace(last_rise=0.3)}
    found = study()
    parts = roles(CONFIG, found.names)
    process, budgets, training = answer(found, parts, parts, learned, (1, 8))
    assert process.startswith("No process reward alone makes the agent measurably more robust")
    assert "0 of them make it smaller, 1 larger, and 1 cannot be told" in process
    assert "to +0.4" in process
    assert "by −0.20 [" in budgets
    assert "0.50 for mix" in budgets
    assert "1 of 2 arms was still learning when training ended (mix)" in training
    better = study(SUCCESS | {"process": SUCCESS["mix"]})
    said = answer(better, parts, parts, learned, (1, 8))[0]
    assert said.startswith("1 of 2 process rewards alone makes the agent measurably more robust")
    assert len(answer(found, roles(CONFIG, ["process"]), parts, learned, (1, 8))) == 1


def test_the_answer_says_what_failed_and_what_is_not_known() -> None:
    curve = Learning([], {}, [], [], [], [], last_rise=float("nan"))
    found = study({name: SUCCESS[name] for name in (BASE, "outcome", "mix")})
    planned = roles(CONFIG, [arm.name for arm in CONFIG.arms])
    parts = roles(CONFIG, found.names)
    process, _, training = answer(found, parts, planned, {"outcome": curve}, (1, 8))
    assert process.startswith("All arms with a process reward failed (process, sum, small sum)")
    assert "training was too short to tell" in training
    (nothing,) = answer(found, roles(CONFIG, ["mix"]), planned, {}, (1, 8))
    assert "(outcome failed)" in nothing


def test_where_nothing_ever_succeeds_a_difference_cannot_be_told() -> None:
    never = msgspec.structs.replace(measured(dict.fromkeys(TURNS, 0.0)), success=[[0.0] * 60] * 3)
    both = policies({"a": [never], "b": [never]})
    (worst,) = both.estimate("a", MEASURES["regret_worst"])
    assert worst.value > 0.9
    assert worst.low < worst.value - 0.05
    (half,) = both.combination(
        MEASURES["regret_worst"],
        lambda a, b: MEASURES["regret_worst"].read(a) - MEASURES["regret_worst"].read(b),
        "a",
        "b",
    )
    assert half.value == 0
    assert not half.low > 0
