"""One rollout: what starts it, what is kept of it, and how it grows while it is sampled.

Left out: the sampling itself (``prm.rl.rollout``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from prm.data.trace import Message, Outcome, Source, Status, Step, Trace
from prm.errors import PRMError
from prm.rl.environment import Named
from prm.shaping import Span

TaskT = TypeVar("TaskT", bound=Named)


@dataclass(frozen=True)
class SamplingConfig:
    """How tokens are drawn."""

    temperature: float = 1.0
    """Logits are divided by it, >= 0; 0 = the likeliest token, with log-probability 0."""
    max_step_tokens: int = 64
    """Longest step; a longer one is cut and parsed as it stands."""
    max_tokens: int = 1024
    """Longest rollout. One that has no room for another step ends with status agent_error."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise PRMError(f"temperature: expected a number >= 0, found {self.temperature}")
        if not 1 <= self.max_step_tokens < self.max_tokens:
            raise PRMError(
                f"sampling: expected 1 <= max_step_tokens < max_tokens, found "
                f"{self.max_step_tokens} and {self.max_tokens}"
            )


class Start(NamedTuple, Generic[TaskT]):
    """One rollout to sample."""

    task: TaskT
    max_turns: int
    """The budget T >= 1: steps that the policy may write."""
    sample: int = 0


@dataclass(frozen=True)
class Rollout:
    """One sampled episode of S steps and L tokens; the last token is the last of the last step."""

    trace: Trace
    ids: NDArray[np.int64]
    """(L,) exactly what the model read and wrote."""
    token_mask: NDArray[np.bool_]
    """(L,) True on the tokens that the policy wrote."""
    log_probs: NDArray[np.float64]
    """(L,) of the tokens that the policy wrote, under what they were drawn from; else NaN."""
    spans: list[Span]
    """(S,) the tokens [start, end) of each step."""
    rewards: NDArray[np.float64]
    """(S,) what the environment paid for each step; NaN for one at which it broke."""


@dataclass
class GrowingRollout:
    """A rollout that is being sampled."""

    start: Start[Any]
    messages: list[Message]
    ids: list[int]
    seed: int
    at: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """Of the tokens that the policy wrote, in order."""
    rewards: list[float] = field(default_factory=list)
    status: Status = "unknown"
    error: str | None = None
    over: bool = False
    """Whether the environment takes no more actions."""
    unread: int = 0
    """How many of the last ids the model has not read."""

    def __post_init__(self) -> None:
        task, _, sample = self.start
        self.rng = np.random.default_rng([self.seed, sample, *task.id.encode()])
        self.unread = len(self.ids)

    @property
    def going_on(self) -> bool:
        return self.status == "unknown"

    def action(self) -> Message | None:
        """What the environment is told: nothing more where the tokens ran out before the turns."""
        if self.over:
            return None
        return self.messages[self.at[-1]] if self.going_on else {"role": "assistant", "content": ""}

    def end(self, status: Status, error: str | None = None) -> None:
        self.status, self.error = status, error

    def finish(
        self,
        tools: list[dict[str, Any]],
        sampling: SamplingConfig,
        policy: str | None,
        success_reward: float | None,
    ) -> Rollout:
        task, max_turns, sample = self.start
        valid = self.status != "environment_error"
        reward = float(sum(self.rewards)) if valid else None
        success = None if reward is None or success_reward is None else reward >= success_reward
        length = self.spans[-1][1] if self.spans else len(self.ids)
        token_mask = np.zeros(length, dtype=np.bool_)
        for start, end in self.spans:
            token_mask[start:end] = True
        log_probs = np.full(length, np.nan)
        log_probs[token_mask] = self.log_probs
        trace = Trace(
            id=rollout_id(self.start) if policy is None else f"{policy}-{rollout_id(self.start)}",
            task_id=task.id,
            policy=policy,
            tools=tools,
            messages=self.messages,
            steps=[Step(at=index) for index in self.at],
            outcome=Outcome(
                reward=reward,
                success=success,
                valid=valid,
                status=self.status,
                max_turns=max_turns,
            ),
            source=Source(format="rollout"),
            meta={"sample": sample, "seed": self.seed, "temperature": sampling.temperature}
            | ({} if self.error is None else {"error": self.error}),
        )
        trace.check()
        ids = np.array(self.ids[:length], dtype=np.int64)
        return Rollout(trace, ids, token_mask, log_probs, self.spans, np.array(self.rewards))


def rollout_id(start: Start[Any]) -> str:
    """What names it; no two rollouts of a call have the same."""
    return f"{start.task.id}-T{start.max_turns}-{start.sample}"
