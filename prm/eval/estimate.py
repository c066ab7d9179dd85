"""A measured number with its interval and its denominator: what every metric of the package gives.

Left out: how the interval was made (``prm.eval.intervals``) and how it is printed.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Estimate(NamedTuple):
    """A value, its 95 % interval and how much it rests on. NaN: not defined, or no interval.

    >>> print(Estimate(0.8125, 0.75, 0.86, n=120, n_skipped=3))
    0.812 [0.750, 0.860]
    >>> print(Estimate(40.0, 21.5, math.inf, n=50, n_skipped=0))
    40.000 [21.500, ∞]
    >>> Estimate(float("nan"), float("nan"), float("nan"), n=0, n_skipped=4).as_json()["value"]
    """

    value: float
    low: float
    high: float
    n: int
    """Units (steps, traces or tasks, as the metric says) that went into the value."""
    n_skipped: int
    """Units left out because a label or a score is missing."""

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "–"
        if math.isnan(self.low):
            return f"{_fixed(self.value)} [–]"
        return f"{_fixed(self.value)} [{_fixed(self.low)}, {_fixed(self.high)}]"

    def as_json(self) -> dict[str, float | int | None]:
        """The fields by name; see :func:`json_number`."""
        return {name: json_number(field) for name, field in self._asdict().items()}


def _fixed(value: float) -> str:
    return f"{value:.3f}".replace("inf", "∞")


def json_number(value: float | int) -> float | int | None:
    """NaN and infinity as None, because strict JSON has neither."""
    return value if math.isfinite(value) else None
