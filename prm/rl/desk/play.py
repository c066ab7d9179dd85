"""Play episodes of desk with scripted agents, and write the exact truth beside any desk trace.

``play`` gives traces without labels; ``annotate`` gives a trace of any agent, learned ones too, its
labels from the exact solution, to 12 decimals:

    step labels    q          Q of the action taken, in [0, 1]
                   advantage  q - V of the state it was taken in, <= 0
                   optimal    1 or 0; null where V = 0, since there every action fails alike
    state labels   v          V of each state, (S + 1,); after an answer 1 or 0, and 0 when the
                              turns have run out
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from prm.data.trace import Message, Outcome, Source, Step, Trace
from prm.errors import PRMError
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.belief import Tracker
from prm.rl.desk.environment import Desk
from prm.rl.desk.solution import solve
from prm.rl.desk.voice import Speaker, think
from prm.rl.desk.world import MAX_TURNS, DeskConfig, Task, shortest


class Run(NamedTuple):
    """One episode to play."""

    task: Task
    agent: str
    """A name of ``AGENTS``."""
    max_turns: int
    sample: int = 0


def play(
    runs: Sequence[Run], seed: int, config: DeskConfig | None = None, *, thoughts: bool = False
) -> list[Trace]:
    """Play B episodes side by side; the traces in the order of the runs, without labels.

    ``seed`` is the agents'; what the environment draws depends on task and sample alone. With
    ``thoughts`` all agents say where the walk stands before they act, in place of their voices.
    """
    desk = Desk(config)
    prompts, tools = desk.reset(
        [run.task for run in runs], [run.max_turns for run in runs], [run.sample for run in runs]
    )
    rngs = [np.random.default_rng([seed, run.sample, *run.task.id.encode()]) for run in runs]
    speakers = [Speaker(rng) for rng in rngs]
    trackers = [Tracker(prompt, desk.config) for prompt in prompts]
    messages: list[list[Message]] = [list(prompt) for prompt in prompts]
    at: list[list[int]] = [[] for _ in runs]
    ended = np.zeros(len(runs), dtype=np.bool_)
    rewards = np.zeros(len(runs))
    completed = np.zeros(len(runs), dtype=np.bool_)
    while not ended.all():
        actions: list[Message | None] = [None] * len(runs)
        for i in np.flatnonzero(~ended).tolist():
            move = AGENTS[runs[i].agent](trackers[i], runs[i].max_turns, rngs[i])
            actions[i] = (
                think(trackers[i], move, f"call_{len(at[i])}")
                if thoughts
                else speakers[i].say(move)
            )
        observations, reward, completed, truncated = desk.step(actions)
        for i in np.flatnonzero(~ended).tolist():
            action = actions[i]
            assert action is not None
            trackers[i].update(action, observations[i])
            at[i].append(len(messages[i]))
            messages[i] += [action, *observations[i]]
        rewards += reward
        ended = completed | truncated
    return [
        Trace(
            id=f"{run.task.id}-{run.sample}",
            task_id=run.task.id,
            policy=run.agent,
            tools=tools,
            messages=messages[i],
            steps=[Step(at=index) for index in at[i]],
            outcome=Outcome(
                reward=float(rewards[i]),
                success=bool(rewards[i] == 1),
                status="completed" if completed[i] else "out_of_turns",
                max_turns=run.max_turns,
            ),
            source=Source(format="desk"),
            meta={
                "hops": run.task.hops,
                "shortest": shortest(run.task.hops),
                "voice": "thoughts" if thoughts else speakers[i].voice,
            },
        )
        for i, run in enumerate(runs)
    ]


def annotate(trace: Trace, config: DeskConfig | None = None) -> Trace:
    """The desk trace with its exact labels ``q``, ``advantage``, ``optimal`` and ``v``.

    Raises :class:`PRMError` when the trace is not of desk, does not say T, goes on after its
    answer, or answers without saying whether that was right.
    """
    config = config or DeskConfig()
    max_turns = trace.outcome.max_turns
    if max_turns is None or not trace.n_steps <= max_turns <= MAX_TURNS:
        raise PRMError(
            f"trace {trace.id!r}: expected outcome.max_turns from {trace.n_steps} (its steps) to "
            f"{MAX_TURNS}, found {max_turns} (values depend on the turns left)"
        )
    tracker = Tracker(trace.prompt(), config)
    solution = solve(config, len(tracker.question.path))
    steps: list[Step] = []
    values: list[float | None] = [_rounded(solution.v(tracker.belief, max_turns))]
    for step, window in zip(trace.steps, trace.windows(), strict=True):
        left = max_turns - window.index
        v = solution.v(tracker.belief, left)
        action = tracker.action(window.action)
        q = solution.q(tracker.belief, action, left)
        best = solution.optimal(tracker.belief, left)
        optimal = float(action in best) if best else None
        exact = {"q": _rounded(q), "advantage": _rounded(q - v), "optimal": optimal}
        steps.append(msgspec.structs.replace(step, labels={**step.labels, **exact}))
        if action.kind in ("answer", "wrong"):
            if step is not trace.steps[-1] or trace.outcome.success is None:
                raise PRMError(
                    f"trace {trace.id!r}: expected an answer at step {window.index} to be the last "
                    f"of {trace.n_steps} steps and the outcome to say whether it was right"
                )
            values.append(float(trace.outcome.success))
        else:
            tracker.update(window.action, window.observations)
            values.append(_rounded(solution.v(tracker.belief, left - 1)))
    return msgspec.structs.replace(
        trace, steps=steps, state_labels={**trace.state_labels, "v": values}
    )


def _rounded(value: float) -> float:
    """To 12 decimals, so that the records do not depend on the last bit of a machine's sums."""
    return round(value, 12)
