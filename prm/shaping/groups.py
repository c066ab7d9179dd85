"""Comparing the traces of a group: means and deviations in cells of traces or steps.

A cell is what is compared: the traces of a group, all its steps, its steps at one index, or its
steps in one state. Cells are integers, and are summed in one pass over all numbers, without a loop
over groups or traces; padding takes no part.
"""

from __future__ import annotations

from array_api_compat import device, is_torch_array

from prm.errors import PRMError
from prm.shaping.arrays import Array, namespace

ROUNDING = 1e-9
"""Deviations below this share of the numbers' own size are rounding, not differences."""


class Groups:
    """The cells of B traces with steps (B, S), from the (B,) integers of their groups.

    Raises :class:`PRMError` for a group with one trace, or a trace without steps.
    """

    def __init__(self, mask: Array, group: Array) -> None:
        xp = namespace(mask, group)
        n_traces, n_steps = mask.shape
        if tuple(group.shape) != (n_traces,) or not xp.isdtype(group.dtype, "integral"):
            raise PRMError(
                f"group: expected one integer for each of {n_traces} traces, found {group.dtype} "
                f"of shape {tuple(group.shape)}"
            )
        names, of_trace = xp.unique_inverse(group)
        sizes = _sum_by_cell(xp.ones(n_traces, dtype=xp.float64, device=device(mask)), of_trace)
        if bool(xp.any(sizes < 2)):
            raise PRMError(
                f"group {int(names[xp.argmin(sizes)])}: one trace only: an advantage is what a "
                f"trace has over the others of its group, so each needs two or more"
            )
        if not bool(xp.all(mask[:, :1])):
            raise PRMError("step_mask: expected a step in every trace, found one without any")
        self.of_trace: Array = xp.reshape(of_trace, (-1, 1))
        """(B, 1) the group of each trace."""
        self.of_step: Array = xp.broadcast_to(self.of_trace, mask.shape)
        """(B, S) the group of each step."""
        self.at_step: Array = n_steps * self.of_trace + xp.arange(n_steps, device=device(mask))
        """(B, S) the group and index of each step."""

    def cells(self, kind: Array) -> Array:
        """(B, S) the group and ``kind`` of each step."""
        xp = namespace(kind)
        names, kinds = xp.unique_inverse(kind)
        return self.of_trace * names.shape[0] + xp.reshape(kinds, kind.shape)

    def over_alive_mean(self, to_go: Array, mask: Array, *, scaled: bool = False) -> Array:
        """``to_go`` minus its mean over the traces alive, over one number for the group."""
        centred = self.centre(to_go, self.at_step, mask)
        if not scaled:
            return centred
        return centred * _inverse(self.spread(centred, self.of_step, mask, size=to_go))

    def centre(
        self, x: Array, cell: Array, mask: Array | None = None, *, scaled: bool = False
    ) -> Array:
        """``x`` minus its mean in its cell, over its standard deviation there; 0 at padding."""
        xp = namespace(x)
        mask = xp.ones_like(cell, dtype=xp.bool) if mask is None else mask
        centred = xp.where(mask, x - _mean_in_cell(x, cell, mask), 0.0)
        return centred * _inverse(self.spread(centred, cell, mask, size=x)) if scaled else centred

    def spread(self, centred: Array, cell: Array, mask: Array, *, size: Array) -> Array:
        """Mean square of ``centred`` in each one's cell; 0 where it is rounding beside ``size``."""
        xp = namespace(centred)
        square = _mean_in_cell(centred**2, cell, mask)
        return xp.where(square > ROUNDING**2 * _mean_in_cell(size**2, cell, mask), square, 0.0)


def _mean_in_cell(x: Array, cell: Array, mask: Array) -> Array:
    """For each place the mean of ``x`` over the places of its cell that are in the mask."""
    xp = namespace(x)
    flat = xp.reshape(cell, (-1,))
    sums = _sum_by_cell(xp.where(mask, x, 0.0), flat)
    counts = _sum_by_cell(xp.astype(mask, xp.float64), flat)
    means = sums / xp.where(counts > 0, counts, 1.0)
    return xp.reshape(xp.take(means, flat, axis=0), cell.shape)


def _sum_by_cell(x: Array, flat_cell: Array) -> Array:
    """(cells,) sums. The array standard has no sum by index, so each kind has its own."""
    xp = namespace(x)
    n_cells = int(xp.max(flat_cell)) + 1
    values = xp.reshape(x, (-1,))
    if is_torch_array(x):
        zeros = xp.zeros(n_cells, dtype=xp.float64, device=device(x))
        return zeros.index_add(0, flat_cell, values)
    return xp.bincount(flat_cell, weights=values, minlength=n_cells)


def _inverse(square: Array) -> Array:
    """1 / √x, and 0 for 0: where nothing differs there is nothing to scale."""
    xp = namespace(square)
    positive = square > 0
    return xp.where(positive, xp.where(positive, square, 1.0) ** -0.5, 0.0)
