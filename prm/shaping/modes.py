"""Step rewards: what each step of a trace is paid, from the outcome and a step reward model.

One pure function a mode, and ``step_rewards`` that weights its result and adds the outcome.
``ShapingConfig.invariant`` and ``why`` say which modes keep the optimal policy. Left out: modes
``baseline`` and ``critic`` pay the outcome alone, what they do with the scores is in
``prm.shaping.advantages``.

Scores may be NaN ("not scored"):

* state scores carry the last known potential; before the first one it is the lower end of the
  score range, a constant, so that the potential remains a function of the state alone;
* action scores: nothing is paid for such a step by ``sum`` and ``clip``; ``progress`` and ``delta``
  carry the last known score, 0 before the first one; ``min_form`` leaves it out of its softmax.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from prm.errors import PRMError
from prm.shaping.arrays import (
    Array,
    as_float64,
    blanked,
    carry_forward,
    checked_mask,
    discounted_to_go,
    ended,
    first_place,
    last_of,
    namespace,
    per_trace,
    place,
    state_mask_of,
)
from prm.shaping.config import ShapingConfig


class StepRewards(NamedTuple):
    """What the steps of a trace (S,) or of a padded batch (B, S) are paid; 0 at padding."""

    rewards: Array
    """Process reward, plus the terminal reward on the last step."""
    process: Array
    """The process part alone, weighted."""
    returns: Array
    """Discounted reward to go of ``rewards``."""
    step_mask: Array
    """True where there is a step."""


def step_rewards(
    config: ShapingConfig,
    *,
    action_scores: Array | None = None,
    state_scores: Array | None = None,
    terminal_reward: Array | float,
    terminated: Array | bool,
    step_mask: Array | None = None,
    progress: float = 0.0,
) -> StepRewards:
    """Blend process and terminal rewards of a trace (S,) or a padded batch (B, S).

    Args:
        config: the mode, its weights and its discount.
        action_scores: (…, S), NaN where a step was not scored.
        state_scores: (…, S+1), NaN where a state was not scored.
        terminal_reward: (…), the outcome.
        terminated: (…), True where the trace ended by itself, False where it ran out of turns.
        step_mask: (…, S), True where there is a step; every step is there if None.
        progress: share of training done, in [0, 1], for the schedule of the process weight.

    Raises:
        PRMError: scores that the mode needs are missing, a score is outside ``score_range``, a
            terminal reward is not finite, a mask has holes, a trace has no step, shapes disagree.

    >>> import numpy as np
    >>> phi = np.array([0.25, 0.5, 0.25, 0.75])
    >>> shaped = step_rewards(
    ...     ShapingConfig(), state_scores=phi, terminal_reward=1.0, terminated=True
    ... )
    >>> shaped.process, shaped.rewards, shaped.returns
    (array([ 0.25, -0.25, -0.25]), array([ 0.25, -0.25,  0.75]), array([0.75, 0.5 , 0.75]))
    """
    weight = config.weight_at(progress)
    step_mask = _step_mask(action_scores, state_scores, step_mask)
    reward = _rewards_of(terminal_reward, step_mask)
    process = weight * _process(config, action_scores, state_scores, terminated, step_mask)
    xp = namespace(step_mask)
    rewards = process + xp.where(last_of(step_mask), config.terminal_weight * reward, 0.0)
    return StepRewards(rewards, process, discounted_to_go(rewards, config.gamma), step_mask)


def _process(
    config: ShapingConfig,
    action_scores: Array | None,
    state_scores: Array | None,
    terminated: Array | bool,
    step_mask: Array,
) -> Array:
    """The unweighted process rewards (…, S) of the mode, from scores inside the range."""
    if config.mode in ("terminal", "baseline", "critic"):
        return namespace(step_mask).zeros_like(as_float64(step_mask, like=step_mask))
    if config.mode == "potential":
        states = scores_in_range(config, state_scores, step_mask, states=True)
        low = config.score_range[0]
        return potential_rewards(states, step_mask, terminated, config.gamma, low=low)
    actions = scores_in_range(config, action_scores, step_mask)
    match config.mode:
        case "progress":
            return progress_rewards(actions, step_mask)
        case "sum":
            return sum_rewards(actions, step_mask)
        case "clip":
            return clip_rewards(actions, step_mask, config.eta)
        case "delta":
            return delta_rewards(actions, step_mask)
        case "clip_delta":
            return clip_delta_rewards(actions, step_mask, config.eta)
        case "min_form":
            return min_form_rewards(actions, step_mask, config.temperature)


def potential_rewards(
    state_scores: Array,
    step_mask: Array | None,
    terminated: Array | bool,
    gamma: float,
    *,
    low: float = 0.0,
) -> Array:
    """γΦ_{i+1} − Φ_i (Ng, Harada and Russell 1999), from Φ (…, S+1) to (…, S).

    Φ counts as 0 in the last state of a trace that ended by itself (Grześ 2017), so that the
    discounted sum is −Φ_0 whatever was done; where the trace ran out of turns the last Φ stands
    for what was still to come. ``low`` is the potential before the first known one.

    >>> import numpy as np
    >>> potential_rewards(np.array([0.5, np.nan, 0.75]), None, True, 1.0)
    array([ 0. , -0.5])
    """
    step_mask = checked_mask(step_mask, state_scores, states=True)
    xp = namespace(step_mask)
    at_end = last_of(state_mask_of(step_mask)) & ended(terminated, step_mask)
    potential = known_potentials(state_scores, step_mask, low=low)
    potential = xp.where(at_end, 0.0, potential)
    return xp.where(step_mask, gamma * potential[..., 1:] - potential[..., :-1], 0.0)


def progress_rewards(action_scores: Array, step_mask: Array | None) -> Array:
    """p_i − p_{i−1} with p_{−1} = 0: the rewards of a trace sum to its last known score.

    The constant before the first step does not matter to a policy. The score of the first step in
    its place would: that step could raise the sum by being bad.

    >>> import numpy as np
    >>> progress_rewards(np.array([0.5, np.nan, 0.25]), None)
    array([ 0.5 ,  0.  , -0.25])
    """
    scores, _, xp = _prepared(action_scores, step_mask)
    known = carry_forward(scores, start=0.0)
    before = xp.concat([xp.zeros_like(known[..., :1]), known[..., :-1]], axis=-1)
    return known - before


def sum_rewards(action_scores: Array, step_mask: Array | None) -> Array:
    """p_i: each step is paid its score, and so each extra step as well.

    >>> import numpy as np
    >>> sum_rewards(np.array([0.5, np.nan, 0.25]), None)
    array([0.5 , 0.  , 0.25])
    """
    scores, _, xp = _prepared(action_scores, step_mask)
    return xp.where(xp.isnan(scores), 0.0, scores)


def clip_rewards(action_scores: Array, step_mask: Array | None, eta: float) -> Array:
    """min(p_i − η, 0) (Gao et al. 2024, arXiv 2410.15115): no step earns, some cost.

    >>> import numpy as np
    >>> clip_rewards(np.array([0.75, np.nan, 0.25]), None, eta=0.5)
    array([ 0.  ,  0.  , -0.25])
    """
    scores, _, xp = _prepared(action_scores, step_mask)
    return xp.where(scores < eta, scores - eta, 0.0)


def delta_rewards(action_scores: Array, step_mask: Array | None) -> Array:
    """p_i − p_{i+1}, then p of the last step but one, then 0 (arXiv 2410.15115).

    The undiscounted return of step i is its own score (plus the outcome), whatever follows. The
    last step has the outcome alone.

    >>> import numpy as np
    >>> delta_rewards(np.array([0.5, 0.75, 0.25, 1.0]), None)
    array([-0.25,  0.5 ,  0.25,  0.  ])
    """
    scores, step_mask, _ = _prepared(action_scores, step_mask)
    return _forward_difference(carry_forward(scores, start=0.0), step_mask)


def clip_delta_rewards(action_scores: Array, step_mask: Array | None, eta: float) -> Array:
    """Clip, then delta (arXiv 2410.15115): the return of step i is its own min(p_i − η, 0).

    >>> import numpy as np
    >>> clip_delta_rewards(np.array([0.25, 0.75, 0.0, 1.0]), None, eta=0.5)
    array([-0.25,  0.5 , -0.5 ,  0.  ])
    """
    scores, step_mask, xp = _prepared(action_scores, step_mask)
    clipped = xp.where(scores >= eta, 0.0, scores - eta)
    return _forward_difference(carry_forward(clipped, start=0.0), step_mask)


def min_form_rewards(action_scores: Array, step_mask: Array | None, temperature: float) -> Array:
    """softmax(−p/τ)_i · p_i (PURE, arXiv 2504.15275): sums to the lowest score as τ goes to 0.

    >>> import numpy as np
    >>> min_form_rewards(np.array([0.75, np.nan, 0.25]), None, temperature=0.01).round(6)
    array([0.  , 0.  , 0.25])
    """
    scores, _, xp = _prepared(action_scores, step_mask)
    scored = ~xp.isnan(scores)
    any_scored = xp.any(scored, axis=-1, keepdims=True)
    # The lowest score is taken out of the exponent: none is above 0, and one is 0.
    lowest = xp.min(xp.where(scored, scores, xp.inf), axis=-1, keepdims=True)
    above = xp.where(scored, scores - xp.where(any_scored, lowest, 0.0), 0.0)
    share = xp.where(scored, xp.exp(-above / temperature), 0.0)
    total = xp.sum(share, axis=-1, keepdims=True)
    return share / xp.where(any_scored, total, 1.0) * xp.where(scored, scores, 0.0)


def known_potentials(state_scores: Array, step_mask: Array | None, *, low: float) -> Array:
    """Φ (…, S+1) with each null filled by the last known potential, ``low`` before the first.

    The end is not zeroed here; padding holds the last potential of its trace.
    """
    step_mask = checked_mask(step_mask, state_scores, states=True)
    return carry_forward(blanked("state score", state_scores, state_mask_of(step_mask)), start=low)


def scores_in_range(
    config: ShapingConfig, scores: Array | None, step_mask: Array, *, states: bool = False
) -> Array:
    """The scores that the mode needs, as they are; PRMError if missing or outside the range."""
    kind = "state" if states else "action"
    if scores is None:
        raise PRMError(f"mode {config.mode!r} needs {kind} scores, found none")
    xp = namespace(scores)
    step_mask = checked_mask(step_mask, scores, states=states)
    low, high = config.score_range
    present = state_mask_of(step_mask) if states else step_mask
    outside = present & ((scores < low) | (scores > high))
    if bool(xp.any(outside)):
        *trace, index = first_place(outside)
        raise PRMError(
            f"{kind} score {index}{place(trace)} is {float(scores[(*trace, index)]):g}: expected "
            f"score_range {low:g} to {high:g}, or NaN where there is no score: the bounds of mode "
            f"{config.mode!r} rest on that range"
        )
    return scores


def _step_mask(
    action_scores: Array | None, state_scores: Array | None, step_mask: Array | None
) -> Array:
    """The mask, or all True in the shape of the scores; each trace has a step."""
    if action_scores is not None:
        step_mask = checked_mask(step_mask, action_scores)
    if state_scores is not None:
        step_mask = checked_mask(step_mask, state_scores, states=True)
    if step_mask is None:
        raise PRMError("expected scores or a step_mask, found neither: how many steps are there?")
    step_mask = checked_mask(step_mask, step_mask)
    xp = namespace(step_mask)
    if step_mask.shape[-1] == 0:
        raise PRMError("a trace without steps: there is no step to carry its terminal reward")
    no_step = ~step_mask[..., :1]
    if bool(xp.any(no_step)):
        *trace, _ = first_place(no_step)
        raise PRMError(
            f"step_mask{place(trace)} has no step: there is none to carry its terminal reward"
        )
    return step_mask


def _rewards_of(terminal_reward: Array | float, step_mask: Array) -> Array:
    """The terminal rewards in float64 as (…, 1); each must be a finite number."""
    rewards = as_float64(per_trace("terminal_reward", terminal_reward, step_mask), like=step_mask)
    xp = namespace(rewards)
    unusable = ~xp.isfinite(rewards)
    if bool(xp.any(unusable)):
        *trace, _ = first_place(unusable)
        found = float(rewards[(*trace, 0)])
        raise PRMError(
            f"terminal_reward{place(trace)} is {found:g}: expected a finite number: leave out a "
            f"trace whose outcome says nothing, it is not a failure"
        )
    return rewards


def _prepared(action_scores: Array, step_mask: Array | None) -> tuple[Array, Array, Any]:
    """Scores in float64 with NaN at padding, the mask, and the array module."""
    step_mask = checked_mask(step_mask, action_scores)
    return blanked("action score", action_scores, step_mask), step_mask, namespace(step_mask)


def _forward_difference(values: Array, step_mask: Array) -> Array:
    """x_i − x_{i+1}, where the last step of a trace and padding count as 0."""
    xp = namespace(values)
    counted = xp.where(step_mask & ~last_of(step_mask), values, 0.0)
    following = xp.concat([counted[..., 1:], xp.zeros_like(counted[..., :1])], axis=-1)
    return counted - following
