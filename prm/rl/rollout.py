"""Batched multi-turn sampling of a Hugging Face causal LM in a text environment.

All rollouts take a turn together: the model writes one step in each, token by token from a cache
of keys and values, until it writes a stop token; the environment answers all; the answers are read
in one pass. Rollouts that have ended leave the batch. What is kept is what was sampled: exact ids,
which of them the policy wrote, and their log-probabilities under the distribution they were drawn
from, softmax(logits / temperature).

A token is drawn by inverting the cumulated probabilities at a uniform number of the rollout's own
stream, so a rollout depends on (model, seed, task, sample, T) and not on what runs beside it, up
to the rounding of batched products.

Left out: top-k, top-p and grammars, which would have to be repeated wherever log-probabilities are
differentiated; models whose layers do not all attend to the whole past.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from prm.data.trace import Message
from prm.errors import PRMError, plural
from prm.rl.environment import BrokenEpisodes, Environment, Transition, describe
from prm.rl.rollout_record import (
    GrowingRollout,
    Rollout,
    SamplingConfig,
    Start,
    TaskT,
    rollout_id,
)
from prm.rl.rows import RowCache

_log = logging.getLogger(__name__)


class Dialogue(Protocol):
    """How text becomes tokens; ``prm.rl.desk.dialogue.DeskDialogue`` is one."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a step; they belong to it."""
        ...

    def prompt(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> list[int]:
        """Ids of the prompt, up to where the first step begins; at least one."""
        ...

    def follow(self, observations: Sequence[Message], *, stopped: bool) -> list[int]:
        """Ids between a step and the next one; at least one.

        Without ``stopped`` the step was cut at its longest, and its end is to be written here.
        """
        ...

    def parse(self, ids: Sequence[int], turn: int) -> Message:
        """The assistant message of a step, whatever its ids: it never raises."""
        ...


def roll_out(
    model: PreTrainedModel,
    dialogue: Dialogue,
    environment: Environment[TaskT],
    starts: Sequence[Start[TaskT]],
    *,
    sampling: SamplingConfig,
    seed: int,
    policy: str | None = None,
    success_reward: float | None = 1.0,
) -> list[Rollout]:
    """Sample one rollout for each start, all side by side.

    A trace whose episode broke is kept, ends with the action at which it broke, and has
    ``valid: false``; how many broke is logged as a warning.

    Args:
        model: a causal LM in which every layer attends to the whole past; read in eval mode.
        dialogue: how text becomes tokens.
        environment: it is reset here.
        starts: B rollouts; (task id, T, sample) must differ.
        sampling: how tokens are drawn.
        seed: the policy's randomness, 0 or more; the environment has its own.
        policy: name of the policy in the traces, and the beginning of their ids.
        success_reward: total reward from which a trace is a success; None = it does not say.

    Raises:
        PRMError: T < 1, starts that repeat, a model or lengths that do not fit.
    """
    _check(model, starts, sampling, seed)
    if not starts:
        return []
    tasks, limits, samples = zip(*starts, strict=True)
    prompts, tools = environment.reset(tasks, limits, samples)
    rows = [
        GrowingRollout(
            start, list(messages), _prompt_ids(dialogue, start, messages, tools, sampling), seed
        )
        for start, messages in zip(starts, prompts, strict=True)
    ]
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            _sample(model, dialogue, environment, rows, sampling)
    finally:
        model.train(training)
    broken = [row for row in rows if row.status == "environment_error"]
    if broken:
        _log.warning(
            "%s of %s broke in the environment and are kept as invalid; the first: %s",
            len(broken),
            plural(len(rows), "rollout"),
            broken[0].error,
        )
    return [row.finish(tools, sampling, policy, success_reward) for row in rows]


def _sample(
    model: PreTrainedModel,
    dialogue: Dialogue,
    environment: Environment[Any],
    rows: Sequence[GrowingRollout],
    sampling: SamplingConfig,
) -> None:
    """Turn after turn until every row has ended."""
    cache = RowCache(model, len(rows))
    going_on = list(range(len(rows)))
    while going_on:
        _write_steps(cache, rows, going_on, sampling, dialogue.stop_ids)
        for row in (rows[index] for index in going_on):
            row.at.append(len(row.messages))
            row.messages.append(dialogue.parse(row.ids[slice(*row.spans[-1])], len(row.at) - 1))
        _step(environment, rows)
        for row in rows:
            if row.going_on:
                _follow(dialogue, row, sampling)
        going_on = [index for index in going_on if rows[index].going_on]
        cache.keep(going_on)


def _write_steps(
    cache: RowCache,
    rows: Sequence[GrowingRollout],
    indices: Sequence[int],
    sampling: SamplingConfig,
    stop_ids: frozenset[int],
) -> None:
    """One step of the rows at these indices, until the stop token or the longest step."""
    starts = {i: len(rows[i].ids) for i in indices}
    # As many numbers for every step, so that a stream does not depend on the lengths of others.
    uniforms = {i: rows[i].rng.random(sampling.max_step_tokens) for i in indices}
    writing = list(indices)
    for number in range(sampling.max_step_tokens):
        logits = cache.read(writing, [rows[i].ids[-rows[i].unread :] for i in writing])
        drawn = draw(logits, sampling.temperature, np.array([uniforms[i][number] for i in writing]))
        for i, token, log_prob in zip(writing, *(part.tolist() for part in drawn), strict=True):
            rows[i].ids.append(token)
            rows[i].log_probs.append(log_prob)
            rows[i].unread = 1
        writing = [i for i in writing if rows[i].ids[-1] not in stop_ids]
        if not writing:
            break
    for i, start in starts.items():
        rows[i].spans.append((start, len(rows[i].ids)))


def draw(
    logits: torch.Tensor, temperature: float, uniforms: NDArray[np.float64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,) tokens and their log-probabilities, from (B, V) logits and (B,) uniforms in [0, 1).

    >>> import math
    >>> logits = torch.tensor([[0.0, math.log(3.0)]] * 2)
    >>> tokens, log_probs = draw(logits, 1.0, np.array([0.2, 0.3]))
    >>> tokens.tolist(), [round(p, 2) for p in log_probs.exp().tolist()]
    ([0, 1], [0.25, 0.75])
    """
    if temperature == 0:
        return logits.argmax(-1), torch.zeros(len(logits), device=logits.device)
    log_probs = (logits.float() / temperature).log_softmax(-1)
    cumulated = log_probs.double().exp().cumsum(-1)
    if not bool(cumulated[:, -1].isfinite().all()):
        raise PRMError("rollouts: the model's logits are not finite: its weights have diverged")
    heights = torch.from_numpy(uniforms).to(logits.device)[:, None] * cumulated[:, -1:]
    tokens = torch.searchsorted(cumulated, heights, right=True)
    return tokens[:, 0], log_probs.gather(-1, tokens)[:, 0]


def _step(environment: Environment[Any], rows: Sequence[GrowingRollout]) -> None:
    """Every episode takes its turn; what comes back goes to the rollouts that are going on."""
    errors: dict[int, Exception] = {}
    transition: Transition | None = None
    try:
        transition = environment.step([row.action() for row in rows])
    except BrokenEpisodes as broken:
        transition, errors = broken.transition, broken.errors
    except Exception as error:
        errors = dict.fromkeys(range(len(rows)), error)
    for index, row in enumerate(rows):
        if row.over:
            continue
        if transition is None or index in errors:
            row.over = True
            if row.going_on:
                row.rewards.append(math.nan)
                row.end("environment_error", describe(errors[index]))
            continue
        terminated, truncated = transition.terminated[index], transition.truncated[index]
        row.over = bool(terminated or truncated)
        if row.going_on:
            row.messages += transition.observations[index]
            row.rewards.append(float(transition.rewards[index]))
            if row.over:
                row.end("completed" if terminated else "out_of_turns")


def _follow(dialogue: Dialogue, row: GrowingRollout, sampling: SamplingConfig) -> None:
    """Append what answers the last step, or end the row where the next step has no room."""
    observations = row.messages[row.at[-1] + 1 :]
    ids = dialogue.follow(observations, stopped=row.ids[-1] in dialogue.stop_ids)
    if not ids:
        raise PRMError(
            f"rollout {rollout_id(row.start)!r}: expected at least one token between two steps, "
            f"found none: the mask could not tell them apart"
        )
    room = sampling.max_tokens - sampling.max_step_tokens
    if len(row.ids) + len(ids) > room:
        row.end(
            "agent_error",
            f"{len(row.ids) + len(ids)} tokens leave no room for a step of "
            f"{sampling.max_step_tokens} within max_tokens {sampling.max_tokens}",
        )
        return
    row.ids += ids
    row.unread += len(ids)


def _prompt_ids(
    dialogue: Dialogue,
    start: Start[Any],
    messages: list[Message],
    tools: list[dict[str, Any]],
    sampling: SamplingConfig,
) -> list[int]:
    ids = dialogue.prompt(messages, tools)
    room = sampling.max_tokens - sampling.max_step_tokens
    if not 1 <= len(ids) <= room:
        raise PRMError(
            f"rollout {rollout_id(start)!r}: expected a prompt of 1 to {room} tokens (max_tokens "
            f"{sampling.max_tokens} less one step of {sampling.max_step_tokens}), found {len(ids)}"
        )
    return ids


def _check(
    model: PreTrainedModel, starts: Sequence[Start[Any]], sampling: SamplingConfig, seed: int
) -> None:
    if seed < 0:
        raise PRMError(f"seed: expected 0 or more, found {seed}")
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and sampling.max_tokens > longest:
        raise PRMError(
            f"max_tokens: expected at most {longest}, the positions of the model, found "
            f"{sampling.max_tokens}"
        )
    names = set()
    for start in starts:
        name = rollout_id(start)
        if start.max_turns < 1 or start.sample < 0:
            raise PRMError(
                f"rollout {name!r}: expected max_turns of 1 or more and a sample of 0 or more, "
                f"found {start.max_turns} and {start.sample}"
            )
        if name in names:
            raise PRMError(
                f"rollout {name!r}: expected once, found twice (it would be the same rollout)"
            )
        names.add(name)
