"""Tests of paired comparisons: exact McNemar for solved sets, Holm for a list of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prm.eval.steps import Floats


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p-value that two policies solve the same share of tasks.

    Only tasks that one of them solves say anything; under the hypothesis either is as likely
    (McNemar 1947, doi:10.1007/BF02295996, with the binomial distribution in place of its limit).

    Args:
        only_a: tasks that only the first policy solves, >= 0.
        only_b: tasks that only the second one solves, >= 0.

    >>> round(mcnemar(5, 1), 3), round(mcnemar(9, 1), 4), mcnemar(0, 0)
    (0.219, 0.0215, 1.0)
    """
    from scipy.stats import binomtest

    if only_a + only_b == 0:
        return 1.0
    return float(binomtest(only_a, only_a + only_b).pvalue)


def holm(p: Sequence[float]) -> Floats:
    """(M,) p-values adjusted for M tests at once (Holm 1979).

    NaN = not tested; it stays NaN and does not count.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    scaled = values[order] * (len(order) - np.arange(len(order)))
    adjusted = np.full(len(values), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return adjusted
