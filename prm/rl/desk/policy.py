"""A small policy for desk: a Llama of 0.2 M parameters, taught by the traces of scripted agents.

It is the base policy of reinforcement learning: it writes calls that can be read, follows links,
and does so about as well as the mixture of agents it has seen. They think before they act
(``prm.rl.desk.voice.think``), so it does too. Tasks are those of the split ``train``, and shorter
ones, from which copying is learned first.

The same seed gives the same weights on the same machine and number of threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from prm.data.atomic import atomic_folder
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.rl.desk.agents import AGENTS
from prm.rl.desk.dialogue import HANDLE, DeskDialogue, desk_tokenizer
from prm.rl.desk.play import Run, play
from prm.rl.desk.world import DeskConfig, budgets, desk_tasks

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TEACHERS = tuple(name for name in AGENTS if name not in ("fumbler", "random"))
"""Who is imitated: all but the two whose calls are noise."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The network and how it is taught."""

    hidden_size: int = 64
    n_layers: int = 4
    n_heads: int = 4
    hops: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Links of the tasks that are shown."""
    show_turns: bool = True
    """Whether the traces say how many turns are left; the tokens of both are the same."""
    n_tasks: int = 4000
    samples: int = 4
    """Traces of a task, each of another teacher."""
    steps: int = 1000
    batch_size: int = 32
    answer_weight: float = 16.0
    """Of the answer's tokens in the loss: they come once a trace and decide it."""
    handle_weight: float = 4.0
    """Of the handles that are read or refreshed: to copy the right one is the hardest to learn."""
    matrix_rate: float = 0.02
    """Learning rate of Muon, for the matrices of the layers."""
    other_rate: float = 0.05
    """Learning rate of Adam, for the embedding and the norms."""


class Policy(NamedTuple):
    """A model and how it reads and writes."""

    model: LlamaForCausalLM
    dialogue: DeskDialogue


def teach(config: PolicyConfig | None = None, *, seed: int = 0) -> Policy:
    """A policy that imitates scripted agents; about two minutes on two cores.

    Raises :class:`PRMError` for a seed below 0.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = config or PolicyConfig()
    if seed < 0:
        raise PRMError(f"seed: expected 0 or more, found {seed}")
    traces = _lessons(config, seed)
    dialogue = DeskDialogue(desk_tokenizer(traces[:8000]))
    encoded = [dialogue.encode(trace) for trace in traces]
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(dialogue.tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=2 * config.hidden_size,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            # Tokens far apart from the start: copying one is a matter of telling it from others.
            initializer_range=0.1,
            pad_token_id=dialogue.pad_id,
            bos_token_id=None,
            eos_token_id=dialogue.tokenizer.eos_token_id,
        )
    )
    optimisers = _optimisers(model, config)
    for step, batch in enumerate(_batches(encoded, dialogue, config, seed)):
        factor = min(1.0, (step + 1) / 30) * max(0.05, 1 - step / config.steps)
        loss = _loss(model, *batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, rate in optimisers:
            optimiser.param_groups[0]["lr"] = factor * rate
            optimiser.step()
            optimiser.zero_grad()
    return Policy(model.eval(), dialogue)


def save_policy(policy: Policy, folder: str | Path) -> None:
    """Write a new folder that transformers and :func:`load_policy` read."""
    with atomic_folder(folder) as path:
        policy.model.save_pretrained(path)
        policy.dialogue.tokenizer.save_pretrained(path)


def load_policy(folder: str | Path) -> Policy:
    """The policy of a folder of :func:`save_policy`.

    Raises :class:`PRMError` when it is no such folder.
    """
    from transformers import AutoTokenizer, LlamaForCausalLM

    if not (Path(folder) / "config.json").is_file():
        raise PRMError(f"policy {str(folder)!r}: expected a folder of save_policy, found none")
    model = LlamaForCausalLM.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    return Policy(model.eval(), DeskDialogue(tokenizer))


def _lessons(config: PolicyConfig, seed: int) -> list[Trace]:
    """The traces that are imitated, every task by several teachers and with budgets of its own."""
    desk = DeskConfig(hops=config.hops, show_turns=config.show_turns)
    rng = np.random.default_rng(seed)
    runs = []
    for task in desk_tasks(config.n_tasks, seed, "train", desk):
        teachers = rng.permutation(len(TEACHERS))[: config.samples]
        limits = rng.choice(budgets(desk, task.hops), size=config.samples)
        runs += [
            Run(task, TEACHERS[teacher], int(limit), sample)
            for sample, (teacher, limit) in enumerate(zip(teachers, limits, strict=True))
        ]
    return play(runs, seed, desk, thoughts=True)


def _batches(
    encoded: list[tuple[list[int], list[bool]]],
    dialogue: DeskDialogue,
    config: PolicyConfig,
    seed: int,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(b, L) ids and the weight of each as a target, in batches of similar length."""
    rng = np.random.default_rng([seed, 1])
    by_length = sorted(range(len(encoded)), key=lambda index: len(encoded[index][0]))
    size = config.batch_size
    chunks = [by_length[i : i + size] for i in range(0, len(by_length) - size + 1, size)]
    words = dialogue.tokenizer.get_vocab()
    answering = [token for word, token in words.items() if "answer" in word]
    handles = [token for word, token in words.items() if re.fullmatch(HANDLE, word)]
    order: list[int] = []
    for _ in range(config.steps):
        order = order or rng.permutation(len(chunks)).tolist()
        chosen = [encoded[index] for index in chunks[order.pop()]]
        length = max(len(ids) for ids, _ in chosen)
        ids = torch.full((size, length), dialogue.pad_id)
        weights = torch.zeros(size, length)
        for row, (own, written) in enumerate(chosen):
            ids[row, : len(own)] = torch.tensor(own)
            weights[row, : len(own)] = torch.tensor(written, dtype=torch.float32)
        weights *= torch.where(torch.isin(ids, torch.tensor(handles)), config.handle_weight, 1.0)
        # Whatever follows the word in its own line is the answer.
        after = torch.isin(ids, torch.tensor(answering)) & (weights > 0)
        for row, start in after.nonzero().tolist():
            weights[row, start + 1 :] *= config.answer_weight
        yield ids, weights


def _loss(model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weight = weights[:, 1:].flatten()
    return (losses * weight).sum() / weight.sum()


def _optimisers(
    model: LlamaForCausalLM, config: PolicyConfig
) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices of the layers and Adam for the rest, each with its learning rate."""
    named = dict(model.named_parameters())
    matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named.items() if p.ndim != 2 or "embed" in name]
    return [
        (torch.optim.Muon(matrices, weight_decay=0.0), config.matrix_rate),
        (torch.optim.Adam(rest, betas=(0.9, 0.98)), config.other_rate),
    ]
