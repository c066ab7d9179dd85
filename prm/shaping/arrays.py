"""Plumbing of the room: one code for NumPy and torch, masks, and the one recursion.

Axes: a trace is (S,), a padded batch (B, S); any number of leading axes works. ``step_mask`` (…, S)
is True where a step is there: steps come first, padding after them. State arrays are (…, S+1). All
results are float64, on the device of the input; torch keeps its gradients. Torch is never imported
here: its namespace comes with the tensors.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, TypeAlias

from array_api_compat import array_namespace, device

from prm.errors import PRMError

Array: TypeAlias = Any
"""A NumPy array or a torch tensor; all arrays of one call are of the same kind."""


def namespace(*arrays: Array | float | None) -> Any:
    """The array module of the arrays; Python numbers and None go with any."""
    try:
        return array_namespace(*(a for a in arrays if not isinstance(a, (float, int, NoneType))))
    except TypeError as error:
        kinds = sorted({type(array).__name__ for array in arrays if array is not None})
        raise PRMError(
            f"expected NumPy arrays or torch tensors, all of one kind, found {', '.join(kinds)}"
        ) from error


def as_float64(array: Array | float, *, like: Array) -> Array:
    """The numbers in float64, on the device of ``like``."""
    xp = namespace(like)
    if isinstance(array, (bool, int, float)):
        return xp.asarray(array, dtype=xp.float64, device=device(like))
    return xp.astype(array, xp.float64, copy=False)


def checked_mask(step_mask: Array | None, scores: Array, *, states: bool = False) -> Array:
    """``step_mask`` (…, S), all True where None is given, for scores of shape (…, S).

    With ``states`` the scores are state scores, (…, S+1). Raises PRMError where the shapes do not
    agree or a step comes after padding.
    """
    xp = namespace(scores, step_mask)
    if scores.ndim == 0 or (states and scores.shape[-1] == 0):
        raise PRMError(
            f"expected {'state scores (…, S+1)' if states else 'values (…, S)'}, found an array "
            f"of shape {tuple(scores.shape)}"
        )
    shape = (*scores.shape[:-1], scores.shape[-1] - int(states))
    if step_mask is None:
        return xp.ones(shape, dtype=xp.bool, device=device(scores))
    if not xp.isdtype(step_mask.dtype, "bool"):
        raise PRMError(f"step_mask: expected booleans, found {step_mask.dtype}")
    if tuple(step_mask.shape) != shape:
        raise PRMError(
            f"step_mask: expected shape {shape} beside {'state ' if states else ''}values of shape "
            f"{tuple(scores.shape)}, found {tuple(step_mask.shape)}"
        )
    holes = step_mask[..., 1:] & ~step_mask[..., :-1]
    if bool(xp.any(holes)):
        *trace, step = first_place(holes)
        raise PRMError(
            f"step_mask{place(trace)}: step {step + 1} is there and step {step} is not; steps come "
            f"first and padding after them"
        )
    return step_mask


def per_trace(name: str, values: Array | float, step_mask: Array) -> Array:
    """One value for each trace, (…) or a Python number for a single trace, as (…, 1)."""
    xp = namespace(step_mask, values)
    if isinstance(values, (bool, int, float)):
        values = xp.asarray(values, device=device(step_mask))
    expected = tuple(step_mask.shape[:-1])
    if tuple(values.shape) != expected:
        raise PRMError(
            f"{name}: expected one value for each trace, shape {expected}, found shape "
            f"{tuple(values.shape)}"
        )
    return values[..., None]


def ended(terminated: Array | bool, step_mask: Array) -> Array:
    """``terminated`` as (…, 1) booleans: True for a true end, False where turns ran out."""
    values = per_trace("terminated", terminated, step_mask)
    if not namespace(values).isdtype(values.dtype, "bool"):
        raise PRMError(f"terminated: expected booleans, found {values.dtype}")
    return values


def blanked(name: str, values: Array, mask: Array) -> Array:
    """The values in float64, NaN where ``mask`` is False; PRMError where one is infinite."""
    xp = namespace(values, mask)
    numbers = xp.where(mask, as_float64(values, like=mask), xp.nan)
    infinite = xp.isinf(numbers)
    if bool(xp.any(infinite)):
        *trace, index = first_place(infinite)
        raise PRMError(
            f"{name} {index}{place(trace)} is infinite: expected a finite number, or NaN where "
            f"there is no score"
        )
    return numbers


def state_mask_of(step_mask: Array) -> Array:
    """(…, S+1): the first state is always there, each other one with the step that led to it."""
    xp = namespace(step_mask)
    shape = (*step_mask.shape[:-1], 1)
    first = xp.ones(shape, dtype=xp.bool, device=device(step_mask))
    return xp.concat([first, step_mask], axis=-1)


def last_of(mask: Array) -> Array:
    """True at the last place of each row that is there; nowhere in a row of padding alone."""
    xp = namespace(mask)
    return mask & ~xp.concat([mask[..., 1:], xp.zeros_like(mask[..., :1])], axis=-1)


def carry_forward(values: Array, *, start: float) -> Array:
    """Each NaN replaced by the last number before it, by ``start`` where there is none.

    >>> import numpy as np
    >>> carry_forward(np.array([np.nan, 0.2, np.nan, 0.7]), start=0.0)
    array([0. , 0.2, 0.2, 0.7])
    """
    xp = namespace(values)
    known = ~xp.isnan(values)
    n_known = xp.cumulative_sum(xp.astype(known, xp.int64), axis=-1)
    known_first = xp.argsort(xp.astype(~known, xp.int64), axis=-1, stable=True)
    latest = xp.take_along_axis(known_first, xp.where(n_known > 0, n_known - 1, 0), axis=-1)
    return xp.where(n_known > 0, xp.take_along_axis(values, latest, axis=-1), start)


def discounted_to_go(values: Array, discount: float) -> Array:
    """G_i = x_i + discount · G_{i+1} along the last axis, 0 after the end.

    The recursion itself: a closed form divides by discount^i, which underflows.

    >>> import numpy as np
    >>> discounted_to_go(np.array([1.0, 0.0, 4.0]), 0.5)
    array([2., 2., 4.])
    """
    xp = namespace(values)
    to_go = []
    following = xp.zeros_like(values[..., 0])
    for step in reversed(range(values.shape[-1])):
        following = values[..., step] + discount * following
        to_go.append(following)
    return xp.stack(to_go[::-1], axis=-1)


def first_place(found: Array) -> list[int]:
    """The index of the first True."""
    return [int(axis[0]) for axis in namespace(found).nonzero(found)]


def place(trace: list[int]) -> str:
    """Words for the index of a trace in a batch; none for a trace on its own."""
    return f" of trace {', '.join(map(str, trace))}" if trace else ""
