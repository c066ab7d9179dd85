"""Online shaping: an episode is scored and paid step by step, while it is going on.

``OnlineShaping`` keeps each episode as a trace of messages, has a scorer read it after every step,
and pays the step what ``prm.shaping.step_rewards`` pays it in the finished episode. Only modes
whose reward for a step is known when the step has been taken can do that. It knows nothing of
environments; ``prm.rl.gymnasium`` is the wrapper.

Left out: advantages, which need the whole episode (``prm.shaping.shaped_advantages``), and caches
of the scorer's work: a step is scored by reading its episode from the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np

from prm.data.trace import Message, Outcome, Status, Step, Trace
from prm.errors import PRMError
from prm.shaping import Mode, ShapingConfig, step_rewards

if TYPE_CHECKING:
    from prm.scoring.scorer import Scorer

TurnLimit = Literal["end", "cut"]
SCORE = "prm"
"""Name of the scores in the traces."""

_ONLINE: tuple[Mode, ...] = ("terminal", "potential", "progress", "sum", "clip")
_NOT_ONLINE: dict[Mode, str] = {
    "baseline": "it pays the outcome alone and acts in the advantage, which needs the whole group",
    "critic": "it pays the outcome alone and acts in the advantage, which needs the whole episode",
    "delta": "the reward of a step needs the score of the next one",
    "clip_delta": "the reward of a step needs the score of the next one",
    "min_form": "the reward of a step needs the scores of the whole episode",
}


class StepScore(NamedTuple):
    """What a scorer says about the last step of a trace.

    None where it never scores this kind of thing, NaN where it did not this time.
    """

    action: float | None = None
    """Score of the last action; not read at the start of an episode."""
    state: float | None = None
    """Score of the state after it, or of the first state."""


ScoreTraces = Callable[[Sequence[Trace]], Sequence[StepScore]]
"""From the episodes so far, without outcomes, to the score of the last step of each."""


def last_scores(scorer: Scorer) -> ScoreTraces:
    """The scores of a step reward model, in the form that online shaping takes."""

    def score(traces: Sequence[Trace]) -> list[StepScore]:
        return [
            StepScore(
                scored.steps[-1].scores.get(scorer.name) if scored.steps else None,
                scored.state_scores.get(scorer.name, [None])[-1],
            )
            for scored in scorer.score(traces)
        ]

    return score


def text_observation(observation: Any) -> list[Message]:
    """Text as a user message."""
    return [{"role": "user", "content": _text("observation", observation, "read_observation")}]


def text_action(action: Any) -> Message:
    """Text as an assistant message."""
    return {"role": "assistant", "content": _text("action", action, "read_action")}


class Parts(NamedTuple):
    """What the last step was paid, and for what; terminal + process is its reward."""

    terminal: float
    """``terminal_weight`` times the reward of the environment."""
    process: float
    """The process reward, weighted."""
    action_score: float
    """NaN where there is none."""
    state_score: float
    """NaN where there is none."""


@dataclass
class Episode:
    """An episode of S steps so far."""

    seen: Trace
    """What the agent has seen and done: without scores and outcome."""
    action_scores: list[float] = field(default_factory=list)
    """(S,); NaN where there is none."""
    state_scores: list[float] = field(default_factory=list)
    """(S + 1,); NaN where there is none."""
    reward: float = 0.0
    """Sum of what the environment has paid."""
    status: Status = "unknown"
    """unknown while it is going on."""

    @property
    def going_on(self) -> bool:
        """Whether it has neither terminated nor been truncated."""
        return self.status == "unknown"

    def parts(self, terminal: float = 0.0, process: float = 0.0) -> Parts:
        """The parts of the last reward, beside the last scores."""
        actions = self.action_scores
        return Parts(terminal, process, actions[-1] if actions else math.nan, self.state_scores[-1])

    def trace(self) -> Trace:
        """The record: with scores, and with the outcome once the episode has ended."""
        steps = [
            msgspec.structs.replace(step, scores={SCORE: _none_if_nan(score)})
            for step, score in zip(self.seen.steps, self.action_scores, strict=True)
        ]
        reward = None if self.going_on else self.reward
        return msgspec.structs.replace(
            self.seen,
            steps=steps,
            state_scores={SCORE: [_none_if_nan(score) for score in self.state_scores]},
            outcome=Outcome(reward=reward, status=self.status),
        )


class OnlineShaping:
    """Begins episodes, adds steps, has them scored, and pays them.

    Args:
        score: the scorer: ``last_scores(Scorer(model))`` or any function of traces.
        config: how rewards are blended; modes terminal, potential, progress, sum and clip.
        read_observation: from an observation to the messages that the agent sees.
        read_action: from an action to the message that says it.
        tools: function schemas of the traces, for scorers that read them.
        turn_limit: what being truncated is to a trace: end where the limit is part of the task, so
            that its potential counts as 0; cut where a learner goes on from the last value, so
            that its potential stands for the rest.
        task_id: of the traces.

    Raises:
        PRMError: a mode that cannot be paid online; later, scores that the mode needs and the
            scorer does not give, a score outside its range, or messages that are none.
    """

    def __init__(
        self,
        score: ScoreTraces,
        config: ShapingConfig,
        *,
        read_observation: Callable[[Any], list[Message]],
        read_action: Callable[[Any], Message],
        tools: list[dict[str, Any]] | None,
        turn_limit: TurnLimit,
        task_id: str,
    ) -> None:
        if config.mode in _NOT_ONLINE:
            raise PRMError(
                f"mode {config.mode!r} cannot be paid step by step: {_NOT_ONLINE[config.mode]}; "
                f"expected one of {', '.join(_ONLINE)}"
            )
        if config.normalise != "none":
            raise PRMError(
                f"normalise {config.normalise!r} cannot be paid step by step: the spread of a "
                f"group is known when all its episodes have ended"
            )
        if turn_limit not in get_args(TurnLimit):
            raise PRMError(f"turn_limit {turn_limit!r}: expected one of end, cut")
        self._score, self._config, self._turn_limit = score, config, turn_limit
        self._read_observation, self._read_action = read_observation, read_action
        self._tools, self._task_id = tools, task_id
        self._n_episodes = 0

    def begin(self, observation: Any) -> Episode:
        """A new episode, not scored yet."""
        trace = Trace(
            id=f"{self._task_id}-{self._n_episodes}",
            task_id=self._task_id,
            tools=self._tools,
            messages=self._read_observation(observation),
            steps=[],
        )
        trace.check()
        self._n_episodes += 1
        return Episode(trace)

    def add(self, episode: Episode, action: Any, observation: Any) -> None:
        """Add a step, not scored yet."""
        seen = episode.seen
        new = [self._read_action(action), *self._read_observation(observation)]
        episode.seen = msgspec.structs.replace(
            seen,
            messages=[*seen.messages, *new],
            steps=[*seen.steps, Step(at=len(seen.messages))],
        )
        episode.seen.check()

    def score(self, episodes: Sequence[Episode]) -> None:
        """Have the last step of each episode scored, in one call."""
        found = self._score([episode.seen for episode in episodes])
        if len(found) != len(episodes):
            raise PRMError(
                f"score: expected {len(episodes)} scores, one for each episode, found {len(found)}"
            )
        for episode, (action, state) in zip(episodes, found, strict=True):
            if episode.seen.steps:
                needed = self._config.mode in ("progress", "sum", "clip")
                episode.action_scores.append(self._known("action", action, needed=needed))
            needed = self._config.mode == "potential"
            episode.state_scores.append(self._known("state", state, needed=needed))

    def pay(
        self,
        episode: Episode,
        reward: float,
        *,
        terminated: bool,
        truncated: bool,
        progress: float,
    ) -> Parts:
        """What the last step earns, ``reward`` being what the environment pays for it.

        In the modes that are allowed the reward of a step does not depend on later ones, so it is
        that of the last step of the episode so far.
        """
        if terminated or truncated:
            episode.status = "completed" if terminated else "out_of_turns"
        episode.reward += reward
        process = step_rewards(
            self._config,
            action_scores=np.array(episode.action_scores),
            state_scores=np.array(episode.state_scores),
            terminal_reward=reward,
            terminated=terminated or (truncated and self._turn_limit == "end"),
            progress=progress,
        ).process
        return episode.parts(self._config.terminal_weight * reward, float(process[-1]))

    def _known(self, kind: str, score: float | None, *, needed: bool) -> float:
        if needed and score is None:
            raise PRMError(
                f"mode {self._config.mode!r} needs {kind} scores, and the scorer gave None, which "
                f"says that it has none (NaN says that one step was not scored)"
            )
        return math.nan if score is None else score


def _text(kind: str, value: Any, argument: str) -> str:
    if not isinstance(value, str):
        raise PRMError(
            f"{kind}: expected text, found {type(value).__name__}; say with {argument} how it reads"
        )
    return value


def _none_if_nan(score: float) -> float | None:
    return None if math.isnan(score) else score
