"""What a label maker is given."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from prm.data.trace import Trace
from prm.errors import PRMError


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """The settings of a maker; each maker says in its docstring which it uses."""

    name: str
    """The labels are called this."""
    gamma: float = 1.0
    """Discount for each step to go, in (0, 1]."""
    threshold: float | None = None
    """A reward of at least this is a success."""

    def __post_init__(self) -> None:
        if not self.name:
            raise PRMError("--name: expected a name for the labels, found an empty one")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise PRMError(f"--threshold: expected a finite number, found {self.threshold}")
        if not 0 < self.gamma <= 1:
            raise PRMError(f"--gamma: expected a number in (0, 1], found {self.gamma}")


Maker = Callable[[Trace, LabelOptions, "Counter[str]"], Trace]
"""(trace, options, diagnostic notes) -> a labelled copy."""
