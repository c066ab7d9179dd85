"""Desk, the embedded environment: its parameters, and the tasks that are drawn from them.

Desk is a back office. A task names a start record, follows ``hops`` links from it and asks for one
field of the last record: "phone of the agent of the owner of Alder, Oslo". The world of a task is
a tree: every link leads to a record of its own, and so does every out-of-date version of a link.
So no record is ever reached by two ways, what is seen off the path says nothing about the path,
and the exact belief (``solution.py``) stays small. Records are laid out when they are first shown.

A task fixes the question, the order of the search results, the handles and the values, in the
order in which they are shown. What differs between two samples of a task (ages, staleness,
time-outs) is drawn by the episode (``environment.py``).

Left out: writing to records, and knowledge that outlives an episode. The exact solution is that
of an agent to whom one handle or value is as good as another; one that has learned the answers of
particular tasks by heart can do better on those, so give learners fresh tasks: streams are endless.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from prm.errors import PRMError
from prm.rl.budgets import turns_of

Split = Literal["train", "validation", "test", "rl_train", "rl_test"]
"""Disjoint streams of tasks: three for step reward models, two for RL and its evaluation."""

RELATIONS = ("owner", "agent")
FIELDS = ("phone", "code")
CITIES = ("Oslo", "Bergen", "Malmo", "Turku", "Riga", "Gdansk", "Kiel", "Aarhus")
NAMES = (
    "Alder", "Aspen", "Birch", "Cedar", "Cherry", "Elder", "Fir", "Hazel", "Holly", "Juniper",
    "Larch", "Laurel", "Linden", "Maple", "Myrtle", "Oak", "Pine", "Poplar", "Rowan", "Spruce",
    "Sumac", "Tamarack", "Walnut", "Willow",
)  # fmt: skip

MAX_TURNS = 40
"""Bound on T: a turn shows at most two new handles and two new values, and two digits name 90."""
N_HANDLES = 90


@dataclass(frozen=True, kw_only=True)
class DeskConfig:
    """The parameters of desk, fixed before anything was learned.

    They were chosen from the exact solution alone so that the instrument can see budget dependence:
    over the grid the optimum succeeds 20 % to 98 % of the time, and the policy that is optimal at
    the largest budget loses 19, 36 and 25 points at the three smallest (``eval/results``).
    """

    hops: tuple[int, ...] = (2, 3, 4)
    """Links to follow, equally often: optimal lengths of 5 to 7 turns, long enough that an early
    mistake is far from the outcome, short enough for a small model."""
    ages: tuple[int, ...] = (0, 2, 4)
    """Ages that a record may show, equally likely: the visible hint, with one age that needs no
    check, one where checking depends on the budget, and one that is worth a check early."""
    stale_probs: tuple[float, ...] = (0.0, 0.2, 0.4)
    """P(stale | age): a tenth of the age, so that the rule fits in the prompt; on average 0.2, so
    that five unchecked reads are right a third of the time."""
    timeout_prob: float = 0.1
    """P(a search, read or refresh is lost): makes every plan uncertain in length, so that the turns
    left matter at each step; an answer is never lost."""
    rank_probs: tuple[float, ...] = (0.8, 0.2)
    """P(the search result of this rank is the right record): two look-alikes, told apart by
    reading; the first is worth trying first, and wrong often enough that the city must be read."""
    budget_ratios: tuple[float, ...] = (1.0, 1.25, 1.5, 1.75, 2.0)
    """The budget grid, T over the shortest possible episode: from no slack at all to just enough
    for checking everything."""
    show_turns: bool = True
    """Whether the prompt and every observation say how many turns are left."""

    def __post_init__(self) -> None:
        if len(self.ages) != len(self.stale_probs) or len(set(self.ages)) != len(self.ages):
            raise PRMError("desk: expected distinct ages, and one entry of stale_probs for each")
        if 0 not in self.ages or self.stale_probs[self.ages.index(0)] != 0:
            raise PRMError("desk: expected age 0 with stale_probs 0 (a refreshed record shows it)")
        if not all(0 <= p < 1 for p in (*self.stale_probs, self.timeout_prob)):
            raise PRMError("desk: expected stale_probs and timeout_prob in [0, 1)")
        if not (0 < len(self.rank_probs) <= len(CITIES)) or min(self.rank_probs) <= 0:
            raise PRMError(f"desk: expected 1 to {len(CITIES)} rank_probs, each above 0")
        if not math.isclose(sum(self.rank_probs), 1):
            raise PRMError(f"desk: expected rank_probs of sum 1, found {sum(self.rank_probs)}")
        if not self.hops or min(self.hops) < 0:
            raise PRMError("desk: expected at least one number of hops, each 0 or more")
        if not self.budget_ratios or min(self.budget_ratios) < 1:
            raise PRMError("desk: expected budget_ratios of 1 or more (below, no task is solvable)")

    def stale_prob(self, age: int) -> float:
        """P(stale | age)."""
        if age not in self.ages:
            raise PRMError(f"desk: expected an age among {self.ages}, found {age}")
        return self.stale_probs[self.ages.index(age)]


def shortest(hops: int) -> int:
    """Turns of the shortest successful episode: search, ``hops`` + 1 reads, answer.

    >>> shortest(2)
    5
    """
    return hops + 3


def budgets(config: DeskConfig, hops: int) -> tuple[int, ...]:
    """The budgets T of the grid for a number of hops: ratio x shortest, rounded up.

    >>> budgets(DeskConfig(), 2)
    (5, 7, 8, 9, 10)
    """
    return tuple(turns_of(config.budget_ratios, shortest(hops)).tolist())


@dataclass(frozen=True, kw_only=True)
class Task:
    """One question and the world behind it."""

    id: str
    name: str
    """Name of the start record, shared by its look-alikes."""
    right: int
    """Rank of the right record among the search results."""
    cities: tuple[str, ...]
    """City of each search result, all different; the question names ``cities[right]``."""
    path: tuple[str, ...]
    """Relations to follow, from the start record on: (hops,)."""
    field: str
    handles: tuple[str, ...]
    """Record handles in the order in which they are handed out."""
    values: tuple[str, ...]
    """The answer, then other values in the order in which they are shown."""

    @property
    def city(self) -> str:
        """City of the right record."""
        return self.cities[self.right]

    @property
    def hops(self) -> int:
        """Links to follow."""
        return len(self.path)

    @property
    def answer(self) -> str:
        """The true value."""
        return self.values[0]


def desk_tasks(n: int, seed: int, split: Split, config: DeskConfig | None = None) -> list[Task]:
    """``n`` tasks of a stream; a longer list of the same stream begins with the shorter one.

    Streams differ by seed and by split: no two of them share a task id or a world. A question may
    return by chance with another world behind it, and then has another answer.

    >>> task = desk_tasks(1, seed=0, split="train")[0]
    >>> task.id, task.path, task.field
    ('desk-train-0-0', ('agent', 'agent', 'agent', 'owner'), 'phone')
    """
    if n < 0 or seed < 0:
        raise PRMError(f"desk: expected n and seed of 0 or more, found n = {n}, seed = {seed}")
    config = config or DeskConfig()
    stream = get_args(Split).index(split)
    return [
        _task(f"desk-{split}-{seed}-{i}", np.random.default_rng([seed, stream, i]), config)
        for i in range(n)
    ]


def _task(id: str, rng: np.random.Generator, config: DeskConfig) -> Task:
    hops = int(rng.choice(config.hops))
    n_candidates = len(config.rank_probs)
    numbers = rng.choice(np.arange(1000, 10000), size=2 * MAX_TURNS + 1, replace=False)
    return Task(
        id=id,
        name=NAMES[rng.integers(len(NAMES))],
        right=int(rng.choice(n_candidates, p=config.rank_probs)),
        cities=tuple(CITIES[i] for i in rng.permutation(len(CITIES))[:n_candidates]),
        path=tuple(RELATIONS[i] for i in rng.integers(len(RELATIONS), size=hops)),
        field=FIELDS[rng.integers(len(FIELDS))],
        handles=tuple(f"r{10 + i}" for i in rng.permutation(N_HANDLES).tolist()),
        values=tuple(str(number) for number in numbers.tolist()),
    )
