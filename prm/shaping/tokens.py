"""From steps to tokens: the steps of a trainer's token mask, and per-step numbers laid on them.

A step is a maximal run of True in the token mask, the tokens that the agent wrote in one turn; what
lies between is prompts and tool results. A span is (start, stop), stop excluded, as in a slice.

Rewards go on the last token of a step, so that token-level returns are those of the steps;
advantages go on every token of it. Discounts count steps, so apply them before, never per token.
Two turns without a token between them are one run: keep the token that ends a turn out of the mask,
or take the spans from the messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from array_api_compat import device

from prm.errors import PRMError
from prm.shaping.arrays import Array, namespace

Span = tuple[int, int]
"""First token of a step, and the token after its last one."""


def spans_from_mask(token_mask: Array) -> list[Span]:
    """The steps of one trace, from its (L,) booleans.

    >>> import numpy as np
    >>> spans_from_mask(np.array([0, 1, 1, 0, 0, 1], dtype=bool))
    [(1, 3), (5, 6)]
    """
    xp = namespace(token_mask)
    if token_mask.ndim != 1 or not xp.isdtype(token_mask.dtype, "bool"):
        raise PRMError(
            f"token_mask: expected booleans (L,), one trace at a time, found {token_mask.dtype} of "
            f"shape {tuple(token_mask.shape)}"
        )
    none = xp.zeros(1, dtype=xp.bool, device=device(token_mask))
    before = xp.concat([none, token_mask])
    after = xp.concat([token_mask, none])
    edges = [int(edge) for edge in xp.nonzero(before != after)[0]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def place_on_last_token(step_values: Array, spans: Sequence[Span], length: int) -> Array:
    """(L,) the value of each step on its last token, 0 elsewhere: for rewards.

    ``step_values`` (S,) keep their dtype, and their gradient. Raises :class:`PRMError` unless there
    is one span for each value, and spans are not empty, in order, apart, and within ``length``.

    >>> import numpy as np
    >>> place_on_last_token(np.array([0.5, 2.0]), [(1, 3), (5, 6)], 7)
    array([0. , 0. , 0.5, 0. , 0. , 2. , 0. ])
    """
    _check(step_values, spans, length)
    return _laid_out(step_values, [(stop - 1, stop) for _, stop in spans], length)


def broadcast_over_step(step_values: Array, spans: Sequence[Span], length: int) -> Array:
    """(L,) the value of each step on all of its tokens, 0 elsewhere: for advantages.

    Arguments and errors as for :func:`place_on_last_token`.

    >>> import numpy as np
    >>> broadcast_over_step(np.array([0.5, 2.0]), [(1, 3), (5, 6)], 7)
    array([0. , 0.5, 0.5, 0. , 0. , 2. , 0. ])
    """
    _check(step_values, spans, length)
    return _laid_out(step_values, spans, length)


def _laid_out(step_values: Array, spans: Sequence[Span], length: int) -> Array:
    xp = namespace(step_values)
    zero = xp.zeros(1, dtype=step_values.dtype, device=device(step_values))
    step_of_token = [len(spans)] * length
    for step, (start, stop) in enumerate(spans):
        step_of_token[start:stop] = [step] * (stop - start)
    index = xp.asarray(step_of_token, dtype=xp.int64, device=device(step_values))
    return xp.take(xp.concat([step_values, zero]), index, axis=0)


def _check(step_values: Array, spans: Sequence[Span], length: int) -> None:
    if tuple(step_values.shape) != (len(spans),):
        raise PRMError(
            f"expected one value for each of {len(spans)} steps in the token mask, found values of "
            f"shape {tuple(step_values.shape)}: the mask was made from another trace, or two turns "
            f"have no token between them"
        )
    end = 0
    for start, stop in spans:
        if not end <= start < stop <= length:
            raise PRMError(
                f"span ({start}, {stop}): expected spans that are not empty, in order, apart, and "
                f"within the {length} tokens"
            )
        end = stop
