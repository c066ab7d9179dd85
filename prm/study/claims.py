"""The claims of the field about budgets and process rewards, each tested with its interval.

A claim is a list of differences that it says are above 0. It is borne out when all intervals are
above 0, contradicted when one is below 0, and otherwise cannot be told. What should happen if
everything were learned perfectly is known exactly, and stands beside it.

Each of (a) to (f) is left out where the study has no arm for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from prm.eval.budget_words import with_interval
from prm.eval.estimate import Estimate
from prm.study.config import BASE, OPTIMUM, Arm, StudyConfig
from prm.study.findings import Policies
from prm.study.measures import MEASURES, by_t

RECOVERIES = ("after_repeat", "after_stray")
"""Of ``MEASURES``: success after a mistake that was put in."""
Verdict = Literal["borne out", "contradicted", "cannot be told"]


class Number(NamedTuple):
    """A difference that a claim says is above 0."""

    label: str
    estimate: Estimate

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"label": self.label, **self.estimate.as_json()}


class Claim(NamedTuple):
    """One claim, and what came out."""

    letter: str
    text: str
    verdict: Verdict
    numbers: list[Number]
    exact: str
    """What the exact solution says."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return self._asdict() | {"numbers": [number.as_json() for number in self.numbers]}


class Roles(NamedTuple):
    """Which arm plays which part, among those that are told the turns left and ask the model."""

    outcome: str | None
    """The outcome alone at the largest T."""
    process: list[str]
    """A process reward beside it, other than ``sum``, at the largest T."""
    sums: list[str]
    """Mode ``sum`` at the largest T, the largest weight first."""
    mix: str | None
    """The outcome alone, mixed T."""
    mix_process: list[str]
    specialists: dict[int, str]
    """T -> the outcome alone at that T."""


def roles(config: StudyConfig, names: Sequence[str]) -> Roles:
    """The parts of the arms in ``names``, which are those that did not fail."""
    arms = [arm for arm in config.arms if arm.name in names and arm.turns_shown]
    arms = [arm for arm in arms if arm.scores == "model" and arm.estimator is None]
    most = max(config.evaluation.turns)

    def find(mode: str | None, kind: str) -> list[Arm]:
        return [
            arm
            for arm in arms
            if arm.budget.kind == kind
            and (mode is None or arm.shaping_config().mode == mode)
            and (kind != "fixed" or mode == "terminal" or arm.budget.turns == [most])
        ]

    fixed = {arm.budget.turns[0]: arm.name for arm in find("terminal", "fixed")}
    mixed = [arm.name for arm in find("terminal", "mix")]
    others = [arm for arm in find(None, "fixed") if arm.shaping_config().mode != "terminal"]
    sums = [arm for arm in others if arm.shaping_config().mode == "sum"]
    return Roles(
        outcome=fixed.get(most),
        process=[arm.name for arm in others if arm not in sums],
        sums=[a.name for a in sorted(sums, key=lambda a: -a.shaping_config().process_weight)],
        mix=mixed[0] if mixed else None,
        mix_process=[
            arm.name for arm in find(None, "mix") if arm.shaping_config().mode != "terminal"
        ],
        specialists=fixed,
    )


def claims(config: StudyConfig, policies: Policies) -> list[Claim]:
    """Claims (a) to (f), as far as the arms allow."""
    parts = roles(config, policies.names)
    if parts.outcome is None:
        return []
    found = _Claims(policies, parts, parts.outcome, config.primary.t)
    made = (found.a(), found.b(), found.c(), *found.d(), found.e(), found.f())
    return [claim for claim in made if claim is not None]


def judged(numbers: Sequence[Number]) -> Verdict:
    """
    >>> above, below = Estimate(0.2, 0.1, 0.3, 9, 0), Estimate(-0.2, -0.3, -0.1, 9, 0)
    >>> judged([Number("x", above)]), judged([Number("x", above), Number("y", below)])
    ('borne out', 'contradicted')
    >>> judged([Number("x", above), Number("y", Estimate(0.1, -0.1, 0.3, 9, 0))])
    'cannot be told'
    """
    if any(number.estimate.high < 0 for number in numbers):
        return "contradicted"
    return "borne out" if all(number.estimate.low > 0 for number in numbers) else "cannot be told"


class _Claims:
    def __init__(self, policies: Policies, parts: Roles, outcome: str, tight: int) -> None:
        self.policies, self.parts, self.outcome = policies, parts, outcome
        self.turns = policies.turns
        self.tight = tight
        self.at = self.turns.index(tight)

    def a(self) -> Claim:
        gain = _Difference(self.policies, self.outcome, BASE)
        first, last = self.turns[0], self.turns[-1]
        numbers = [
            Number(
                f"gain over base at T = {last} minus that at T = {first}",
                gain.of(lambda x: by_t("success")(x)[..., -1] - by_t("success")(x)[..., 0]),
            )
        ]
        best = self._values(OPTIMUM, "success")
        base = self._values(BASE, "success")
        exact = (
            f"The exact optimum gains {best[0] - base[0]:.2f} over base at T = {first} and "
            f"{best[-1] - base[-1]:.2f} at T = {last}: most of a smaller gain at a tight T is the "
            f"task, not the training."
        )
        return _claim("a", "The gain of RL over base shrinks as T tightens.", numbers, exact)

    def b(self) -> Claim:
        gain = _Difference(self.policies, self.outcome, BASE)
        excess = _Difference(self.policies, self.outcome, OPTIMUM)
        last = self.turns[-1]
        numbers = [
            Number(f"checks a run that RL added at T = {last}", gain.of(_checks(-1))),
            Number(
                f"checks a run at T = {self.tight} beyond those of the exact optimum",
                excess.of(_checks(self.at)),
            ),
        ]
        best = self._values(OPTIMUM, "checks")
        places = dict.fromkeys((len(self.turns) - 1, self.at, 0))
        checks = ", ".join(f"{best[i]:.2f} at T = {self.turns[i]}" for i in places)
        exact = f"Checks a run of the exact optimum: {checks}."
        text = "RL at a generous T relies on checking that a tight T does not allow."
        return _claim("b", text, numbers, exact)

    def c(self) -> Claim | None:
        single = MEASURES["single_step"]
        if not self.policies.has(BASE, single):
            return None
        gain = _Difference(self.policies, self.outcome, BASE, of_states=True)
        numbers = [
            Number(
                f"gain in {recovery.label} minus gain in {single.label}",
                gain.of(lambda x, read=recovery.read: read(x) - single.read(x)),
            )
            for recovery in map(MEASURES.__getitem__, RECOVERIES)
        ]
        changes = [
            f"{one.label} {_change(self.policies.difference(self.outcome, BASE, one)[0])}"
            for one in map(MEASURES.__getitem__, ("single_step", "plain", *RECOVERIES))
        ]
        exact = (
            f"Against base: {', '.join(changes)}. The exact optimum has a single-step quality of "
            f"1, and loses nothing by either mistake."
        )
        text = "Single-step quality improves less than recovery."
        return _claim("c", text, numbers, exact)

    def d(self) -> Iterator[Claim]:
        for name in self.parts.process:
            left = _Difference(self.policies, name, self.outcome, share=0.5)
            worst = MEASURES["regret_worst"]
            numbers = [
                Number(
                    f"worst-case regret of {name} minus half of that of {self.outcome}",
                    left.of(worst.read),
                )
            ]
            change = self.policies.difference(name, self.outcome, worst)[0]
            exact = (
                f"Against {self.outcome} its worst-case regret is {_change(change)}. A process "
                f"reward that keeps the optimal policy changes how fast a policy is learned, not "
                f"which T it meets in training."
            )
            text = (
                f"Process reward alone does not fix robustness: more than half of the worst-case "
                f"regret of {self.outcome} remains ({name})."
            )
            yield _claim("d", text, numbers, exact)

    def e(self) -> Claim | None:
        if self.parts.mix is None:
            return None
        less = _Difference(self.policies, self.outcome, self.parts.mix)
        numbers = [
            Number(
                f"worst-case regret of {self.outcome} minus that of {self.parts.mix}",
                less.of(MEASURES["regret_worst"].read),
            )
        ]
        at = regret_by_t(self.policies, self.parts.mix)
        exact = (
            "One policy that is told T can be optimal at every T, so nothing but training stands "
            f"between the mix and a regret of 0; it has {at}."
        )
        return _claim("e", "BudgetMix has the smaller worst-case regret.", numbers, exact)

    def f(self) -> Claim | None:
        if not self.parts.sums:
            return None
        name = self.parts.sums[0]
        more = _Difference(self.policies, name, self.outcome)
        fewer = _Difference(self.policies, self.outcome, name)
        numbers = [
            Number(
                f"turns used by {name} beyond {self.outcome}, mean over T",
                more.of(lambda x: by_t("steps")(x).mean(axis=-1)),
            ),
            Number(
                f"Pass@(1,{self.tight}) of {self.outcome} minus that of {name}",
                fewer.of(lambda x: by_t("success")(x)[..., self.at]),
            ),
        ]
        exact = (
            "Each step is paid its score, so that a policy that never answers and never fails is "
            "paid for T steps: under sum the best policy is not the one that succeeds."
        )
        text = "Naive sum lengthens traces and costs success at a tight T."
        return _claim("f", text, numbers, exact)

    def _values(self, name: str, measure: str) -> list[float]:
        return [one.value for one in self.policies.estimate(name, MEASURES[measure])]


class _Difference:
    """``a`` minus a share of ``b``."""

    def __init__(
        self, policies: Policies, a: str, b: str, *, share: float = 1.0, of_states: bool = False
    ) -> None:
        self.policies, self.share, self.names = policies, share, (a, b)
        self.kind = MEASURES["single_step" if of_states else "success"]

    def of(self, read: Any) -> Estimate:
        """Of one number of each."""
        return self.policies.combination(
            self.kind, lambda x, y: read(x) - self.share * read(y), *self.names
        )[0]


def regret_by_t(policies: Policies, name: str) -> str:
    """
    "0.10 at T = 6, 0.20 at T = 8"
    """
    found = policies.estimate(name, MEASURES["regret"])
    return ", ".join(
        f"{e.value:.2f} at T = {t}" for t, e in zip(policies.turns, found, strict=True)
    )


def _checks(at: int) -> Any:
    return lambda columns: by_t("checks")(columns)[..., at]


def _claim(letter: str, text: str, numbers: list[Number], exact: str) -> Claim:
    return Claim(letter, text, judged(numbers), numbers, exact)


def _change(estimate: Estimate) -> str:
    return with_interval(estimate, 3, signed=True)
