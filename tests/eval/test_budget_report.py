"""The budget report: published figures, invariances, honest denominators, and bad input."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from prm.data.files import read_traces
from prm.data.trace import Outcome, Step, Trace
from prm.errors import PRMError
from prm.eval.budget_report import BudgetReport, budget_report
from prm.eval.budget_runs import BudgetOptions
from prm.eval.estimate import Estimate

FAILS = 0
"""In place of the turn at which a run succeeds."""


def runs(
    policy: str | None,
    turns: Sequence[Sequence[int]],
    *,
    budget: int | None = 10,
    meta: dict[str, Any] | None = None,
    first: int = 0,
    **outcome: Any,
) -> list[Trace]:
    """One trace for each (task, sample) of ``turns``: when it succeeds, or ``FAILS``.

    Tasks are numbered from ``first``. A run that fails takes its whole budget.
    """
    traces = []
    for task, samples in enumerate(turns, start=first):
        for sample, turn in enumerate(samples):
            n_steps = turn or budget or 10
            known = {"success": turn != FAILS, "max_turns": budget, **outcome}
            traces.append(
                Trace(
                    id=f"{policy}/{task}/{sample}/{budget}/{meta}/{outcome}",
                    task_id=f"task {task:03}",
                    policy=policy,
                    messages=[{"role": "assistant", "content": "act"}] * n_steps,
                    steps=[Step(at=at) for at in range(n_steps)],
                    outcome=Outcome(**known),
                    meta=meta or {},
                )
            )
    return traces


def random_turns(
    n_tasks: int = 20, n: int = 4, *, rate: float = 0.5, seed: int = 0
) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    solved = rng.random((n_tasks, n)) < rate * 2 * rng.random((n_tasks, 1))
    turns: list[list[int]] = np.where(solved, rng.integers(1, 11, (n_tasks, n)), FAILS).tolist()
    return turns


def report(traces: Sequence[Trace], **options: Any) -> BudgetReport:
    return budget_report(traces, BudgetOptions(**{"resamples": 200, **options}))


def values(cells: Sequence[Estimate]) -> list[float]:
    return [cell.value for cell in cells]


@pytest.fixture(scope="module")
def airline(real_traces: Path) -> BudgetReport:
    traces = list(read_traces(real_traces / "tau-bench" / "gpt-4o-airline.json.gz"))
    return report(traces, k=(1, 2, 3, 4), t=(8, 15, 20, 30), resamples=2000)


@pytest.fixture(scope="module")
def sql(real_traces: Path) -> BudgetReport:
    names = [f"ic_sql_multiturn_{model}_10_turns.json.gz" for model in ("gpt-4", "gpt-3.5")]
    traces = list(read_traces([real_traces / "intercode" / name for name in names]))
    return report(traces, t=(1, 2, 3, 5, 8, 10), resamples=2000)


class TestPublished:
    def test_tau_bench_airline(self, airline: BudgetReport) -> None:
        (policy,) = airline.policies.values()
        assert (policy.n_tasks, policy.n_samples, policy.n_skipped) == (50, 200, 0)
        pass_hat = [row[-1].value for row in policy.pass_hat]
        assert pass_hat == pytest.approx([0.420, 0.273, 0.220, 0.200], abs=5e-4)
        assert values(policy.pass_at[0]) == pytest.approx([0.210, 0.345, 0.415, 0.420])
        assert values(policy.pass_at[3]) == pytest.approx([0.320, 0.620, 0.720, 0.720])

    def test_fifty_tasks_are_ten_points_of_uncertainty(self, airline: BudgetReport) -> None:
        """Percentile intervals of the reference notes, from 2,000 draws of their own."""
        (policy,) = airline.policies.values()
        for row, column, low, high in ((0, 0, 0.115, 0.315), (0, 3, 0.32, 0.52), (3, 3, 0.6, 0.84)):
            cell = policy.pass_at[row][column]
            assert (cell.low, cell.high) == pytest.approx((low, high), abs=0.025)
            assert (cell.n, cell.n_skipped) == (50, 0)
        assert any("K = 4, as many as a task has runs" in note for note in airline.notes)

    def test_intercode_sql(self, sql: BudgetReport) -> None:
        published = {
            "gpt-4": [0.0706, 0.1006, 0.3424, 0.5928, 0.7070, 0.7369],
            "gpt-3.5": [0.0851, 0.1054, 0.1306, 0.3656, 0.4565, 0.4729],
        }
        for name, expected in published.items():
            policy = sql.policies[f"ic_sql_multiturn_{name}_10_turns"]
            assert values(policy.pass_at[0]) == pytest.approx(expected, abs=5e-5)
            assert policy.n_tasks == policy.n_samples == 1034

    def test_which_of_the_differences_survive(self, sql: BudgetReport) -> None:
        """gpt-3.5 looks better at T = 1 and 2, which is noise, and is worse from 3 on."""
        (comparison,) = sql.comparisons
        assert "gpt-3.5" in comparison.a
        assert np.sign(comparison.difference).tolist() == [[1, 1, -1, -1, -1, -1]]
        assert comparison.survives().tolist() == [[False, False, True, True, True, True]]
        assert (comparison.p < 0.05).tolist() == comparison.survives().tolist()
        assert comparison.area.high < 0
        assert comparison.only_b - comparison.only_a == round(1034 * (0.7369 - 0.4729))
        assert comparison.solved_p < 1e-40


class TestCells:
    def test_a_policy_that_solves_one_more_task_with_each_turn(self) -> None:
        """Task i succeeds at turn i, so p(T) = T / 10 and everything has a closed form."""
        found = report(runs("a", [[turn] for turn in range(1, 11)]))
        policy = found.policies["a"]
        assert (found.source, found.k, found.t) == ("cut", (1,), (1, 2, 3, 5, 8, 10))
        assert found.primary == (1, 10)
        assert values(policy.pass_at[0]) == pytest.approx([0.1, 0.2, 0.3, 0.5, 0.8, 1])
        assert policy.pass_hat == policy.pass_at
        robustness = policy.robustness
        assert robustness["worst"].value == pytest.approx(0.1)
        assert robustness["drop_ratio"].value == pytest.approx(0.1)
        assert robustness["worst_share"].value == pytest.approx(0.15)  # ceil(6 / 4) = 2 cells
        assert robustness["turns_to_reach"].value == 5
        # Of ten runs, run i takes min(i, 3) turns: 27 turns for 3 successes.
        assert policy.steps_per_success[2].value == pytest.approx(9)

    def test_cells_that_are_all_zero_or_all_one_have_an_exact_bound(self) -> None:
        traces = runs("never", [[FAILS] * 2] * 40) + runs("always", [[1] * 2] * 40)
        found = report(traces, t=(1, 10))
        bound = 1 - 0.025 ** (1 / 40)
        for cells in (found.policies["never"].pass_at, found.policies["never"].pass_hat):
            for cell in (cell for row in cells for cell in row):
                assert (cell.value, cell.low) == (0, 0)
                assert cell.high == pytest.approx(bound)
        for cell in (cell for row in found.policies["always"].pass_at for cell in row):
            assert (cell.value, cell.high) == (1, 1)
            assert cell.low == pytest.approx(1 - bound)
        reached = found.policies["never"].robustness["turns_to_reach"]
        assert (reached.value, reached.as_json()["value"]) == (np.inf, None)

    def test_what_draws_cannot_tell_has_no_interval_of_no_width(self) -> None:
        """All draws agree, but other tasks may not: [0, 0] would claim to know them."""
        traces = runs("never", [[FAILS]] * 40) + runs("always", [[1]] * 40)
        found = report(traces, t=(1, 10))
        robustness = found.policies["never"].robustness
        uncertain = {name: robustness[name] for name in ("area_t", "worst", "worst_share", "slope")}
        uncertain["difference"] = found.comparisons[0].primary
        uncertain["difference of areas"] = found.comparisons[0].area
        empty = [name for name, one in uncertain.items() if one.low == one.high]
        assert empty == []

    def test_robustness_is_that_of_one_trajectory_whatever_k(self) -> None:
        traces = runs("a", random_turns())
        one, two = (report(traces, k=k, primary=(2, 10)).policies["a"] for k in ((1, 2, 4), (2, 4)))
        assert one.robustness["area_t"] == two.robustness["area_t"]
        assert one.robustness["worst"].value == one.pass_at[0][0].value
        assert one.steps_per_success == two.steps_per_success

    def test_steps_per_success_of_a_policy_that_always_succeeds(self) -> None:
        """It is the mean number of turns, with the textbook's interval."""
        turns = np.random.default_rng(0).integers(1, 11, 400)
        found = report(runs("a", turns[:, None].tolist()), t=(10,), resamples=4000)
        (paid,) = found.policies["a"].steps_per_success
        assert paid.value == pytest.approx(turns.mean())
        assert paid.high - paid.low == pytest.approx(2 * 1.96 * turns.std() / 20, rel=0.06)

    def test_tasks_with_fewer_than_k_runs_are_left_out_and_counted(self) -> None:
        turns = [[1, 1, 1], [1, FAILS], [FAILS]]
        found = report(runs("a", turns), k=(1, 2, 3), t=(10,))
        cells = [row[0] for row in found.policies["a"].pass_at]
        assert [(cell.n, cell.n_skipped) for cell in cells] == [(3, 0), (2, 1), (1, 2)]
        assert values(cells) == pytest.approx([0.5, 1, 1])
        assert any("fewer than K runs" in note for note in found.notes)
        assert report(runs("a", turns)).k == (1,)
        assert report(runs("a", [[1] * 5, [1] * 9])).k == (1, 2, 4)

    def test_runs_that_say_nothing_are_counted(self) -> None:
        traces = [
            *runs("a", [[1, FAILS]] * 12),
            *runs("a", [[1]] * 3, success=None),
            *runs("a", [[FAILS]] * 2, valid=False),
        ]
        found = report(traces)
        assert (found.policies["a"].n_samples, found.policies["a"].n_skipped) == (24, 5)
        assert found.policies["a"].pass_at[0][-1].value == 0.5
        assert any("5 runs without success information" in note for note in found.notes)

    def test_few_tasks(self) -> None:
        found = report(runs("a", [[1, 2]]))
        cell = found.policies["a"].pass_at[0][-1]
        assert cell.value == 1
        assert np.isnan([cell.low, cell.high]).all()
        assert any("ewer than" in note and "tasks" in note for note in found.notes)

    def test_groups_of_tasks(self) -> None:
        turns = random_turns(30)
        hops = [runs("a", turns[at : at + 10], first=at, meta={"hops": at}) for at in (0, 10, 20)]
        found = report([t for traces in hops for t in traces], by="hops", primary=(2, 8))
        policy = found.policies["a"]
        assert list(policy.groups) == ["0", "10", "20"]
        at_primary = policy.pass_at[1][found.t.index(8)]
        assert np.mean(values(list(policy.groups.values()))) == pytest.approx(at_primary.value)
        assert [group.n for group in policy.groups.values()] == [10, 10, 10]
        alone = report(hops[1], by="hops", primary=(2, 8), k=found.k).policies["a"]
        assert policy.groups["10"] == alone.groups["10"] == alone.pass_at[1][found.t.index(8)]

    def test_json_holds_plain_numbers_even_where_nothing_is_defined(self) -> None:
        traces = runs("a", random_turns()) + runs("b", random_turns(seed=1))
        for one in (report(traces), report(traces, resamples=0), report(runs("a", [[FAILS]]))):
            plain = one.as_json()
            strict = json.loads(json.dumps(plain, allow_nan=False))
            assert msgspec.json.decode(msgspec.json.encode(plain)) == strict
        assert strict["policies"]["a"]["bias"]["worst"] is None


class TestRerun:
    def traces(self, policy: str, **at: Sequence[Sequence[int]]) -> list[Trace]:
        return [t for budget, turns in at.items() for t in runs(policy, turns, budget=int(budget))]

    def test_each_budget_has_runs_of_its_own(self) -> None:
        """Told that there are four turns, the policy wastes them: not monotone, and not cut."""
        traces = self.traces("a", **{"2": [[1, 2]] * 12, "4": [[4, FAILS]] * 12})
        found = report(traces)
        policy = found.policies["a"]
        assert (found.source, found.t, found.k) == ("rerun", (2, 4), (1, 2))
        assert values(policy.pass_at[0]) == [1, 0.5]
        assert values(policy.pass_hat[1]) == [1, 0]
        assert values(policy.steps_per_success) == [1.5, 8]
        assert policy.n_samples == 48
        assert not any(note.startswith("Cut") for note in found.notes)
        cut = report(traces, source="cut")
        assert (cut.source, cut.t) == ("cut", (1, 2))
        assert values(cut.policies["a"].pass_at[0]) == [0.25, 0.5]

    def test_only_budgets_that_all_policies_share(self) -> None:
        turns = [[1, 2]] * 12
        traces = self.traces("a", **{"2": turns, "4": turns, "8": turns})
        traces += self.traces("b", **{"4": turns, "8": turns, "16": turns})
        assert report(traces).t == (4, 8)
        with pytest.raises(PRMError, match="policy 'b' has no run at T = 2; it was run at 4, 8"):
            report(traces, t=(2, 4))
        apart = [t for t in traces if t.policy == "a" or t.outcome.max_turns == 16]
        apart += self.traces("b", **{"32": turns})
        with pytest.raises(PRMError, match="no budget was run by every policy"):
            report(apart)

    def test_a_task_that_was_not_run_at_the_largest_budget_is_not_unsolved(self) -> None:
        traces = self.traces("a", **{"2": [[1]] * 12, "4": [[1]] * 12})
        traces += self.traces("b", **{"2": [[1]] * 12, "4": [[1]] * 6})
        (comparison,) = report(traces).comparisons
        assert (comparison.only_a, comparison.only_b) == (0, 0)

    def test_a_budget_of_which_nothing_is_known_is_not_reported(self) -> None:
        """The runs at T = 8 were never graded; nobody asked for T = 8."""
        traces = self.traces("a", **{"2": [[1]] * 12, "4": [[1]] * 12})
        traces += runs("a", [[1]] * 12, budget=8, success=None)
        found = report(traces)
        assert found.t == (2, 4)
        assert found.policies["a"].n_skipped == 12

    def test_k_as_large_as_the_runs_of_a_cell_is_noted(self) -> None:
        traces = self.traces("a", **{"2": [[1, 2]] * 12, "4": [[4, FAILS]] * 12})
        assert any("K = 2, as many as a task has runs" in note for note in report(traces).notes)


class TestSeeds:
    def traces(self, policy: str, rates: Sequence[float], seed: int = 0) -> list[Trace]:
        """40 tasks x 4 samples for each training seed, solved at the seed's rate."""
        rng = np.random.default_rng(seed)
        traces = []
        for number, rate in enumerate(rates):
            turns = (rng.random((40, 4)) < rate).astype(int).tolist()
            traces += runs(policy, turns, budget=1, meta={"seed": number})
        return traces

    def test_three_seeds_are_resampled_and_two_are_not(self) -> None:
        widths = []
        for rates in ((0.2, 0.8), (0.2, 0.8, 0.5)):
            found = report(self.traces("a", rates), seed_key="seed", resamples=1000)
            assert found.policies["a"].n_seeds == len(rates)
            cell = found.policies["a"].pass_at[0][0]
            widths.append(cell.high - cell.low)
            said = any("2 training seeds give no interval" in note for note in found.notes)
            assert said == (len(rates) == 2)
        assert widths[1] > 3 * widths[0]

    def test_regret_is_as_uncertain_as_the_difference_that_it_is(self) -> None:
        """Against a policy that is better everywhere, regret is the difference to it."""
        traces = self.traces("a", (0.1, 0.5, 0.2, 0.6)) + self.traces("b", (0.9,) * 4, seed=1)
        found = report(traces, seed_key="seed", resamples=1000)
        regret = found.policies["a"].robustness["regret_mean"]
        difference = found.comparisons[0].primary
        assert regret.value == pytest.approx(-difference.value)
        assert regret.high - regret.low == pytest.approx(difference.high - difference.low, rel=0.25)

    def test_k_as_large_as_the_runs_of_a_seed_is_noted(self) -> None:
        found = report(self.traces("a", (0.4, 0.5, 0.6)), seed_key="seed")
        assert found.k == (1, 2, 4)
        assert any("K = 4, as many as a task has runs" in note for note in found.notes)


class TestComparisons:
    def pair(self) -> list[Trace]:
        return runs("a", random_turns()) + runs("b", random_turns(rate=0.7, seed=1))

    def test_a_policy_against_its_copy(self) -> None:
        turns = random_turns()
        (comparison,) = report(runs("a", turns) + runs("b", turns)).comparisons
        assert (comparison.difference == 0).all()
        assert not comparison.survives().any()
        assert (comparison.only_a, comparison.only_b, comparison.solved_p) == (0, 0, 1)
        assert comparison.primary.value == comparison.area.value == 0

    def test_swapping_the_names_swaps_the_signs(self) -> None:
        turns = random_turns(), random_turns(rate=0.7, seed=1)
        (one,) = report(runs("a", turns[0]) + runs("b", turns[1])).comparisons
        (other,) = report(runs("b", turns[0]) + runs("a", turns[1])).comparisons
        np.testing.assert_allclose(other.difference, -one.difference)
        np.testing.assert_allclose((other.low, other.high), (-one.high, -one.low))
        np.testing.assert_allclose(other.p, one.p)
        assert (other.only_a, other.only_b) == (one.only_b, one.only_a)
        assert (other.primary.low, other.primary.high) == pytest.approx(
            (-one.primary.high, -one.primary.low)
        )

    def test_differences_are_those_of_the_cells(self) -> None:
        found = report(self.pair())
        (comparison,) = found.comparisons
        for i, j in np.ndindex(len(found.k), len(found.t)):
            a, b = (found.policies[name].pass_at[i][j].value for name in ("a", "b"))
            assert comparison.difference[i, j] == pytest.approx(a - b)
        assert comparison.primary.value == comparison.difference[0, -1]

    def test_only_tasks_of_both_are_compared(self) -> None:
        """The others may be as easy as they like."""
        a, b = random_turns(), random_turns(rate=0.7, seed=1)
        (alone,) = report(runs("a", a) + runs("b", b)).comparisons
        extended = [*runs("a", a), *runs("b", b), *runs("b", [[1] * 4] * 30, first=20)]
        found = report(extended)
        (comparison,) = found.comparisons
        assert comparison.n_tasks == comparison.primary.n == 20
        np.testing.assert_allclose(comparison.difference, alone.difference)
        np.testing.assert_allclose(comparison.low, alone.low)
        assert (comparison.only_a, comparison.only_b) == (alone.only_a, alone.only_b)
        assert found.policies["b"].n_tasks == 50
        assert any("not all run on the same tasks" in note for note in found.notes)

    def test_cells_that_only_one_of_them_has_are_not_compared(self) -> None:
        """Of b, half the tasks have one run: at K = 2 the other half is compared."""
        a = [[1, 1]] * 10 + [[FAILS, FAILS]] * 10
        b = [[FAILS]] * 10 + [[FAILS, FAILS]] * 10
        found = report(runs("a", a) + runs("b", b), k=(1, 2), t=(10,), primary=(2, 10))
        (comparison,) = found.comparisons
        assert comparison.difference.tolist() == [[0.5], [0]]
        assert (comparison.n_tasks, comparison.primary.n) == (20, 10)
        assert comparison.primary.n_skipped == 10

    def test_solved_sets_by_hand(self) -> None:
        a, b = [[FAILS]] * 100, [[FAILS]] * 100
        a[:6], b[5:7] = [[3]] * 6, [[10]] * 2
        (comparison,) = report(runs("a", a) + runs("b", b)).comparisons
        assert (comparison.only_a, comparison.only_b) == (5, 1)
        assert comparison.solved_p == pytest.approx(0.219, abs=5e-4)

    def test_solved_sets_of_unequal_effort_are_not_compared_in_silence(self) -> None:
        """Whoever tries eight times solves more tasks than the same policy that tries once."""
        turns = random_turns(40, 8, rate=0.3)
        once = [[samples[0]] for samples in turns]
        found = report(runs("a", turns) + runs("b", once))
        assert np.isnan(found.comparisons[0].solved_p) or any("olved" in n for n in found.notes)

    def test_holm_over_the_pairs(self) -> None:
        traces = self.pair() + runs("c", random_turns(rate=0.2, seed=2))
        found = report(traces)
        assert [(c.a, c.b) for c in found.comparisons] == [("a", "b"), ("a", "c"), ("b", "c")]
        raw = [c.primary_p for c in found.comparisons]
        assert min(c.primary_p_holm for c in found.comparisons) == min(1, 3 * min(raw))
        assert max(c.primary_p_holm for c in found.comparisons) >= max(raw)
        two = report(self.pair())
        assert two.comparisons[0].primary == found.comparisons[0].primary
        assert two.policies["a"].pass_at == found.policies["a"].pass_at

    def test_against_one_policy_leaves_out_the_pairs_of_others(self) -> None:
        traces = [trace for name in "abc" for trace in runs(name, random_turns(seed=ord(name)))]
        every = {(c.a, c.b): c for c in budget_report(traces).comparisons}
        one = budget_report(traces, BudgetOptions(against="b")).comparisons
        assert [(c.a, c.b) for c in one] == [("a", "b"), ("c", "b")]
        np.testing.assert_allclose(one[0].difference, every["a", "b"].difference)
        np.testing.assert_allclose(one[1].difference, -every["b", "c"].difference)
        with pytest.raises(PRMError, match="--against: expected a policy of 'a', 'b', 'c', found"):
            budget_report(traces, BudgetOptions(against="d"))

    def test_regret(self) -> None:
        """The best policy has none; every other lacks what it lacks of the best."""
        best = [[1, 2], *[[1, 1]] * 39]
        worse = [[FAILS, 2] if i % 2 else [1, 3] for i in range(40)]
        found = report(runs("best", best) + runs("worse", worse))
        assert found.policies["best"].robustness["regret_max"].value == pytest.approx(0)
        rows = [values(found.policies[name].pass_at[0]) for name in ("best", "worse")]
        gap = np.subtract(rows[0], rows[1])
        regret = found.policies["worse"].robustness
        assert regret["regret_mean"].value == pytest.approx(gap.mean())
        assert regret["regret_max"].value == pytest.approx(gap.max())
        assert set(found.policies["best"].bias) == {"worst", "worst_share", "regret_max"}
        assert "regret_max" not in report(runs("alone", best)).policies["alone"].robustness

    def test_policies_that_differ_by_noise_have_no_regret_on_average(self) -> None:
        found = []
        for seed in range(40):
            traces = [
                trace
                for number, name in enumerate("abc")
                for trace in runs(name, random_turns(24, 2, seed=3 * seed + number))
            ]
            policies = report(traces, t=(10,), resamples=0).policies
            found.append(np.mean([p.robustness["regret_mean"].value for p in policies.values()]))
        assert abs(np.mean(found)) < 3 * np.std(found) / math.sqrt(40)

    def test_the_order_of_the_traces_changes_nothing(self) -> None:
        traces = self.pair() + runs(None, random_turns(15, 3, seed=3))
        expected = report(traces).as_json()
        for seed in range(3):
            random.Random(seed).shuffle(traces)
            assert report(traces).as_json() == expected

    def test_same_seed_same_report_other_seed_other_intervals(self) -> None:
        one, again, other = (report(self.pair(), seed=seed) for seed in (1, 1, 2))
        assert json.dumps(str(one)) == json.dumps(str(again))
        cells = [found.policies["a"].pass_at[0][-1] for found in (one, other)]
        assert cells[0].value == cells[1].value
        assert cells[0].low != cells[1].low or cells[0].high != cells[1].high


class TestBadInput:
    """One clear sentence each."""

    turns = [[1, 2, FAILS]] * 12

    @pytest.mark.parametrize(
        ("traces", "options", "message"),
        [
            ([], {}, "there is no trace to evaluate"),
            (
                runs("a", turns) + runs("b", turns, success=None),
                {},
                "none of the 36 runs of policy 'b' says whether it succeeded .* --success-at",
            ),
            (runs("a", turns), {"t": (5, 12)}, "T = 12 is above the 10 turns .* cannot be known"),
            (
                runs("a", turns) + runs("b", turns, budget=5),
                {"t": (5, 10)},
                "T = 10 is above the 5 turns that run .* of policy 'b' was allowed",
            ),
            (runs("a", [[1]] * 12), {"k": (1, 2)}, "K = 2 needs 2 trajectories .* more than 1"),
            (runs("a", [[1]] * 12), {"k": (2,)}, "K = 2 needs 2 trajectories .* more than 1"),
            (
                runs("a", turns) + runs("b", turns, first=12),
                {},
                "policies 'a' and 'b' have no task in common",
            ),
            (runs("a", turns) + runs("a", turns), {}, "'a/0/0/"),
            (
                [*runs("a", turns), *runs("a", turns, budget=5), *runs("b", turns)],
                {},
                "policy 'a' was run anew at several budgets and policy 'b' at one",
            ),
            (runs("a", turns), {"source": "rerun", "t": (5,)}, "no run at T = 5; it was run at 10"),
            (
                runs("a", turns, budget=None),
                {"source": "rerun"},
                "run 'a/0/0/.* of policy 'a' has no outcome.max_turns",
            ),
            (runs("a", turns), {"t": (0, 5)}, "expected turn budgets T of 1"),
            (runs("a", turns), {"primary": (1, 7)}, "--primary: expected a K of .* T = 7"),
            (runs("a", turns), {"by": "hops"}, "--by: trace 'a/0/0/.* has no meta key 'hops'"),
            (
                runs("a", turns, meta={"hops": 1}) + runs("b", turns, meta={"hops": 2}),
                {"by": "hops"},
                "--by: task 'task 000' has 'hops' '1' in one trace and '2' in another",
            ),
            (runs("a", turns), {"seed_key": "seed"}, "--seed-key: trace .* has no meta key 'seed'"),
            (runs("a", turns), {"resamples": 5}, "--bootstrap: expected 0 .* found 5"),
            (runs("a", turns), {"k": (0,)}, "--k: expected numbers of 1 or more"),
            (runs("a", turns), {"k": ()}, "--k: expected numbers of 1 or more"),
            (runs("a", turns), {"target": 0.0}, "--target: expected a success rate"),
            (runs("a", turns), {"alpha": 1.5}, "--alpha: expected a share"),
            (runs("a", turns), {"seed": -1}, "--seed: expected a number >= 0"),
        ],
    )
    def test_it_is_refused(
        self, traces: list[Trace], options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(PRMError, match=message) as caught:
            report(traces, **options)
        assert "\n" not in str(caught.value)

    def test_ids_that_two_files_share_are_refused_on_reading(self, tmp_path: Path) -> None:
        for name in ("one.jsonl", "two.jsonl"):
            lines = [msgspec.json.encode(trace) for trace in runs("a", [[1]] * 3)]
            (tmp_path / name).write_bytes(b"\n".join(lines))
        with pytest.raises(PRMError, match="two.jsonl:1"):
            list(read_traces(tmp_path))

    def test_k_without_one_needs_no_primary(self) -> None:
        """The primary cell is asked about only where the user named one."""
        found = report(runs("a", self.turns), k=(2,))
        assert found.primary == (2, 10)
