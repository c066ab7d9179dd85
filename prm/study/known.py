"""Answers that are known beforehand: whether the study's own instrument can be trusted.

The exact optimum has no regret and decides perfectly; a random agent is at the bottom; shuffled
scores change nothing in a mode that keeps the gradient's mean, and cost success where they are
trusted as a critic below lambda = 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from prm.eval.estimate import Estimate
from prm.study.claims import Number
from prm.study.config import OPTIMUM, RANDOM, Arm, StudyConfig
from prm.study.findings import Policies
from prm.study.measures import MEASURES, by_t


class Known(NamedTuple):
    """One answer, and what came out."""

    text: str
    holds: bool
    numbers: list[Number]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return self._asdict() | {"numbers": [number.as_json() for number in self.numbers]}


_MEAN = MEASURES["success"]._replace(read=lambda c: by_t("success")(c).mean(axis=-1), share=None)
"""Success, mean over T."""


def known_answers(config: StudyConfig, policies: Policies) -> list[Known]:
    """What is known of the policies in the study."""
    found = [_no_regret(policies), _decides(policies), _bottom(policies)]
    found += [
        answer
        for arm in config.arms
        if arm.scores == "placebo" and arm.name in policies.names
        if (answer := _placebo(config, policies, arm)) is not None
    ]
    return found


def _no_regret(policies: Policies) -> Known:
    regrets = policies.estimate(OPTIMUM, MEASURES["regret"])
    numbers = [
        Number(f"regret at T = {t}", one) for t, one in zip(policies.turns, regrets, strict=True)
    ]
    holds = all(map(_contains_zero, regrets))
    return Known("The exact optimum, run like all others, has no regret at any T.", holds, numbers)


def _decides(policies: Policies) -> Known:
    (quality,) = policies.estimate(OPTIMUM, MEASURES["single_step"])
    text = "Its single-step quality is 1."
    return Known(text, quality.value == 1, [Number("single-step quality", quality)])


def _bottom(policies: Policies) -> Known:
    means = {name: policies.estimate(name, _MEAN)[0] for name in policies.names}
    others = [name for name in means if name != RANDOM]
    lowest = min(others, key=lambda name: means[name].value)
    numbers = [Number(f"success of {name}, mean over T", means[name]) for name in (RANDOM, lowest)]
    holds = means[RANDOM].value <= means[lowest].value
    return Known("No policy is below the random agent.", holds, numbers)


def _placebo(config: StudyConfig, policies: Policies, arm: Arm) -> Known | None:
    """Against the arm that differs in having no scores at all."""
    alone = [
        other.name
        for other in config.arms
        if other.shaping_config().mode == "terminal"
        and (other.budget, other.turns_shown) == (arm.budget, arm.turns_shown)
        and other.name in policies.names
    ]
    shaping = arm.shaping_config()
    biased = shaping.mode == "critic" and shaping.lam < 1
    if not alone or not (biased or shaping.mode == "baseline"):
        return None
    change = policies.difference(arm.name, alone[0], _MEAN)[0]
    numbers = [Number(f"success of {arm.name} minus that of {alone[0]}, mean over T", change)]
    if biased:
        text = f"Shuffled scores trusted as a critic cost success ({arm.name})."
        return Known(text, change.high < 0, numbers)
    text = f"Shuffled scores as a baseline change nothing ({arm.name})."
    return Known(text, _contains_zero(change), numbers)


def _contains_zero(estimate: Estimate) -> bool:
    return abs(estimate.value) < 1e-12 or estimate.low <= 0 <= estimate.high
