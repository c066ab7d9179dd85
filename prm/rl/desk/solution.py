r"""The exact solution of desk: value, action values and optimal actions for every belief.

**Belief.** The path has records 0 … h; record i < h shows the link to record i + 1, record h the
value asked for. Before the right search result is found, the belief is the set C of results that
may be it, with probabilities in proportion to ``rank_probs``. From then on it is
:math:`b = (p_0, …, p_{d-1})`, the probabilities that the links shown by the d records read so far
are stale. This is sufficient, because ages and staleness are drawn for each record on its own,
on the path and off it alike, and the world is a tree: what a wrong record shows is distributed
like what a right one shows, and a wrong branch never comes back to the right one. So nothing that
is seen further down says whether a link above was stale, and P(the value is right) =
:math:`\prod_i (1 - p_i)`.

**Transitions**, each with probability 1 - τ (with τ, the time-out, b stays and the turn is lost):

    search          C = all results
    candidate j     right with P(j | C): b = (p(a)), age a drawn uniformly; else C loses j
    next            b gains p(a)
    refresh i       with 1 - p_i the link was right: p_i = 0, all else stays;
                    with p_i it was stale:           b = (p_0, …, p_{i-1}, 0), the rest was in vain

**Values**, with t turns left: V(b, 0) = 0, V(b, t) = max_a Q(b, a, t), and

    Q(b, answer, t) = prod (1 - p_i)      Q(b, wrong, t) = 0      Q(b, waste, t) = V(b, t - 1)
    Q(b, a, t)      = sum over b' of P(b' | b, a) V(b', t - 1)    for the rest

where *waste* is every call that can teach nothing (repeated, malformed, off the path).

**Ties.** Actions whose Q is within 1e-9 of V are compared by the expected number of turns that the
episode takes from here, and the fewest win. Without this, a step wasted where V has
reached its limit (a checked value and turns to spare: V = 1 with or without the waste) would count
as optimal. The tolerance is that of rounding only, so a waste that costs any success at all is
never optimal. Where V = 0 every action fails alike, and no action is called optimal or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from prm.errors import PRMError
from prm.rl.desk.belief import Action, Belief
from prm.rl.desk.world import MAX_TURNS, DeskConfig

TOLERANCE = 1e-9
"""Success probabilities, and expected turns, closer than this are equal."""


class Option(NamedTuple):
    """An action that may be worth taking in a belief."""

    action: Action
    answer_prob: float
    """P(the answer is right) where the action is an answer, else 0."""
    outcomes: tuple[tuple[float, Belief], ...]
    """Probabilities and beliefs that may follow; none after an answer."""


class Solution:
    """V, Q and the optimal actions of desk with ``hops`` links, for up to 40 turns left."""

    def __init__(self, config: DeskConfig, hops: int) -> None:
        options = _reachable(config, hops)
        self._belief_index = {belief: i for i, belief in enumerate(options)}
        self._rows = [
            (owner, option) for owner, found in enumerate(options.values()) for option in found
        ]
        self._row_index = {
            (owner, option.action): row for row, (owner, option) in enumerate(self._rows)
        }
        self._owner = np.array([owner for owner, _ in self._rows])
        self._sizes = np.bincount(self._owner)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._answer_prob = np.array([option.answer_prob for _, option in self._rows])
        self._next = self._transition_matrix()
        self._v, self._q, self._optimal = self._solve()

    def v(self, belief: Belief, turns_left: int) -> float:
        """V in [0, 1]: P(success) under optimal play from here.

        >>> round(solve(DeskConfig(), hops=2).v(Belief(), 5), 4)
        0.2687
        """
        return float(self._v[turns_left, self._index(belief, turns_left)])

    def q(self, belief: Belief, action: Action, turns_left: int) -> float:
        """Q in [0, 1]: P(success) when ``action`` is taken now, then optimal play.

        ``turns_left`` >= 1 counts the turn that the action takes.
        """
        index = self._index(belief, turns_left)
        if action.kind == "wrong":
            return 0.0
        if action.kind == "waste":
            return self.v(belief, turns_left - 1)
        return float(self._q[turns_left, self._row_index[index, action]])

    def optimal(self, belief: Belief, turns_left: int) -> tuple[Action, ...]:
        """The optimal actions; () where V = 0, since there every action fails alike.

        >>> solve(DeskConfig(), hops=2).optimal(Belief((), (0.4,)), turns_left=8)
        (Action(kind='refresh', item=0),)
        >>> solve(DeskConfig(), hops=2).optimal(Belief((), (0.4,)), turns_left=3)
        (Action(kind='next', item=0),)
        """
        return self._best(belief, turns_left) if self.v(belief, turns_left) > 0 else ()

    def choice(self, belief: Belief, turns_left: int) -> Action:
        """The first optimal action, or where V = 0 the one that ends soonest."""
        return self._best(belief, turns_left)[0]

    def success(self, turns: int, *, as_if: int | None = None) -> float:
        """P(success) from the prompt with ``turns`` turns, acting optimally for ``as_if`` turns.

        Without ``as_if``, V of the prompt. With ``as_if`` > ``turns`` the policy is optimal for a
        longer episode than it gets: it does not know its budget, and is cut.
        """
        planned = turns if as_if is None else as_if
        if not 0 <= turns <= planned <= MAX_TURNS:
            raise PRMError(
                f"desk: expected 0 <= turns <= as_if <= {MAX_TURNS}, found {turns} and {planned}"
            )
        surplus = planned - turns
        success = np.zeros(len(self._belief_index))
        for left in range(1, turns + 1):
            rows = self._first_rows(left + surplus)
            success = self._answer_prob[rows] + self._next[rows] @ success
        return float(success[self._belief_index[Belief()]])

    def _best(self, belief: Belief, turns_left: int) -> tuple[Action, ...]:
        index = self._index(belief, turns_left)
        first = self._starts[index]
        best = self._optimal[turns_left, first : first + self._sizes[index]]
        return tuple(self._rows[first + k][1].action for k in np.flatnonzero(best))

    def _index(self, belief: Belief, turns_left: int) -> int:
        if belief not in self._belief_index or not 0 <= turns_left <= MAX_TURNS:
            raise PRMError(
                f"desk: expected a belief of this configuration and 0 to {MAX_TURNS} turns left, "
                f"found {belief} and {turns_left}"
            )
        return self._belief_index[belief]

    def _first_rows(self, turns_left: int) -> NDArray[np.intp]:
        """(beliefs,) the first optimal row of each belief."""
        rows = np.flatnonzero(self._optimal[turns_left])
        _, first = np.unique(self._owner[rows], return_index=True)
        return rows[first]

    def _transition_matrix(self) -> csr_matrix:
        """(rows, beliefs) P(b' | b, a); a row is a belief with one of its options."""
        cells = [
            (prob, row, self._belief_index[belief])
            for row, (_, option) in enumerate(self._rows)
            for prob, belief in option.outcomes
        ]
        probs, rows, columns = zip(*cells, strict=True)
        shape = (len(self._rows), len(self._belief_index))
        return csr_matrix((probs, (rows, columns)), shape=shape)

    def _solve(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """Backward induction over the turns left: V, Q and the optimal rows, each (41, …)."""
        v = np.zeros((MAX_TURNS + 1, len(self._starts)))
        q = np.zeros((MAX_TURNS + 1, len(self._rows)))
        optimal = np.zeros(q.shape, dtype=np.bool_)
        turns = np.zeros(len(self._starts))
        for left in range(1, MAX_TURNS + 1):
            q[left] = self._answer_prob + self._next @ v[left - 1]
            v[left] = np.maximum.reduceat(q[left], self._starts)
            row_turns = 1 + self._next @ turns
            row_turns[q[left] < v[left][self._owner] - TOLERANCE] = np.inf
            turns = np.minimum.reduceat(row_turns, self._starts)
            optimal[left] = row_turns <= turns[self._owner] + TOLERANCE
        return v, q, optimal


@lru_cache(maxsize=16)
def solve(config: DeskConfig, hops: int) -> Solution:
    """The solution for one number of hops; solved once, then kept."""
    return Solution(config, hops)


def _reachable(config: DeskConfig, hops: int) -> dict[Belief, list[Option]]:
    """Every belief that any actions can lead to, with its options."""
    found: dict[Belief, list[Option]] = {}
    frontier = [Belief()]
    while frontier:
        belief = frontier.pop()
        if belief in found:
            continue
        found[belief] = list(_options(belief, config, hops))
        frontier += [after for option in found[belief] for _, after in option.outcomes]
    return found


def _options(belief: Belief, config: DeskConfig, hops: int) -> Iterator[Option]:
    """The actions worth considering, with what they lead to."""
    candidates, levels = belief

    def looking(action: Action, outcomes: list[tuple[float, Belief]]) -> Option:
        kept = [(1 - config.timeout_prob) * prob for prob, _ in outcomes]
        after = [follower for _, follower in outcomes]
        lost = (config.timeout_prob, belief)
        return Option(action, 0.0, (lost, *zip(kept, after, strict=True)))

    def reading(prob: float) -> list[tuple[float, Belief]]:
        each = prob / len(config.ages)
        return [(each, Belief((), (*levels, stale_prob))) for stale_prob in config.stale_probs]

    if candidates is None:
        ranks = tuple(range(len(config.rank_probs)))
        yield looking(Action("search"), [(1.0, Belief(ranks))])
        return
    total = sum(config.rank_probs[rank] for rank in candidates)
    for rank in candidates:
        right_prob = config.rank_probs[rank] / total
        others = tuple(other for other in candidates if other != rank)
        outcomes = reading(right_prob)
        if others:
            outcomes.append((1 - right_prob, Belief(others)))
        yield looking(Action("candidate", rank), outcomes)
    if not levels:
        return
    if len(levels) <= hops:
        yield looking(Action("next"), reading(1.0))
    else:
        yield Option(Action("answer"), math.prod(1 - prob for prob in levels), ())
    for level, stale_prob in enumerate(levels):
        if stale_prob > 0:
            was_right = Belief((), (*levels[:level], 0.0, *levels[level + 1 :]))
            was_stale = Belief((), (*levels[:level], 0.0))
            yield looking(
                Action("refresh", level), [(1 - stale_prob, was_right), (stale_prob, was_stale)]
            )
