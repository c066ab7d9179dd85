"""What a study is: arms that differ in one thing, trained and evaluated alike, read from YAML.

    base: {steps: 1000}
    training: {updates: 40, groups: 16, rollouts: 8}
    evaluation: {turns: [6, 8, 10, 12, 14], tasks: 200, samples: 4}
    primary: {k: 1, t: 8}
    seeds: [0, 1]
    arms:
      - {name: outcome, budget: {kind: fixed, turns: [14]}}
      - name: outcome + critic
        budget: {kind: fixed, turns: [14]}
        shaping: {mode: critic, lam: 0.9}
      - {name: mix, budget: {kind: mix, turns: [6, 8, 10, 12, 14]}}

Unknown keys, contradictions and repeated names are refused here, before anything runs.
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from prm.data.typed import complaint
from prm.errors import PRMError
from prm.rl.budgets import BudgetCurriculum, BudgetMix, BudgetSampler, FixedBudget
from prm.rl.desk.world import MAX_TURNS
from prm.shaping import Estimator, ShapingConfig

_T = TypeVar("_T")


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the file."""


class Budget(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How T is drawn in training."""

    kind: Literal["fixed", "mix", "curriculum"]
    turns: list[int]
    """One T for fixed; the grid, or the rising caps, for the others."""
    weights: list[float] | None = None
    """mix: relative shares; equal ones if absent."""
    adapt: float = 0.0
    """mix: share of the groups that follows where success moves."""

    def sampler(self) -> BudgetSampler:
        """A fresh sampler; :class:`PRMError` for what it refuses."""
        if self.kind != "mix" and (self.weights is not None or self.adapt):
            raise PRMError(f"budget {self.kind!r}: weights and adapt are of 'mix' alone")
        if self.kind == "mix":
            return BudgetMix(self.turns, self.weights, adapt=self.adapt)
        if self.kind == "curriculum":
            return BudgetCurriculum(self.turns)
        if len(self.turns) != 1:
            raise PRMError(f"budget 'fixed': expected one number of turns, found {self.turns}")
        return FixedBudget(self.turns[0])


class Arm(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to train; all arms have the same base policy, tasks and number of updates."""

    name: str
    budget: Budget
    shaping: dict[str, Any] = {}
    """Fields of ``ShapingConfig``; {} is the outcome alone."""
    estimator: Estimator | None = None
    scores: Literal["model", "oracle", "placebo"] = "model"
    """Who scores: the step reward model; the exact value; the model, but with the scores of other
    traces (shuffled over the batch)."""
    turns_shown: bool = True
    """Whether the agent is told how many turns are left, in training and in the evaluation."""

    def shaping_config(self) -> ShapingConfig:
        """The blend; :class:`PRMError` for what it refuses."""
        known = [field.name for field in dataclasses.fields(ShapingConfig)]
        for key in self.shaping:
            if key not in known:
                raise PRMError(f"shaping: expected some of {', '.join(known)}, found {key!r:.60}")
        return _typed({"mode": "terminal"} | self.shaping, ShapingConfig, "shaping")


class Base(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy that all arms start from."""

    steps: int = 1000
    """Of supervised learning (``PolicyConfig.steps``)."""
    folder: str | None = None
    """A policy that was saved before, in place of teaching one."""
    hidden_folder: str | None = None
    """The same for the arms that are not told how many turns are left."""


class ScorerSize(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The step reward model and its corpus of scripted traces."""

    tasks: int = 400
    epochs: int = 2
    layers: int = 2
    width: int = 64
    learning_rate: float = 1.5e-3
    folder: str | None = None
    """A model that was trained before, in place of training one."""


class Training(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GRPO, the same in all arms."""

    updates: int = 40
    groups: int = 16
    """Tasks of an update."""
    rollouts: int = 8
    """Of each task."""
    learning_rate: float = 2e-3
    temperature: float = 1.0


class Evaluation(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every policy is run on: each task ``samples`` times anew at each T."""

    turns: tuple[int, ...] = (6, 8, 10, 12, 14)
    tasks: int = 200
    samples: int = 4
    states: int = 300
    """Fixed states of neutral agents in which single decisions are judged."""


class Primary(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cell that was chosen beforehand."""

    k: int = 1
    t: int = 8


class StudyConfig(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A study."""

    arms: list[Arm]
    seeds: list[int]
    """Training seeds, each of all arms."""
    base: Base = Base()
    scorer: ScorerSize = ScorerSize()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    primary: Primary = Primary()

    @property
    def kinds_of_base(self) -> list[bool]:
        """Whether turns are shown, for each base policy that is needed."""
        hidden = [False] if any(not arm.turns_shown for arm in self.arms) else []
        return [True, *hidden]

    def check(self) -> None:
        """Raise a :class:`PRMError` for the first contradiction."""
        if not self.arms:
            raise PRMError("arms: expected one at least, found none")
        names = [arm.name for arm in self.arms]
        for name in names:
            if not name.strip() or name in RESERVED:
                raise PRMError(f"arms: expected names other than {name!r}")
            if names.count(name) > 1:
                raise PRMError(f"arms: expected different names, found {name!r} twice")
        places: dict[str, str] = {}
        for name in names:
            other = places.setdefault(file_name(name).casefold(), name)
            if not file_name(name) or len(name) > 100:
                raise PRMError(
                    f"arms: expected names of 1 to 100 characters, some of them letters or digits "
                    f"from A to Z and 0 to 9, which name the folders; found {name!r:.120}"
                )
            if other != name:
                raise PRMError(
                    f"arms: expected names that differ in their letters and digits, which name "
                    f"the folders, found {name!r:.120} and {other!r:.120}"
                )
        if not self.seeds or not all(0 <= seed < 2**32 for seed in self.seeds):
            raise PRMError(
                f"seeds: expected one at least, each from 0 to 2**32 - 1, found {self.seeds}"
            )
        for seed in self.seeds:
            if self.seeds.count(seed) > 1:
                raise PRMError(f"seeds: expected different ones, found {seed} twice")
        for part in ("training", "evaluation", "base", "scorer"):
            _check_positive(getattr(self, part), part)
        for name, folder in (
            ("base.folder", self.base.folder),
            ("base.hidden_folder", self.base.hidden_folder),
            ("scorer.folder", self.scorer.folder),
        ):
            if folder is not None and not (Path(folder) / "config.json").is_file():
                raise PRMError(
                    f"{name}: expected the folder of a saved model, with a config.json in it, "
                    f"found {folder!r:.200}"
                )
        for turns in self.evaluation.turns:
            if turns > MAX_TURNS:
                raise PRMError(f"evaluation.turns: expected at most {MAX_TURNS}, found {turns}")
        if self.training.rollouts < 2:
            raise PRMError("training.rollouts: expected 2 or more: a group compares its rollouts")
        if self.primary.t not in self.evaluation.turns:
            raise PRMError(
                f"primary.t {self.primary.t}: expected one of evaluation.turns "
                f"{list(self.evaluation.turns)}"
            )
        if not 1 <= self.primary.k <= self.evaluation.samples:
            raise PRMError(
                f"primary.k {self.primary.k}: expected 1 to evaluation.samples "
                f"{self.evaluation.samples}"
            )
        for arm in self.arms:
            try:
                arm.budget.sampler()
                if max(arm.budget.turns) > MAX_TURNS:
                    raise PRMError(f"budget: expected at most {MAX_TURNS} turns")
                arm.shaping_config()
            except PRMError as error:
                raise PRMError(f"arm {arm.name!r}: {error}") from None
            if arm.scores != "model" and arm.shaping_config().mode == "terminal":
                raise PRMError(f"arm {arm.name!r}: mode terminal reads no scores {arm.scores!r}")


BASE, BASE_HIDDEN = "base", "base, turns hidden"
"""The names of the base policies in the report: told how many turns are left, or not."""
OPTIMUM, RANDOM = "exact optimum", "random"
"""The names of the agents that are known in full."""
SCRIPTED = {OPTIMUM: "optimal", RANDOM: "random"}
"""Their names in ``prm.rl.desk.agents``."""
RESERVED = (BASE, BASE_HIDDEN, *SCRIPTED)


def read_study(path: str | Path) -> StudyConfig:
    """The study of a YAML file; a :class:`PRMError` says what is wrong with it."""
    try:
        value = yaml.load(Path(path).read_text(), _Loader)
    except RecursionError as error:
        raise PRMError(
            f"{path}: expected the YAML of a study, found one nested too deep"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "in ").split())
        raise PRMError(f"{path}: expected the YAML of a study: {reason}") from error
    try:
        config = _typed(value, StudyConfig, "")
        config.check()
    except PRMError as error:
        raise PRMError(f"{path}: {error}") from None
    return config


def _typed(value: Any, kind: type[_T], name: str) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        path, expected, found = complaint(error, value, kind)
        place = f"{name}{path[1:]}".lstrip(".") or "the file"
        raise PRMError(f"{place}: expected {expected}, found {found:.200}") from None


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a number, and no key may be given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"expected each key once, found {key.value!r} twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+"),
    list("-+0123456789"),
)


def file_name(name: str) -> str:
    """The name of an arm as the name of a folder.

    >>> file_name("outcome + critic")
    'outcome-critic'
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def _check_positive(part: _Part, name: str) -> None:
    for field in part.__struct_fields__:
        value = getattr(part, field)
        if field.endswith("folder"):
            continue
        values = value if isinstance(value, (list, tuple)) else [value]
        if not values or not all(0 < number < math.inf for number in values):
            raise PRMError(f"{name}.{field}: expected more than 0, found {value}")
        if len(set(values)) != len(values):
            raise PRMError(f"{name}.{field}: expected different numbers, found {value}")
