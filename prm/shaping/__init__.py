"""Blending process and terminal rewards: pure functions of arrays (no torch import here).

``config`` says what to do and whether it keeps the optimal policy, ``modes`` turns scores into step
rewards, ``advantages`` turns those into what a policy gradient is weighted with, ``tokens`` lays
step values over the tokens of a trainer. NumPy arrays or torch tensors in, the same kind out.

A step reward model scores actions, p_i, and states, Φ_i; the outcome R is paid at the end. Modes:

``terminal``    0                           The outcome alone.
``potential``   γΦ_{i+1} − Φ_i              Keeps the optimal policy, whatever Φ is: it pays a step
                                            at once what it will be worth, and takes it back if not.
``baseline``    advantage with −Φ_i         Keeps it too, and pays nothing: less variance where Φ
                                            is good. The safe choice with groups of trajectories.
``critic``      turn-level GAE with V = Φ   Keeps it at λ = 1. Below, the error of Φ enters, and
                                            the variance falls: where Φ is too high, policies learn
                                            to put off the end.
``progress``    p_i − p_{i−1}               Adds the score of the last step: policies learn to end
                                            on a step that the model likes.
``sum``         p_i                         Pays for each further step: policies learn to look busy.
``clip``        min(p_i − η, 0)             No step earns, so none is taken for its own sake;
                                            policies learn to stop early.
``delta``       p_i − p_{i+1}               The return of a step is its own score: bounded.
``clip_delta``  clip, then delta            The return of a step is its own shortfall: bounded.
``min_form``    softmax(−p/τ)_i · p_i       Sums to about the lowest score: one bad step costs as
                                            much as many.

Which of them keep the gradient of the outcome is enumerated in ``eval/results/shaping.md``. A trace
of five steps that succeeds, R = 1, with all weights 1; what each step is paid and what is to go:

>>> import numpy as np
>>> p = np.array([0.25, 0.75, 0.5, 0.5, 1.0])
>>> phi = np.array([0.25, 0.25, 0.75, 0.5, 0.5, 1.0])
>>> for mode in ("potential", "progress", "sum", "clip", "delta", "clip_delta", "min_form"):
...     paid = step_rewards(
...         ShapingConfig(mode=mode),
...         action_scores=p, state_scores=phi, terminal_reward=1.0, terminated=True,
...     )  # fmt: skip
...     rewards, to_go = (" ".join(f"{x:5.2f}" for x in v) for v in (paid.rewards, paid.returns))
...     print(f"{mode:<10} {rewards}  to go {to_go}")
potential   0.00  0.50 -0.25  0.00  0.50  to go  0.75  0.75  0.25  0.50  0.50
progress    0.25  0.50 -0.25  0.00  1.50  to go  2.00  1.75  1.25  1.50  1.50
sum         0.25  0.75  0.50  0.50  2.00  to go  4.00  3.75  3.00  2.50  2.00
clip       -0.25  0.00  0.00  0.00  1.00  to go  0.75  1.00  1.00  1.00  1.00
delta      -0.50  0.25  0.00  0.50  1.00  to go  1.25  1.75  1.50  1.50  1.00
clip_delta -0.25  0.00  0.00  0.00  1.00  to go  0.75  1.00  1.00  1.00  1.00
min_form    0.21  0.00  0.04  0.04  1.00  to go  1.29  1.07  1.07  1.04  1.00
"""

from __future__ import annotations

from prm.shaping.advantages import (
    Estimator,
    Scale,
    group_advantages,
    returns_to_go,
    shaped_advantages,
    turn_gae,
)
from prm.shaping.config import Mode, Normalise, Schedule, ShapingConfig
from prm.shaping.modes import (
    StepRewards,
    clip_delta_rewards,
    clip_rewards,
    delta_rewards,
    min_form_rewards,
    potential_rewards,
    progress_rewards,
    step_rewards,
    sum_rewards,
)
from prm.shaping.tokens import Span, broadcast_over_step, place_on_last_token, spans_from_mask

__all__ = [
    "Estimator",
    "Mode",
    "Normalise",
    "Scale",
    "Schedule",
    "ShapingConfig",
    "Span",
    "StepRewards",
    "broadcast_over_step",
    "clip_delta_rewards",
    "clip_rewards",
    "delta_rewards",
    "group_advantages",
    "min_form_rewards",
    "place_on_last_token",
    "potential_rewards",
    "progress_rewards",
    "returns_to_go",
    "shaped_advantages",
    "spans_from_mask",
    "step_rewards",
    "sum_rewards",
    "turn_gae",
]
