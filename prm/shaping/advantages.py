r"""Advantages: from the rewards of the steps to the number that multiplies ∇ log π of each step.

    returns_to_go      G_i = Σ_{k ≥ i} γ^{k-i} r_k
    turn_gae           A_i = Σ_{k ≥ i} (γλ)^{k-i} δ_k,  δ_k = r_k + γ V_{k+1} - V_k
                       (Schulman et al. 2016, arXiv 1506.02438), a step being a whole turn
    group_advantages   rewards compared within the group of traces of one task
    shaped_advantages  scores of a step reward model and outcomes to advantages, by ShapingConfig

**Estimators of a group.** G is the return to go, i the step, j the trace; a mean is over the group.

    alive_mean   G_i - mean of G_i over the traces that have a step i
    outcome      G_0 - mean of G_0 over the traces, the same on every step (GRPO)
    step_norm    returns to go of r - mean of r over all steps (DeepSeekMath 4.1.3, 2402.03300)
    index_mean   returns to go of r_i - mean of r_i over the traces that have a step i
    gigpo        outcome + ω (G_i - mean of G over the steps with the same anchor state; 2505.10978)
    mt_grpo      last step: o - mean of o over the traces, o being the reward of the last step;
                 others: the same + ω (u_i - mean of u_i over the traces that have a step i), with
                 u = r, but 0 at a last step (2505.11821, of which this is the rule for any number
                 of turns; the published one has a single rewarded turn)

In the limit of large groups ``alive_mean`` and ``outcome`` have exactly the gradient of the
expected return, and ``gigpo`` with true states as anchors as well. ``step_norm`` and ``index_mean``
have not where traces differ in length: what they subtract from a trace grows with its number of
steps, which pays for stopping if rewards are positive and for going on if they are negative.
``mt_grpo`` is blind to what a step does to the rewards of later turns. ``eval/results/shaping.md``
has the numbers. In a group of n the own trace is in every mean, which scales an advantage by about
1 - 1/n; a trace that is alone at a step gets 0 there.

``scale="std"`` divides by the (population) standard deviation of what was centred, in the cell in
which it was centred; ``alive_mean`` has one number for the whole group, the root mean square of its
advantages, so that all turns keep their proportions. Where nothing differs the advantage is 0.
"""

from __future__ import annotations

from typing import Literal, get_args

from prm.errors import PRMError
from prm.shaping.arrays import (
    Array,
    as_float64,
    checked_mask,
    discounted_to_go,
    ended,
    last_of,
    namespace,
)
from prm.shaping.config import ShapingConfig
from prm.shaping.groups import Groups
from prm.shaping.modes import known_potentials, scores_in_range, step_rewards

Estimator = Literal["alive_mean", "outcome", "step_norm", "index_mean", "gigpo", "mt_grpo"]
Scale = Literal["none", "std"]


def returns_to_go(rewards: Array, step_mask: Array | None = None, gamma: float = 1.0) -> Array:
    """(…, S) discounted reward from each step on; 0 at padding.

    Raises :class:`PRMError` for ``gamma`` outside [0, 1], NaN rewards, or a mask with holes.

    >>> import numpy as np
    >>> returns_to_go(np.array([1.0, 0.0, 4.0]), gamma=0.5)
    array([2., 2., 4.])
    """
    _check_share("gamma", gamma, "above one the return diverges")
    step_mask = checked_mask(step_mask, rewards)
    return discounted_to_go(_known("rewards", rewards, step_mask), gamma)


def turn_gae(
    rewards: Array,
    values: Array,
    step_mask: Array | None = None,
    *,
    terminated: Array | bool,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Array:
    """(…, S) generalised advantage estimates, one a turn; 0 at padding.

    Args:
        rewards: (…, S), the terminal reward on the last step included.
        values: (…, S+1) value of each state, the last one after the last step. After a true end
            nothing can follow, and 0 takes the place of the last value; a trace that was cut keeps
            it, as the estimate of what was cut off.
        step_mask: (…, S); every step is there if None.
        terminated: (…) whether the trace ended by itself.
        gamma: discount per turn.
        lam: 1 gives return minus value, 0 the error of one turn.

    Raises:
        PRMError: ``gamma`` or ``lam`` outside [0, 1], NaN where there is a step, wrong shapes.

    >>> import numpy as np
    >>> r, v = np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.25, 0.75, 0.9])
    >>> turn_gae(r, v, terminated=True, lam=1)
    array([0.5 , 0.75, 0.25])
    >>> turn_gae(r, v, terminated=True, lam=0)
    array([-0.25,  0.5 ,  0.25])
    """
    _check_share("gamma", gamma, "above one the return diverges")
    _check_share("lam", lam, "outside it the advantage is no average of estimates")
    xp = namespace(rewards, values)
    step_mask = checked_mask(step_mask, rewards)
    if tuple(values.shape) != (*rewards.shape[:-1], rewards.shape[-1] + 1):
        raise PRMError(
            f"values: expected (…, S+1) beside rewards of shape {tuple(rewards.shape)}: the last "
            f"step has a state after it, found shape {tuple(values.shape)}"
        )
    values = as_float64(values, like=values)
    at_end = last_of(step_mask) & ended(terminated, step_mask)
    following = xp.where(at_end, 0.0, values[..., 1:])
    before = _known("values", values[..., :-1], step_mask)
    after = _known("values", following, step_mask)
    errors = _known("rewards", rewards, step_mask) + gamma * after - before
    return discounted_to_go(errors, gamma * lam)


def group_advantages(
    rewards: Array,
    step_mask: Array | None,
    group: Array,
    *,
    estimator: Estimator = "alive_mean",
    gamma: float = 1.0,
    scale: Scale = "none",
    anchor: Array | None = None,
    omega: float = 1.0,
) -> Array:
    """(B, S) advantages of B traces, each compared with those of its group; 0 at padding.

    Args:
        rewards: (B, S), the terminal reward on the last step included.
        step_mask: (B, S); every step is there if None.
        group: (B,) integers, the same for traces of the same task.
        estimator: how; see the table above.
        gamma: discount per step.
        scale: whether the centred numbers are divided by their standard deviation.
        anchor: (B, S) integers, the same for the same state; for ``gigpo`` alone.
        omega: weight of the step part of ``gigpo`` and ``mt_grpo``.

    Raises:
        PRMError: a group with one trace, a trace without steps, ``gamma`` outside [0, 1], NaN
            rewards, wrong shapes, an ``anchor`` that is missing or that nothing reads.

    >>> import numpy as np
    >>> rewards = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.25, 0.0, 0.0]])
    >>> mask = np.array([[True, True, True], [True, True, False], [True, False, False]])
    >>> group_advantages(rewards, mask, np.array([7, 7, 7])).round(3)
    array([[ 0.583,  0.5  ,  0.   ],
           [-0.417, -0.5  ,  0.   ],
           [-0.167,  0.   ,  0.   ]])
    """
    if rewards.ndim != 2 or rewards.shape[0] == 0:
        raise PRMError(
            f"rewards: expected (B, S) with at least one trace, found shape {tuple(rewards.shape)}"
        )
    if estimator not in get_args(Estimator) or scale not in get_args(Scale):
        raise PRMError(
            f"expected an estimator among {', '.join(get_args(Estimator))} and a scale among "
            f"{', '.join(get_args(Scale))}, found {estimator!r} and {scale!r}"
        )
    if (anchor is not None) != (estimator == "gigpo"):
        raise PRMError(
            f"estimator {estimator!r}, anchor {'missing' if anchor is None else 'given'}: gigpo "
            f"compares steps taken in the same state and needs anchors, the others read none"
        )
    xp = namespace(rewards, group, anchor)
    mask = checked_mask(step_mask, rewards)
    to_go = returns_to_go(rewards, mask, gamma)
    rewards = _known("rewards", rewards, mask)
    groups = Groups(mask, group)
    scaled = scale == "std"
    if estimator == "alive_mean":
        return groups.over_alive_mean(to_go, mask, scaled=scaled)
    if estimator == "step_norm":
        return discounted_to_go(groups.centre(rewards, groups.of_step, mask, scaled=scaled), gamma)
    if estimator == "index_mean":
        return discounted_to_go(groups.centre(rewards, groups.at_step, mask, scaled=scaled), gamma)
    if estimator == "mt_grpo":
        last = last_of(mask)
        outcome = xp.sum(xp.where(last, rewards, 0.0), axis=-1, keepdims=True)
        whole = groups.centre(outcome, groups.of_trace, scaled=scaled)
        turn = groups.centre(xp.where(last, 0.0, rewards), groups.at_step, mask, scaled=scaled)
        return xp.where(mask, whole, 0.0) + omega * xp.where(last, 0.0, turn)
    whole = xp.where(mask, groups.centre(to_go[:, :1], groups.of_trace, scaled=scaled), 0.0)
    if anchor is None:
        return whole
    if tuple(anchor.shape) != tuple(rewards.shape):
        raise PRMError(
            f"anchor: expected one for each step, shape {tuple(rewards.shape)}, found "
            f"{tuple(anchor.shape)}"
        )
    return whole + omega * groups.centre(to_go, groups.cells(anchor), mask, scaled=scaled)


def shaped_advantages(
    config: ShapingConfig,
    *,
    action_scores: Array | None = None,
    state_scores: Array | None = None,
    terminal_reward: Array,
    terminated: Array,
    step_mask: Array | None = None,
    group: Array,
    estimator: Estimator = "alive_mean",
    progress: float = 0.0,
) -> Array:
    """(B, S) advantages of B traces under a shaping mode; 0 at padding.

    * ``baseline``: (return to go - w Φ_i) - its mean over the group's traces that have a step i.
      No potential can change the expected gradient, however traces end: one that was cut is worth
      its terminal reward as it stands.
    * ``critic``: :func:`turn_gae` on the outcome with V = w Φ, without a mean over the group: a
      critic needs no group, and a group may be one trace here. Below lam = 1 a potential that is
      higher than what the policy gets makes every end look bad, and an end that is further away
      less so: with Φ = c the first step of S has (gamma lam)^(S - 1) (R - c), at gamma = 1. A
      critic that was trained on better agents, or to optimal values, is such a one.
    * all others: :func:`group_advantages` of :func:`prm.shaping.modes.step_rewards`.

    ``potential`` and ``critic`` fill in w Φ_S for what was cut off from a trace. Where all traces
    end by themselves, ``potential`` with alive_mean and ``baseline`` are the same numbers, and so
    is ``critic`` at lam = 1 but for the mean over the group.

    With ``normalise="group"`` process and terminal rewards go through the estimator one by one,
    scaled, and are then weighted and added (GDPO, arXiv 2601.05242).

    Args:
        config: the mode, its weights and its discount.
        action_scores, state_scores, terminal_reward, terminated, step_mask, progress: as for
            ``step_rewards``, of B traces.
        group: (B,) integers, the same for traces of the same task.
        estimator: see :func:`group_advantages`; ``baseline`` is alive_mean by definition.

    Raises:
        PRMError: as ``step_rewards`` and ``group_advantages``; an estimator that the mode does not
            read or that needs anchors.
    """
    if config.mode in ("baseline", "critic") and estimator != "alive_mean":
        raise PRMError(
            f"estimator {estimator!r}: mode {config.mode!r} has an advantage of its own and reads "
            f"no estimator"
        )
    shaped = step_rewards(
        config,
        action_scores=action_scores,
        state_scores=state_scores,
        terminal_reward=terminal_reward,
        terminated=terminated,
        step_mask=step_mask,
        progress=progress,
    )
    mask, gamma, weight = shaped.step_mask, config.gamma, config.weight_at(progress)
    scaled = config.normalise == "group"

    if config.mode == "critic":
        values = weight * _potentials(config, state_scores, mask)
        return turn_gae(
            shaped.rewards, values, mask, terminated=terminated, gamma=gamma, lam=config.lam
        )
    if config.mode == "baseline":
        groups = Groups(mask, group)
        baseline = -weight * _potentials(config, state_scores, mask)[..., :-1]
        if not scaled:
            return groups.over_alive_mean(shaped.returns + baseline, mask)
        process = groups.over_alive_mean(baseline, mask, scaled=True)
        terminal = groups.over_alive_mean(shaped.returns, mask, scaled=True)
        return weight * process + config.terminal_weight * terminal
    if not scaled:
        return group_advantages(shaped.rewards, mask, group, estimator=estimator, gamma=gamma)

    def normalised(stream: Array) -> Array:
        return group_advantages(stream, mask, group, estimator=estimator, gamma=gamma, scale="std")

    terminal = normalised(shaped.rewards - shaped.process)
    return weight * normalised(shaped.process) + config.terminal_weight * terminal


def _potentials(config: ShapingConfig, state_scores: Array | None, mask: Array) -> Array:
    """(…, S+1) the state scores, checked, with nulls filled."""
    scores = scores_in_range(config, state_scores, mask, states=True)
    return known_potentials(scores, mask, low=config.score_range[0])


def _known(name: str, x: Array, step_mask: Array) -> Array:
    """``x`` in float64 with 0 at padding; :class:`PRMError` without steps, or for NaN in one."""
    xp = namespace(x)
    if x.shape[-1] == 0:
        raise PRMError(f"{name}: expected at least one step, found shape {tuple(x.shape)}")
    known = xp.where(step_mask, as_float64(x, like=x), 0.0)
    if not bool(xp.all(xp.isfinite(known))):
        raise PRMError(
            f"{name}: found NaN or infinity where there is a step (what is not known must be "
            f"filled in, or left out, before)"
        )
    return known


def _check_share(name: str, value: float, why: str) -> None:
    if not 0 <= value <= 1:
        raise PRMError(f"{name} {value:g}: expected [0, 1]: {why}")
