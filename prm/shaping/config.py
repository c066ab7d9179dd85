"""``ShapingConfig``: how process and terminal rewards are blended, checked before anything runs.

It also says of itself whether the policy that is optimal for the outcome stays optimal, and why
(Ng, Harada and Russell 1999; the table in the documentation of the modes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from prm.errors import PRMError

Mode = Literal[
    "terminal",
    "potential",
    "baseline",
    "critic",
    "progress",
    "sum",
    "clip",
    "delta",
    "clip_delta",
    "min_form",
]
Schedule = Literal["constant", "linear", "cosine"]
Normalise = Literal["none", "group"]

_INVARIANT: dict[Mode, str] = {
    "terminal": "the outcome is all that is paid",
    "potential": "what the scores pay along a trace that ends by itself depends on its first state "
    "alone; one that is said to be cut is also paid the potential at the cut",
    "baseline": "the scores are subtracted as a function of the state before the action, which "
    "changes the variance of the gradient and not its mean",
    "critic": "at lam = 1 the scores are a baseline along a trace that ends by itself; one that "
    "is said to be cut is also paid the score at the cut",
}
_NOT_INVARIANT: dict[Mode, str] = {
    "critic": "below lam = 1 the error of the scores enters the advantage, in exchange for less "
    "variance; scores that are too high teach a policy to put off its end",
    "progress": "it adds the score of the last step to the outcome, so the policy also learns to "
    "end on a step that the model likes",
    "sum": "each step is paid its score, so the policy also learns to take more steps",
    "clip": "each step below eta costs, so the policy also learns to take fewer steps; no step "
    "earns",
    "delta": "each step is credited with its own score, so the policy also learns what the model "
    "likes; bounded by one score whatever the length",
    "clip_delta": "each step below eta is charged its own shortfall, so the policy also learns "
    "what the model likes; bounded by one score whatever the length",
    "min_form": "it adds about the lowest score of the trace to the outcome, so the policy also "
    "learns to avoid what the model dislikes; bounded by one score whatever the length",
}
_READ_BY: dict[str, tuple[Mode, ...]] = {
    "lam": ("critic",),
    "eta": ("clip", "clip_delta"),
    "temperature": ("min_form",),
}


@dataclass(frozen=True)
class ShapingConfig:
    """How rewards are shaped; ``prm.shaping.modes`` has the formulas."""

    mode: Mode = "potential"
    """terminal, potential, baseline, critic, progress, sum, clip, delta, clip_delta or min_form."""
    process_weight: float = 1.0
    """Weight of the process reward (at the start of training, where a schedule changes it)."""
    terminal_weight: float = 1.0
    """Weight of the outcome's reward."""
    gamma: float = 1.0
    """Discount per step, never per token, in [0, 1]."""
    lam: float = 1.0
    """critic: lambda of turn-level GAE in [0, 1]; 1 trusts the outcome, 0 the scores."""
    eta: float = 0.5
    """clip, clip_delta: the score from which a step costs nothing."""
    temperature: float = 0.1
    """min_form: of the softmax that picks the lowest score; towards 0 it picks that one alone."""
    schedule: Schedule = "constant"
    """How the process weight goes to final_weight over training: constant, linear or cosine."""
    final_weight: float = 0.0
    """linear, cosine: the process weight at the end of training."""
    normalise: Normalise = "none"
    """group: process and terminal stream are each divided by their own standard deviation in the
    group before they are weighted (GDPO, arXiv 2601.05242)."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest score that the model can give."""

    def __post_init__(self) -> None:
        self._check_names()
        self._check_numbers()
        self._check_unused()

    def weight_at(self, progress: float) -> float:
        """The process weight at ``progress`` in [0, 1] of training.

        Linear, or half a cosine wave (Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5
        without restarts), from ``process_weight`` to ``final_weight``.

        >>> config = ShapingConfig(process_weight=0.8, schedule="cosine")
        >>> [round(config.weight_at(progress), 3) for progress in (0.0, 0.25, 0.5, 1.0)]
        [0.8, 0.683, 0.4, 0.0]
        """
        if not 0 <= progress <= 1:
            raise PRMError(f"progress {progress}: expected the share of training done, in [0, 1]")
        if self.schedule == "constant":
            return self.process_weight
        share = progress if self.schedule == "linear" else (1 - math.cos(math.pi * progress)) / 2
        return (1 - share) * self.process_weight + share * self.final_weight

    @property
    def reads_states(self) -> bool:
        """Whether the mode reads the scores of states; all others but terminal read actions'."""
        return self.mode in ("potential", "baseline", "critic")

    @property
    def invariant(self) -> bool:
        """Whether the optimal policy for the outcome stays optimal, whatever the scores are.

        That holds where traces end by themselves. For traces that run out of turns see ``why``.
        """
        return self._judgement()[0]

    @property
    def why(self) -> str:
        """The reason for ``invariant``, in one sentence.

        >>> print(ShapingConfig(mode="sum").why)
        sum: each step is paid its score, so the policy also learns to take more steps
        """
        return self._judgement()[1]

    def _judgement(self) -> tuple[bool, str]:
        if self.terminal_weight == 0:
            return False, "terminal_weight 0: the outcome is not paid at all"
        if self.normalise == "group":
            return False, (
                "normalise 'group': the standard deviation that a trace is divided by contains the "
                "trace itself, a bias that fades as 1 / group size"
            )
        if self.process_weight == 0 and (self.schedule == "constant" or self.final_weight == 0):
            return True, "process_weight 0: the outcome is all that is paid"
        kept = self.mode in _INVARIANT and not (self.mode == "critic" and self.lam < 1)
        return kept, f"{self.mode}: {(_INVARIANT if kept else _NOT_INVARIANT)[self.mode]}"

    def _check_names(self) -> None:
        for name, allowed in (("mode", Mode), ("schedule", Schedule), ("normalise", Normalise)):
            found = getattr(self, name)
            if found not in get_args(allowed):
                raise PRMError(f"{name} {found!r}: expected one of {', '.join(get_args(allowed))}")

    def _check_numbers(self) -> None:
        self._check_score_range()
        for name in ("process_weight", "terminal_weight", "final_weight"):
            weight = getattr(self, name)
            if not (math.isfinite(weight) and weight >= 0):
                raise PRMError(
                    f"{name} {weight:g}: expected a finite number of at least 0: a negative weight "
                    f"pays for what should cost"
                )
        if not 0 <= self.gamma <= 1:
            raise PRMError(
                f"gamma {self.gamma:g}: expected a number in [0, 1]: above one the return "
                f"diverges, below zero a reward changes sign with every step before it"
            )
        if not 0 <= self.lam <= 1:
            raise PRMError(
                f"lam {self.lam:g}: expected a number in [0, 1]: outside it the advantage is no "
                f"average of estimates"
            )
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise PRMError(
                f"temperature {self.temperature:g}: expected a finite number above 0: the scores "
                f"are divided by it"
            )
        low, high = self.score_range
        if self.mode in _READ_BY["eta"] and not low <= self.eta <= high:
            raise PRMError(
                f"eta {self.eta:g}: expected a score in score_range {low:g} to {high:g}: below it "
                f"no step could cost, above it every step would"
            )

    def _check_score_range(self) -> None:
        bounds = self.score_range
        if not (len(bounds) == 2 and all(map(math.isfinite, bounds)) and bounds[0] < bounds[1]):
            raise PRMError(
                f"score_range {' to '.join(f'{bound:g}' for bound in bounds)}: expected two finite "
                f"numbers, the lower one first: scores outside them are refused"
            )

    def _check_unused(self) -> None:
        """Raise where a setting was changed that nothing would read."""
        for name, modes in _READ_BY.items():
            if self.mode not in modes and getattr(self, name) != getattr(type(self), name):
                raise PRMError(
                    f"{name} {getattr(self, name):g}: mode {self.mode!r} does not read it, only "
                    f"{' and '.join(modes)} would"
                )
        if self.mode == "critic" and self.normalise == "group":
            raise PRMError(
                "normalise 'group': mode 'critic' subtracts values from rewards, which must be on "
                "one scale; scaling each by its own spread would undo that"
            )
        if self.schedule == "constant" and self.final_weight != 0:
            raise PRMError(
                f"final_weight {self.final_weight:g}: schedule 'constant' does not read it, only "
                f"linear and cosine would"
            )
