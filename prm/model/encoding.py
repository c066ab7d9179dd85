"""From a trace to token sequences with read-out positions: the one encoder of training and scoring.

Read-outs of a trace with S steps:

* action i (0 <= i < S): after the assistant message of step i, before its observation;
* state i (0 <= i <= S): after the prompt (i = 0) and after the observations of step i - 1.

A read-out sits on the last token of a marker segment that closes what it judges, so its position
is known by construction and never searched for.

A causal backbone reads a whole trace in one sequence (or in windows, below) with many read-outs. A
bidirectional backbone would see later observations, so there every read-out is a sequence of its
own that ends at it.

Length. An observation longer than ``max_observation_tokens`` is cut in the middle (shared fairly
when a step has several), likewise the action and the task. A trace longer than ``max_length`` is
covered by windows: each starts with the task and the newest steps that fill at most half of the
remaining room, and is filled from there on; every read-out is in exactly one window. Where a window
starts depends only on what came before it, so later text moves no earlier score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from prm.data.trace import Trace
from prm.errors import PRMError
from prm.model.ngrams import Lookup, lookup
from prm.model.render import (
    ACTION_MARKER,
    CUT_MARKER,
    STATE_MARKER,
    render_action,
    render_observations,
    render_task,
)

Readout = Literal["action", "state"]
READOUTS: tuple[Readout, ...] = ("action", "state")


@dataclass(frozen=True)
class EncodingConfig:
    """How much of a trace the model sees. All lengths in tokens of the backbone's tokenizer."""

    max_length: int = 1024
    """Longest sequence given to the backbone."""
    max_task_tokens: int = 384
    """Tools and prompt together are cut in the middle to this."""
    max_action_tokens: int = 192
    """An assistant message is cut in the middle to this."""
    max_observation_tokens: int = 192
    """The observations of one step together are cut in the middle to this."""

    def __post_init__(self) -> None:
        parts = (self.max_task_tokens, self.max_action_tokens, self.max_observation_tokens)
        if min(parts) < 8:
            raise PRMError(f"encoding: every token limit must be at least 8, found {min(parts)}")
        # Markers, special tokens: 16 is more than any tokenizer needs for them.
        needed = sum(parts) + 16
        if needed > self.max_length:
            raise PRMError(
                f"encoding: max_length {self.max_length} is too small: one step must fit beside "
                f"the task, which needs max_task_tokens + max_action_tokens + "
                f"max_observation_tokens + 16 = {needed}"
            )


class EncodedSequence(NamedTuple):
    """One input of the backbone: L tokens with R read-outs."""

    input_ids: list[int]
    """(L,) token ids."""
    columns: list[int]
    """(R,) position of each read-out in ``input_ids``, ascending."""
    readouts: list[Readout]
    """(R,) what each read-out judges."""
    indices: list[int]
    """(R,) which action (0..S-1) or state (0..S)."""
    lookups: list[Lookup]
    """(R,) the n-grams of each read-out; empty where the model has no n-gram memory."""


class EncodedTrace(NamedTuple):
    """All sequences of a trace. Every read-out is in exactly one of them."""

    sequences: list[EncodedSequence]
    n_steps: int
    cut: Counter[str]
    """Tokens cut, by what: ``task``, ``action``, ``observation``; ``windows`` counts those beyond
    the first."""


class _Segment(NamedTuple):
    """Token ids of an action or of the observations of a step, with the read-out that closes it."""

    input_ids: list[int]
    readout: Readout
    number: int
    """Which action or state."""


class _Chunk(NamedTuple):
    """What one sequence holds after the head."""

    segments: list[_Segment]
    new: int
    """Segments from this one on are read out here; those before are context."""
    opening: bool
    """Whether state 0 is read out here."""


class TraceEncoder:
    """Encodes traces for one tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer. Text that spells one of its special tokens is encoded
            as ordinary text: tool output cannot forge a special token.
        config: the lengths.
        causal: whether the backbone is causal; see the module's docstring.
        readouts: which read-outs to place.
        ngram_buckets: size of the model's n-gram memory; 0 = none.
    """

    def __init__(
        self,
        tokenizer: Any,
        config: EncodingConfig,
        *,
        causal: bool,
        readouts: Sequence[Readout] = READOUTS,
        ngram_buckets: int = 0,
    ) -> None:
        self.tokenizer, self.config, self.ngram_buckets = tokenizer, config, ngram_buckets
        self.causal, self.readouts = causal, tuple(readouts)
        special = tokenizer.encode("", add_special_tokens=True)
        self._prefix, self._suffix = special[:1], special[1:]
        action, state, self._cut_marker = self._ids([ACTION_MARKER, STATE_MARKER, CUT_MARKER])
        self._markers: dict[Readout, list[int]] = {"action": action, "state": state}
        if not action or not state or len(action) + len(state) + len(special) > 16:
            raise PRMError(
                f"the tokenizer turns the read-out markers into {len(action)} and {len(state)} "
                f"tokens, expected 1 to 7: it does not suit the rendering of traces"
            )

    def encode(self, trace: Trace) -> EncodedTrace:
        """All read-outs of ``trace``, in order."""
        cut: Counter[str] = Counter()
        head, segments = self._segments(trace, cut)
        chunks = self._windows(head, segments) if self.causal else self._prefixes(head, segments)
        if self.causal:
            cut["windows"] += len(chunks) - 1
        lookups = self._lookups(head, segments) if self.ngram_buckets else None
        sequences = [self._sequence(head, chunk, lookups) for chunk in chunks]
        found = sum(len(sequence.columns) for sequence in sequences)
        expected = trace.n_steps * len(self.readouts) + ("state" in self.readouts)
        assert found == expected, f"{found} read-outs for {trace.n_steps} steps"
        return EncodedTrace([s for s in sequences if s.columns], trace.n_steps, +cut)

    def _segments(self, trace: Trace, cut: Counter[str]) -> tuple[list[int], list[_Segment]]:
        """The head (task, with state 0's marker), then action and observations of each step."""
        windows = list(trace.windows())
        task = render_task(trace)
        actions = [render_action(window) for window in windows]
        observations = [render_observations(window) for window in windows]
        ids = iter(self._ids([*task, *actions, *(o for group in observations for o in group)]))

        limits = self.config
        head = self._fit([next(ids) for _ in task], limits.max_task_tokens, "task", cut)
        action_ids = [
            self._fit([next(ids)], limits.max_action_tokens, "action", cut) for _ in actions
        ]
        segments = []
        for index, group in enumerate(observations):
            observed = self._fit(
                [next(ids) for _ in group], limits.max_observation_tokens, "observation", cut
            )
            segments.append(_Segment(action_ids[index], "action", index))
            segments.append(_Segment(observed, "state", index + 1))
        return self._prefix + head, segments

    def _windows(self, head: list[int], segments: list[_Segment]) -> list[_Chunk]:
        """Causal cover: a window is filled until a segment does not fit, then the next begins."""
        room = self.config.max_length - self._length(head, []) - len(self._suffix)
        if segments and segments[-1].readout not in self.readouts:
            segments = segments[:-1]  # nothing is read out after it
        chunks: list[_Chunk] = []
        current = _Chunk([], new=0, opening=True)
        for segment in segments:
            if self._length([], [*current.segments, segment]) > room:
                chunks.append(current)
                carried = self._carried(current.segments, segment, room)
                current = _Chunk(carried, new=len(carried), opening=False)
            current.segments.append(segment)
        return [*chunks, current]

    def _carried(self, current: list[_Segment], segment: _Segment, room: int) -> list[_Segment]:
        """The newest whole steps of a full window that open the next one."""
        # An observation never parts from its action, so that much is always carried.
        start = len(current) - (segment.readout == "state")
        while start >= 2:
            carried = self._length([], current[start - 2 :])
            if carried > room // 2 or carried + self._length([], [segment]) > room:
                break
            start -= 2
        return current[start:]

    def _prefixes(self, head: list[int], segments: list[_Segment]) -> list[_Chunk]:
        """Bidirectional cover: one sequence for each read-out, with the newest steps that fit."""
        room = self.config.max_length - self._length(head, []) - len(self._suffix)
        chunks = [_Chunk([], new=0, opening=True)] if "state" in self.readouts else []
        for end, segment in enumerate(segments, start=1):
            if segment.readout not in self.readouts:
                continue
            start = end - (2 if segment.readout == "state" else 1)
            while start >= 2 and self._length([], segments[start - 2 : end]) <= room:
                start -= 2
            chunks.append(_Chunk(segments[start:end], new=end - start - 1, opening=False))
        return chunks

    def _lookups(
        self, head: list[int], segments: list[_Segment]
    ) -> dict[tuple[Readout, int], Lookup]:
        """What each read-out looks up: n-grams of the task and of the newest three segments."""
        task = head[len(self._prefix) :]
        before: list[list[int]] = []
        found: dict[tuple[Readout, int], Lookup] = {}
        for segment in [_Segment([], "state", 0), *segments]:
            before = [segment.input_ids, *before[:2]]
            if segment.readout in self.readouts:
                kind = READOUTS.index(segment.readout)
                place = segment.readout, segment.number
                found[place] = lookup(task, before, kind, self.ngram_buckets)
        return found

    def _sequence(
        self,
        head: list[int],
        chunk: _Chunk,
        lookups: dict[tuple[Readout, int], Lookup] | None,
    ) -> EncodedSequence:
        sequence = EncodedSequence(list(head), [], [], [], [])
        if "state" in self.readouts:
            sequence.input_ids.extend(self._markers["state"])
            if chunk.opening:
                self._read(sequence, "state", 0)
        for place, segment in enumerate(chunk.segments):
            sequence.input_ids.extend(segment.input_ids)
            if segment.readout in self.readouts:
                sequence.input_ids.extend(self._markers[segment.readout])
                if place >= chunk.new:
                    self._read(sequence, segment.readout, segment.number)
        sequence.input_ids.extend(self._suffix)
        if lookups is not None:
            places = zip(sequence.readouts, sequence.indices, strict=True)
            sequence.lookups.extend(lookups[place] for place in places)
        return sequence

    def _read(self, sequence: EncodedSequence, readout: Readout, number: int) -> None:
        sequence.columns.append(len(sequence.input_ids) - 1)
        sequence.readouts.append(readout)
        sequence.indices.append(number)

    def _length(self, head: list[int], segments: Sequence[_Segment]) -> int:
        """Tokens of the head (with its marker) and of segments with theirs."""
        markers = sum(len(self._markers[s.readout]) for s in segments if s.readout in self.readouts)
        if head and "state" in self.readouts:
            markers += len(self._markers["state"])
        return len(head) + sum(len(s.input_ids) for s in segments) + markers

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        # Half of a surrogate pair is no text to a tokenizer; it becomes a question mark.
        texts = [text.encode(errors="replace").decode() for text in texts]
        encoded: list[list[int]] = self.tokenizer(
            texts, add_special_tokens=False, split_special_tokens=True, verbose=False
        )["input_ids"]
        return encoded

    def _fit(self, parts: list[list[int]], budget: int, what: str, cut: Counter[str]) -> list[int]:
        """Join parts, cutting the longest in the middle until all fit in ``budget`` tokens."""
        joined: list[int] = []
        for part, allowance in zip(parts, allot([len(p) for p in parts], budget), strict=True):
            kept = cut_middle(part, allowance, self._cut_marker)
            cut[what] += len(part) - len(kept) if len(kept) < len(part) else 0
            joined += kept
        return joined


def describe_cut(cut: Counter[str]) -> str:
    """What was cut, in a sentence.

    >>> describe_cut(Counter(action=3, windows=2))
    '3 tokens of actions cut in the middle; 2 extra windows for long traces'
    """
    parts = [
        f"{cut[what]} tokens of {what}s cut in the middle"
        for what in ("task", "action", "observation")
        if cut[what]
    ]
    if cut["windows"]:
        parts.append(f"{cut['windows']} extra windows for long traces")
    return "; ".join(parts)


def allot(lengths: Sequence[int], budget: int) -> list[int]:
    """Share ``budget`` so that short parts stay whole and long ones get equal shares.

    >>> allot([10, 500, 300], 210)
    [10, 100, 100]
    """
    shares = [0] * len(lengths)
    left = budget
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for place, index in enumerate(order):
        shares[index] = min(lengths[index], left // (len(order) - place))
        left -= shares[index]
    return shares


def cut_middle(ids: list[int], allowance: int, marker: list[int]) -> list[int]:
    """At most ``allowance`` ids: the beginning and the end of ``ids`` round a marker.

    >>> cut_middle([1, 2, 3, 4, 5, 6, 7, 8], 5, [0])
    [1, 2, 0, 7, 8]
    """
    if len(ids) <= allowance:
        return ids
    kept = allowance - len(marker)
    if kept < 2:
        return ids[:allowance]
    return ids[: kept - kept // 2] + marker + ids[len(ids) - kept // 2 :]
