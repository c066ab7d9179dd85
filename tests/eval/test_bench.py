"""The benchmark scripts, made tiny: what they compare is the same thing, and what they simulate is
what they say. No timings."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

BENCH = Path(__file__).parents[2] / "eval" / "bench"


def script(name: str) -> Any:
    return SimpleNamespace(**runpy.run_path(str(BENCH / f"{name}.py")))


@pytest.fixture(scope="module")
def coverage() -> Any:
    return script("coverage")


@pytest.fixture(scope="module")
def found(coverage: Any) -> Any:
    return coverage.measure(datasets=40, resamples=200, seed=5)


@pytest.fixture(scope="module")
def speed() -> Any:
    return script("pass_at_kt")


class TestCoverage:
    def test_truth_at_k_1_is_the_marginal(self, coverage: Any) -> None:
        for success in coverage.SUCCESS:
            truth = coverage.pass_of_population(success)[: len(coverage.T)]
            np.testing.assert_allclose(truth, success, atol=1e-9)

    def test_truth_is_that_of_very_many_tasks(self, coverage: Any) -> None:
        """Tasks simulated in the other order: a rate drawn for each, then K trajectories."""
        rng = np.random.default_rng(0)
        effect = np.sqrt(coverage.RHO) * rng.standard_normal((400_000, 1))
        reach = norm.ppf(coverage.SUCCESS[0]) - effect
        rate = norm.cdf(reach / np.sqrt(1 - coverage.RHO))
        for place, k in enumerate(coverage.K):
            solved = (rng.binomial(k, rate) > 0).mean(axis=0)
            cells = slice(place * len(coverage.T), (place + 1) * len(coverage.T))
            truth = coverage.pass_of_population(coverage.SUCCESS[0])[cells]
            np.testing.assert_allclose(solved, truth, atol=0.004)

    def test_simulated_data_are_what_the_header_says(self, coverage: Any) -> None:
        rng = np.random.default_rng(0)
        first = np.stack([coverage.simulate(rng) for _ in range(400)], axis=1)
        within = first[..., None] <= np.arange(len(coverage.T))
        np.testing.assert_allclose(within.mean(axis=(1, 2, 3)), coverage.SUCCESS, atol=0.02)
        one, two = within[0, :, :, 0::2, -1].ravel(), within[0, :, :, 1::2, -1].ravel()
        assert np.corrcoef(one, two)[0, 1] > 0.5  # samples of a task are alike
        a, b = within[..., -1].mean(axis=-1).reshape(2, -1)
        assert 0.4 < np.corrcoef(a, b)[0, 1] < 0.9  # so are the policies on a task

    def test_row_bootstrap_is_the_plain_mean_at_k_1(self, coverage: Any) -> None:
        rng = np.random.default_rng(0)
        first = coverage.simulate(rng)[0]
        drawn = coverage.by_rows(first, 4000, rng)[:, : len(coverage.T)]
        p = (first[..., None] <= np.arange(len(coverage.T))).mean(axis=(0, 1))
        np.testing.assert_allclose(drawn.mean(axis=0), p, atol=0.003)
        np.testing.assert_allclose(drawn.std(axis=0), np.sqrt(p * (1 - p) / first.size), rtol=0.1)

    def test_rows_cover_less_than_tasks(self, coverage: Any, found: Any) -> None:
        cells = len(coverage.T)
        held = {name: found.held(name)[:, :cells].mean() for name in coverage.METHODS}
        assert held["rows"] < 0.75
        assert min(held["bca"], held["percentile"], held["symmetric"]) > 0.85
        assert (found.low["rows"][:, 2] > found.low["bca"][:, 2]).all()  # far from 0 and 1

    def test_a_band_holds_all_cells_more_often_than_their_own_intervals(self, found: Any) -> None:
        for methods in found.bands.values():
            assert methods["tasks"].sum() > methods["cells"].sum()

    def test_same_seed_same_numbers(self, coverage: Any) -> None:
        one, same, other = (coverage.measure(2, 40, seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one.low["bca"], same.low["bca"])
        assert not np.array_equal(one.low["bca"], other.low["bca"])

    def test_report_has_a_row_for_every_statistic_and_a_verdict(
        self, coverage: Any, found: Any
    ) -> None:
        text = coverage.report(found)
        rows = [line for line in text.splitlines() if line.startswith("|")]
        for name in coverage.names():
            assert sum(row.startswith(f"| {name} |") for row in rows) == 1
        assert "--datasets 40 --resamples 200 --seed 5" in text

    def test_verdict_names_what_is_outside(self, coverage: Any, found: Any) -> None:
        everywhere = {name: np.full_like(ends, -9) for name, ends in found.low.items()}
        too_wide = found._replace(
            low=everywhere, high={name: -ends for name, ends in everywhere.items()}
        )
        assert "not met: area of A" in coverage.report(too_wide)


class TestSpeed:
    def test_loops_and_library_agree(self, speed: Any) -> None:
        rng = np.random.default_rng(0)
        success = speed.successes_of(7, rng)
        drawn = [list(range(7)), [0, 0, 3, 3, 3, 6, 1]]
        weights = np.array([np.bincount(tasks, minlength=7) for tasks in drawn]) / 7
        estimates = np.array(speed.estimates_by_loop(success)).T
        found = speed.loop(success, drawn)
        np.testing.assert_allclose(found, weights @ estimates, atol=1e-12)
        cached = speed.means_by_loop(speed.estimates_by_loop(success), drawn)
        np.testing.assert_allclose(cached, found, atol=1e-12)
        means = speed.ours(success, 20, rng)
        np.testing.assert_allclose(means.value, found[0], atol=1e-12)
        assert means.samples.shape == (20, len(speed.K) * len(speed.T))

    def test_success_is_monotone_in_the_budget(self, speed: Any) -> None:
        success = speed.successes_of(5, np.random.default_rng(0))
        assert success.shape == (5, speed.N_SAMPLES, len(speed.T))
        assert (np.diff(success.astype(int), axis=-1) >= 0).all()

    def test_exponent(self, speed: Any) -> None:
        assert speed.exponent([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2)

    def test_main_reports_every_comparison(
        self, speed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["bench", "--tasks", "8", "--resamples", "20", "--repeats", "1"]
        monkeypatch.setattr("sys.argv", words)
        speed.main()
        text = capsys.readouterr().out
        assert "8, 16, 32 tasks" in text
        assert "20, 40, 80 resamples" in text
        assert "loop, estimator cached" in text
        assert "peak memory" in text
