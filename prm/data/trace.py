"""The trace record: one trajectory of one agent on one task, one JSON object a line on disk.

Messages are the source of truth and are kept as they came (OpenAI chat messages, unknown keys
included). Steps hold no text: step ``i`` points at the assistant message ``messages[steps[i].at]``
and carries what people (labels) and models (scores) say about it. Nothing is invented: absent,
null, ``""`` and ``{}`` stay distinct, and "not scored" is None, never 0.

Axes: S steps a trace; state read-outs are S + 1 (after the prompt, then after each observation).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from prm.data.shapes import Problem, message_problems, tool_problems
from prm.errors import RecordError

SCHEMA = "prm-trace/1"
Message = dict[str, Any]
Status = Literal[
    "completed", "out_of_turns", "out_of_time", "agent_error", "environment_error", "unknown"
]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One assistant message of the agent: a pointer with labels and scores."""

    at: int
    """Index of the assistant message in ``Trace.messages``."""
    labels: dict[str, float | None] = {}
    """What is known about the action, by name: people, execution, rollouts. None = unlabelled."""
    scores: dict[str, float | None] = {}
    """What models say about the action, by name. None = not scored."""
    weight: float | None = None
    """Weight of the step in a training loss, >= 0. None = 1."""
    meta: dict[str, Any] = {}
    """Keys of the source that belong to this step, verbatim."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the trace ended."""

    reward: float | None = None
    """Terminal reward, finite, in the source's own units. None = unknown."""
    success: bool | None = None
    """Only if the source says so, or a threshold was asked for."""
    valid: bool = True
    """False: the reward says nothing about the agent (crash, never graded)."""
    status: Status = "unknown"
    max_turns: int | None = None
    """The number T of steps that the agent was allowed. None = unknown."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the record came from."""

    format: str | None = None
    uri: str | None = None
    record: int | None = None
    """0-based number of the record in its file."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory of one agent on one task.

    Raises :class:`prm.errors.RecordError` at :meth:`check` when a rule of the record is broken;
    every reader calls it. Build a changed copy with ``msgspec.structs.replace``.
    """

    schema: str = SCHEMA
    id: str
    """Unique in a file; from the source, else a hash of source and record number."""
    task_id: str
    policy: str | None = None
    """Who acted (model or run); groups the n samples of a task."""
    tools: list[dict[str, Any]] | None = None
    """OpenAI function schemas. None = unknown, [] = none."""
    messages: list[Message]
    steps: list[Step]
    outcome: Outcome = Outcome()
    state_labels: dict[str, list[float | None]] = {}
    """name -> (S + 1,) what is known about each state."""
    state_scores: dict[str, list[float | None]] = {}
    """name -> (S + 1,) what models say about each state."""
    source: Source = Source()
    meta: dict[str, Any] = {}
    """Every key of the source that has no other place, verbatim."""

    @property
    def n_steps(self) -> int:
        """S, the number of steps."""
        return len(self.steps)

    def step_labels(self, name: str) -> NDArray[np.float64]:
        """(S,) labels of the actions; NaN where there is none."""
        return _column([step.labels.get(name) for step in self.steps])

    def step_scores(self, name: str) -> NDArray[np.float64]:
        """(S,) scores of the actions; NaN where there is none."""
        return _column([step.scores.get(name) for step in self.steps])

    def states(
        self, name: str, kind: Literal["labels", "scores"] = "scores"
    ) -> NDArray[np.float64]:
        """(S + 1,) state labels or scores; NaN where there is none."""
        column = (self.state_labels if kind == "labels" else self.state_scores).get(name)
        return _column(column if column is not None else [None] * (self.n_steps + 1))

    def windows(self) -> Iterator[StepWindow]:
        """The S steps in order, each with its action and the observations that answer it."""
        bounds = [*(step.at for step in self.steps), len(self.messages)]
        for index, (at, end) in enumerate(pairwise(bounds)):
            yield StepWindow(index, self.messages[at], tuple(self.messages[at + 1 : end]))

    def prompt(self) -> list[Message]:
        """The messages before the first step (all of them when there is no step)."""
        return self.messages[: self.steps[0].at] if self.steps else self.messages

    def with_labels(
        self,
        name: str,
        actions: Sequence[float | None],
        states: Sequence[float | None] | None = None,
    ) -> Trace:
        """A copy with labels ``name``: (S,) for the actions and, if given, (S + 1,) for states."""
        steps = [
            msgspec.structs.replace(step, labels={**step.labels, name: value})
            for step, value in zip(self.steps, actions, strict=True)
        ]
        state_labels = (
            self.state_labels if states is None else {**self.state_labels, name: list(states)}
        )
        return msgspec.structs.replace(self, steps=steps, state_labels=state_labels)

    def check(self) -> None:
        """Raise a :class:`RecordError` naming the JSON path of the first broken rule."""
        check_schema(self.schema)
        for path, expected, found in self._problems():
            raise RecordError(f"trace {self.id!r}", path=path, expected=expected, found=found)

    def _problems(self) -> Iterator[Problem]:
        for name, text in (("id", self.id), ("task_id", self.task_id)):
            if not text:
                yield f"$.{name}", "a string that is not empty", "an empty one"
        for index, tool in enumerate(self.tools or []):
            yield from tool_problems(f"$.tools[{index}]", tool)
        for index, message in enumerate(self.messages):
            yield from message_problems(f"$.messages[{index}]", message)
        previous = -1
        for index, step in enumerate(self.steps):
            path = f"$.steps[{index}]"
            if not previous < step.at < len(self.messages):
                allowed = f"a message index above {previous} and below {len(self.messages)}"
                yield (
                    f"{path}.at",
                    f"{allowed} (steps are in the order of their messages)",
                    str(step.at),
                )
            elif self.messages[step.at]["role"] != "assistant":
                found = self.messages[step.at]["role"]
                yield f"{path}.at", "the index of an assistant message", f"a {found} message"
            previous = step.at
            if step.weight is not None and not (math.isfinite(step.weight) and step.weight >= 0):
                yield f"{path}.weight", "a finite number >= 0", str(step.weight)
            for field, values in (("labels", step.labels), ("scores", step.scores)):
                yield from _not_finite(f"{path}.{field}", values.items())
        for field, columns in (
            ("state_labels", self.state_labels),
            ("state_scores", self.state_scores),
        ):
            for name, column in columns.items():
                if len(column) != len(self.steps) + 1:
                    expected = f"{len(self.steps) + 1} values (one for each state, steps + 1)"
                    yield f"$.{field}.{name}", expected, str(len(column))
                yield from _not_finite(f"$.{field}.{name}", enumerate(column))
        reward = self.outcome.reward
        if reward is not None and not math.isfinite(reward):
            yield "$.outcome.reward", "a finite number or null", str(reward)
        turns = self.outcome.max_turns
        if turns is not None and turns < 0:
            yield "$.outcome.max_turns", "a number >= 0 or null", str(turns)


class StepWindow(NamedTuple):
    """A step with its messages."""

    index: int  # type: ignore[assignment]  # a field, in place of tuple.index
    """0-based number of the step."""
    action: Message
    """The assistant message."""
    observations: tuple[Message, ...]
    """Everything recorded before the next step: tool results, user messages, given messages."""


class Pairing(NamedTuple):
    """Which observation answers which tool call of one step."""

    results: tuple[int | None, ...]
    """For each tool call, the index in ``StepWindow.observations`` of its result, or None."""
    unmatched: tuple[int, ...]
    """Indices of tool-role observations that answer no call."""


def pair_results(window: StepWindow) -> Pairing:
    """Pair tool results with the calls of the same step.

    By id, repeated ids by occurrence; what is left then by order. Ids are scoped to the step,
    because real files reuse them (tau-bench: 49 of 200 episodes).
    """
    calls = tool_calls(window.action)
    results: list[int | None] = [None] * len(calls)
    free = [i for i, m in enumerate(window.observations) if m["role"] in ("tool", "function")]
    for index, call in enumerate(calls):
        wanted = call.get("id")
        match = next(
            (i for i in free if wanted and window.observations[i].get("tool_call_id") == wanted),
            None,
        )
        if match is not None:
            results[index] = match
            free.remove(match)
    for index, result in enumerate(results):
        if result is None:
            # An id that names another call is no answer to this one; only unnamed results move.
            unnamed = next(
                (i for i in free if not window.observations[i].get("tool_call_id")), None
            )
            if unnamed is not None:
                results[index] = unnamed
                free.remove(unnamed)
    return Pairing(tuple(results), tuple(free))


def tool_calls(message: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """The tool calls of an assistant message; the legacy ``function_call`` counts as one."""
    calls: list[dict[str, Any]] | None = message.get("tool_calls")
    if calls:
        return calls
    legacy = message.get("function_call")
    return [{"type": "function", "function": legacy}] if legacy else []


def text_of(content: object) -> str:
    """The text of a message's ``content``: a string, null, or a list of parts.

    Parts that hold no text are named, not dropped.

    >>> text_of([{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {}}])
    'see [image_url]'
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part) for part in content)
    return json.dumps(content, ensure_ascii=False)


def check_schema(schema: str) -> None:
    """Raise :class:`RecordError` unless this version of the package can read ``schema``."""
    name, _, major = schema.partition("/")
    ours, _, our_major = SCHEMA.partition("/")
    if name != ours or not major.isdecimal():
        raise RecordError("trace", path="$.schema", expected=repr(SCHEMA), found=repr(schema))
    if int(major) > int(our_major):
        raise RecordError(
            "trace",
            path="$.schema",
            expected=f"at most {SCHEMA!r}",
            found=repr(schema),
            why="a newer version of prm wrote it; upgrade with `pip install -U stepwise-prm`",
        )


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        for key in ("text", "refusal", "thinking", "reasoning"):
            if isinstance(part.get(key), str):
                return str(part[key])
        return f"[{part.get('type', 'part')}]"
    return str(part)


def _column(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _not_finite(path: str, values: Iterable[tuple[object, float | None]]) -> Iterator[Problem]:
    for name, value in values:
        if value is not None and not math.isfinite(value):
            yield f"{path}[{name!r}]", "a finite number or null", str(value)
