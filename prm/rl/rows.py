"""A cache of keys and values in which every row has a length of its own.

Hugging Face's caches grow all rows alike, so rows of different lengths leave holes, and every
token copies the cache. Here token j of a row lies in slot j, and attention is told by a mask which
slots a token sees: those up to its own. A chunk that is shorter than the longest one is padded on
the right; what padding writes lies beyond the end of its row, is seen by no token, and is
overwritten by the row's next ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from prm.errors import PRMError


@dataclass
class _Plan:
    """Where the tokens of one forward pass go: set before it, read by every layer."""

    n_rows: int
    rows: torch.Tensor
    """(b,) rows that are read."""
    slots: torch.Tensor
    """(b, q) slot of each token."""
    n_slots: int
    """Slots that are seen."""


class _Layer(DynamicLayer):
    """Keys and values of one layer: (rows, heads, slots, width)."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plan = plan

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (b, heads, q, width) states; give back all that the rows hold."""
        self.keys = self._written(self.keys, key_states)
        self.values = self._written(self.values, value_states)
        return self._held(self.keys), self._held(self.values)

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all other rows."""
        assert self.keys is not None
        assert self.values is not None
        self.keys, self.values = self.keys[rows], self.values[rows]

    def _written(self, store: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
        plan = self._plan
        if store is None or store.shape[2] < plan.n_slots:
            heads, width = states.shape[1], states.shape[3]
            # Half as much again, so that growing is rare.
            grown = states.new_zeros(plan.n_rows, heads, plan.n_slots * 3 // 2, width)
            if store is not None:
                grown[:, :, : store.shape[2]] = store
            store = grown
        store[plan.rows[:, None], :, plan.slots] = states.transpose(1, 2)
        return store

    def _held(self, store: torch.Tensor) -> torch.Tensor:
        plan = self._plan
        seen = store[:, :, : plan.n_slots]
        return seen if len(plan.rows) == plan.n_rows else seen[plan.rows]


class RowCache:
    """Reads tokens with a model, row by row as far as each has come.

    Raises :class:`PRMError` for a model whose layers do not all attend to the whole past, or that
    attends by code that takes no mask of its caller.
    """

    def __init__(self, model: PreTrainedModel, n_rows: int) -> None:
        kinds = {type(layer).__name__ for layer in DynamicCache(config=model.config).layers}
        if kinds != {"DynamicLayer"}:
            raise PRMError(
                f"rollouts: expected a causal LM in which every layer attends to the whole past, "
                f"found layers with {', '.join(sorted(kinds))}"
            )
        attention = model.config._attn_implementation
        if attention not in ("sdpa", "eager"):
            raise PRMError(f"rollouts: expected attention sdpa or eager, found {attention!r}")
        self._model = model
        self._lengths = [0] * n_rows
        self._place = {row: row for row in range(n_rows)}
        """Where each row is held."""
        nothing = torch.empty(0, dtype=torch.long, device=model.device)
        self._plan = _Plan(n_rows, nothing, nothing, 0)
        self._layers = [_Layer(self._plan) for _ in range(model.config.num_hidden_layers)]
        self._cache = Cache(layers=[*self._layers])

    def read(self, rows: Sequence[int], chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        """(b, V) logits after the last token of each chunk; the chunks are not empty."""
        plan, device = self._plan, self._model.device
        given = {self._place[row]: chunk for row, chunk in zip(rows, chunks, strict=True)}
        # A few rows are gathered; of many it is cheaper to let the idle ones write padding.
        read = list(given) if 2 * len(given) < plan.n_rows else list(range(plan.n_rows))
        width = max(map(len, chunks))
        ids = torch.tensor(
            [[*given.get(place, ()), *[0] * (width - len(given.get(place, ())))] for place in read]
        )
        n_given = torch.tensor([len(given.get(place, ())) for place in read])
        lengths = torch.tensor([self._lengths[place] for place in read])
        slots = lengths[:, None] + torch.arange(width)
        padding = torch.arange(width) >= n_given[:, None]
        plan.n_slots = int(slots.max()) + 1
        plan.rows = torch.tensor(read, device=device)
        plan.slots = slots.to(device)
        unseen = torch.arange(plan.n_slots, device=device) > plan.slots[:, None, :, None]
        mask = torch.zeros(unseen.shape, dtype=self._model.dtype, device=device)
        mask.masked_fill_(unseen, torch.finfo(mask.dtype).min)
        last = n_given.clamp(min=1) - 1
        columns, column_of = torch.unique(last, return_inverse=True)
        logits: torch.Tensor = self._model(
            input_ids=ids.to(device),
            attention_mask=mask,
            # Padding may lie beyond the positions that the model has.
            position_ids=slots.masked_fill(padding, 0).to(device),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=columns.to(device),
        ).logits
        for place, chunk in given.items():
            self._lengths[place] += len(chunk)
        number_of = {place: number for number, place in enumerate(read)}
        asked = torch.tensor([number_of[place] for place in given])
        return logits[asked.to(device), column_of[asked].to(device)]

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all other rows; they are dropped when enough of them have come together."""
        if 4 * len(rows) > 3 * self._plan.n_rows:
            return
        places = [self._place[row] for row in rows]
        kept = torch.tensor(places, dtype=torch.long, device=self._model.device)
        for layer in self._layers:
            layer.keep(kept)
        self._lengths = [self._lengths[place] for place in places]
        self._place = {row: place for place, row in enumerate(rows)}
        self._plan.n_rows = len(rows)
