"""Exact McNemar and Holm: published examples, exact arithmetic, and the step-down procedure."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prm.eval.significance import holm, mcnemar

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [(5, 1, 0.219), (9, 1, 0.0215), (3, 3, 1.0), (7, 3, 0.344), (0, 0, 1.0)],
)
def test_published_solved_sets(only_a: int, only_b: int, p: float) -> None:
    """Recomputed from the set differences that arXiv 2604.14877 prints for 100 tasks."""
    assert mcnemar(only_a, only_b) == pytest.approx(p, abs=5e-4)


@given(st.integers(0, 60), st.integers(0, 60))
def test_it_is_twice_the_smaller_tail_of_a_fair_coin(only_a: int, only_b: int) -> None:
    n, least = only_a + only_b, min(only_a, only_b)
    tail = Fraction(sum(math.comb(n, i) for i in range(least + 1)), 2**n)
    assert mcnemar(only_a, only_b) == pytest.approx(float(min(Fraction(1), 2 * tail)))
    assert mcnemar(only_a, only_b) == mcnemar(only_b, only_a)


def test_holm_on_the_textbook_example() -> None:
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.2]).tolist() == [0.2]
    assert holm([]).tolist() == []


@given(PROBABILITIES, st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_procedure_rejects(p: list[float], level: float) -> None:
    adjusted = holm(p)
    order = sorted(range(len(p)), key=p.__getitem__)
    rejected = set()
    for place, test in enumerate(order):
        if p[test] * (len(p) - place) > level:
            break
        rejected.add(test)
    assert {i for i, value in enumerate(adjusted) if value <= level} == rejected


@given(PROBABILITIES)
def test_holm_lies_between_the_raw_values_and_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(np.array(p) * len(p), 1)).all()
    assert holm(p[::-1]).tolist() == adjusted[::-1].tolist()


@given(PROBABILITIES, st.integers(0, 12))
def test_what_is_not_tested_costs_nothing(p: list[float], place: int) -> None:
    place = min(place, len(p))
    adjusted = holm([*p[:place], math.nan, *p[place:]])
    assert math.isnan(adjusted[place])
    assert np.delete(adjusted, place).tolist() == holm(p).tolist()
