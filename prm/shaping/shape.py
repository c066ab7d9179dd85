"""``prm shape``: dense rewards for offline users, from scored traces.

Each step gets ``NAME.reward`` and ``NAME.return`` among its scores, and ``NAME.advantage`` where
the mode has one of its own or ``--estimator`` asks for it. A summary on stderr says how much of the
reward comes from the process, and what it goes along with.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from prm.data.atomic import check_output
from prm.data.files import write_traces
from prm.data.sources import expand
from prm.data.terminal import PAGE_WIDTH, read_counted, table
from prm.data.trace import Trace
from prm.errors import PRMError, plural
from prm.shaping.advantages import Estimator, shaped_advantages
from prm.shaping.config import Mode, Normalise, ShapingConfig
from prm.shaping.modes import StepRewards, step_rewards

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
OWN_ADVANTAGE: tuple[Mode, ...] = ("baseline", "critic")
"""Modes that say nothing in rewards; what they do is in the advantage."""


def shape(
    scored: list[str],
    /,
    *,
    mode: Mode = "potential",
    out: str | None = None,
    score: str = "prm",
    state_score: str | None = None,
    states_from_actions: bool = False,
    terminal: Literal["reward", "success"] = "reward",
    process_weight: float = 1.0,
    terminal_weight: float = 1.0,
    gamma: float = 1.0,
    lam: float = 1.0,
    eta: float = 0.5,
    temperature: float = 0.1,
    normalise: Normalise = "none",
    score_range: tuple[float, float] = (0.0, 1.0),
    turn_limit: Literal["end", "cut"] = "end",
    estimator: Estimator | None = None,
    name: str = "shaped",
) -> None:
    """Blend process and terminal rewards of scored traces into one reward for each step.

    A trace that says nothing about the agent (outcome.valid false) gets no rewards and is counted.

    Args:
        scored: Files of traces with scores.
        mode: terminal, potential, baseline, critic, progress, sum, clip, delta, clip_delta or
            min_form; the documentation says which keep the optimal policy.
        out: .jsonl, .jsonl.gz, .jsonl.zst or .parquet; standard output if absent.
        score: Name of the action scores.
        state_score: Name of the state scores; that of --score if absent.
        states_from_actions: Use the score of the last action as the score of the state after it,
            and the lower end of --score-range before any action: for models of actions alone.
        terminal: The outcome that is paid at the end: outcome.reward, or outcome.success as 1 or 0.
        process_weight: Weight of the process reward.
        terminal_weight: Weight of the terminal reward.
        gamma: Discount per step, in [0, 1].
        lam: critic: lambda of turn-level GAE, in [0, 1].
        eta: clip and clip_delta: the score from which a step costs nothing.
        temperature: min_form: of the softmax that picks the lowest score.
        normalise: group divides each stream by its standard deviation in the group (advantages).
        score_range: Lowest and highest score that the model can give.
        turn_limit: What running out of turns or time is to a trace: end where the limit is part of
            the task, so that its potential counts as 0; cut where the run was only collected that
            far, so that its potential stands for the rest.
        estimator: Also write advantages, with this estimator over the traces of a task and policy.
        name: The scores are called NAME.reward, NAME.return and NAME.advantage.
    """
    config = ShapingConfig(
        mode=mode,
        process_weight=process_weight,
        terminal_weight=terminal_weight,
        gamma=gamma,
        lam=lam,
        eta=eta,
        temperature=temperature,
        normalise=normalise,
        score_range=score_range,
    )
    if normalise == "group" and estimator is None and mode not in OWN_ADVANTAGE:
        raise PRMError("--normalise group is part of the advantages; say which with --estimator")
    if not config.reads_states and (states_from_actions or state_score is not None):
        raise PRMError(
            f"mode {mode!r} reads no state scores, so --state-score and --states-from-actions "
            f"mean nothing; potential, baseline and critic do"
        )
    if turn_limit == "cut" and mode not in ("potential", "critic"):
        raise PRMError(
            f"--turn-limit cut: mode {mode!r} pays the same for both, so it says nothing"
        )
    if states_from_actions and state_score is not None:
        raise PRMError("--states-from-actions and --state-score name different scores of states")
    if not name:
        raise PRMError("--name: expected a name for the rewards, found an empty one")
    if out is not None:
        check_output(out, expand(scored)[0])
    traces = read_counted(scored)
    used = [trace for trace in traces if trace.outcome.valid]
    if not used:
        raise PRMError(f"none of {plural(len(traces), 'trace')} has a valid outcome to shape")
    states = None if states_from_actions else state_score or score
    padded = _padded(used, score, states, terminal, config, cut=turn_limit == "cut")
    rewards = step_rewards(config, **padded._asdict())
    advantages = None
    if mode in OWN_ADVANTAGE or estimator is not None:
        _check_groups(used, mode)
        advantages = shaped_advantages(
            config,
            **padded._asdict(),
            group=_groups(used),
            estimator=estimator or "alive_mean",
        )
    shaped = iter(_with_rewards(used, rewards, advantages, name))
    write_traces((next(shaped) if t.outcome.valid else t for t in traces), out)
    print(_summary(config, used, rewards, padded, len(traces) - len(used)), file=sys.stderr)


class _Padded(NamedTuple):
    """B traces, padded on the right to S steps."""

    action_scores: Floats | None
    """(B, S)"""
    state_scores: Floats | None
    """(B, S + 1)"""
    terminal_reward: Floats
    """(B,)"""
    terminated: Bools
    """(B,)"""
    step_mask: Bools
    """(B, S)"""


def _padded(
    traces: Sequence[Trace],
    score: str,
    state_score: str | None,
    terminal: str,
    config: ShapingConfig,
    *,
    cut: bool,
) -> _Padded:
    """``state_score`` None: states have the score of the action before them."""
    width = max(trace.n_steps for trace in traces)
    actions = np.full((len(traces), width), np.nan)
    states = np.full((len(traces), width + 1), np.nan)
    for row, trace in enumerate(traces):
        actions[row, : trace.n_steps] = trace.step_scores(score)
        if state_score is None:
            states[row, 1 : trace.n_steps + 1] = trace.step_scores(score)
        else:
            states[row, : trace.n_steps + 1] = trace.states(state_score)
    mode, needs_states = config.mode, config.reads_states
    if mode != "terminal" and np.isnan(states if needs_states else actions).all():
        of_states = needs_states and state_score is not None
        kind, wanted = ("state", state_score) if of_states else ("action", score)
        columns = [t.state_scores if of_states else _scores_of(t) for t in traces]
        names = {key for column in columns for key in column}
        if wanted in names:
            raise PRMError(f"mode {mode!r} needs {kind} scores, and all named {wanted!r} are null")
        known = ", ".join(map(repr, sorted(names))) or "none"
        raise PRMError(
            f"mode {mode!r} needs {kind} scores, and no trace has any named {wanted!r}; {kind} "
            f"scores there: {known}{' (see --states-from-actions)' if of_states else ''}"
        )
    low, high = config.score_range
    values = states if needs_states else actions
    outside = np.argwhere((values < low) | (values > high))
    if mode != "terminal" and len(outside):
        row, place = outside[0].tolist()
        raise PRMError(
            f"trace {traces[row].id!r}: {'state' if needs_states else 'action'} score {place} is "
            f"{values[row, place]:g}; expected score_range {low:g} to {high:g} (--score-range), on "
            f"which the bounds of mode {mode!r} rest"
        )
    lengths = np.array([trace.n_steps for trace in traces])
    return _Padded(
        None if needs_states or mode == "terminal" else actions,
        states if needs_states else None,
        np.array([_terminal(trace, terminal) for trace in traces]),
        np.array([not (cut and _at_limit(trace)) for trace in traces]),
        np.arange(width) < lengths[:, None],
    )


def _scores_of(trace: Trace) -> dict[str, float | None]:
    return {key: value for step in trace.steps for key, value in step.scores.items()}


def _terminal(trace: Trace, terminal: str) -> float:
    value = trace.outcome.reward if terminal == "reward" else trace.outcome.success
    if value is None:
        other = "success" if terminal == "reward" else "reward"
        raise PRMError(
            f"trace {trace.id!r}: outcome.{terminal} is null though the outcome is valid, so there "
            f"is nothing to pay at its end (see --terminal {other}; mark a run that says nothing "
            f"about the agent as valid: false)"
        )
    return float(value)


def _at_limit(trace: Trace) -> bool:
    """Whether the trace ran out of turns or time; where nobody says, its turns tell."""
    outcome = trace.outcome
    if outcome.status == "unknown" and outcome.max_turns is not None and not outcome.success:
        return trace.n_steps >= outcome.max_turns
    return outcome.status in ("out_of_turns", "out_of_time")


def _check_groups(traces: Sequence[Trace], mode: Mode) -> None:
    """Name the task of a group of one, except for a critic, which needs no group."""
    counts = Counter((trace.task_id, trace.policy) for trace in traces)
    (task, policy), fewest = min(counts.items(), key=lambda item: item[1])
    if fewest < 2 and mode != "critic":
        raise PRMError(
            f"task {task!r} has one trace of policy {policy!r}: an advantage over a group needs "
            f"others to compare with"
        )


def _groups(traces: Sequence[Trace]) -> NDArray[np.int64]:
    keys = [(trace.task_id, trace.policy or "") for trace in traces]
    numbers = {key: place for place, key in enumerate(sorted(set(keys)))}
    return np.array([numbers[key] for key in keys])


def _with_rewards(
    traces: Sequence[Trace], rewards: StepRewards, advantages: Floats | None, name: str
) -> list[Trace]:
    columns = {f"{name}.reward": rewards.rewards, f"{name}.return": rewards.returns}
    if advantages is not None:
        columns[f"{name}.advantage"] = advantages
    replace = msgspec.structs.replace
    return [
        replace(
            trace,
            steps=[
                replace(
                    step,
                    scores=step.scores | {key: float(c[row, i]) for key, c in columns.items()},
                )
                for i, step in enumerate(trace.steps)
            ],
        )
        for row, trace in enumerate(traces)
    ]


def _summary(
    config: ShapingConfig,
    traces: Sequence[Trace],
    rewards: StepRewards,
    padded: _Padded,
    n_invalid: int,
) -> str:
    """What the process reward goes along with, and a plain word about the optimal policy."""
    process = rewards.process.sum(axis=1)
    outcome = padded.terminal_reward
    lengths = padded.step_mask.sum(axis=1).astype(np.float64)
    absolute = np.abs(rewards.process).sum()
    whole = absolute + np.abs(rewards.rewards - rewards.process).sum()
    scores = padded.state_scores if padded.action_scores is None else padded.action_scores
    n_states = lengths.sum() + (len(traces) if padded.action_scores is None else 0)
    n_scored = 0 if scores is None else int((~np.isnan(scores)).sum())
    rows = [
        ("share of the reward from the process", f"{absolute / whole:.3f}" if whole else "–"),
        ("rank correlation with the outcome", _correlation(process, outcome)),
        ("rank correlation with the length", _correlation(process, lengths)),
        ("mean of traces paid the most at the end", _mean(process[outcome == outcome.max()])),
        ("mean of the others", _mean(process[outcome < outcome.max()])),
        ("traces without a valid outcome, left as they are", f"{n_invalid:,}"),
    ]
    if scores is not None:
        rows.append(("states or steps without a score", f"{int(n_states) - n_scored:,}"))
    kept = "keeps the optimal policy" if config.invariant else "does not keep the optimal policy"
    words = textwrap.fill(f"{kept}: {config.why}", PAGE_WIDTH)
    return f"{table(('process reward of a trace', ''), rows)}\n{words}"


def _correlation(a: Floats, b: Floats) -> str:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return "–"
    from scipy.stats import spearmanr

    return f"{spearmanr(a, b).statistic:+.3f}"


def _mean(values: Floats) -> str:
    return f"{values.mean():.3f}" if len(values) else "–"
