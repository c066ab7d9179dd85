"""Speed of Pass@(K,T) with intervals: the library against plain loops and against rliable.

    python eval/bench/pass_at_kt.py [--tasks 1000] [--resamples 10000] [--repeats 5] [--seed 1]

1,000 tasks x 64 samples x 20 turn budgets x 7 values of K, 10,000 bootstrap draws of the tasks.

* library: counts, estimator, draws and BCa intervals, all of it, best of the repeats.
* loop: the estimator written down with math.comb and evaluated on every drawn task, K and T. Timed
  on a few draws and scaled linearly; intervals are not included.
* loop, estimator cached: math.comb runs once for each task, K and T, and the loop over draws only
  adds up: the least that plain Python has to do. The adding up is scaled in the same way.
* rliable's get_interval_estimates (percentile intervals, task_bootstrap), if it can be imported,
  scaled in the same way: on the tasks' estimates (1 run x tasks x K·T), which is the same bootstrap
  as the library's; and on the successes (samples x tasks x T), which draws the samples as well.

All in one process and one run, in CPU seconds, so that the ratios stand for themselves.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prm.eval.bootstrap import Resampled, draw, resample_means
from prm.eval.intervals import bca
from prm.eval.pass_at_kt import pass_at_kt
from prm.eval.steps import Bools, Floats, Ints

N_SAMPLES = 64
T = tuple(range(1, 21))
K = (1, 2, 4, 8, 16, 32, 64)
GROWTH = (1, 2, 4)
"""Factors on the number of tasks, and of resamples, that show how the cost grows."""
NEEDED_RATIO = 100
MEMORY_LIMIT_GB = 2.0


def successes_of(tasks: int, rng: np.random.Generator) -> Bools:
    """(N, n, T) whether each sample of each task succeeds within each budget."""
    rate = rng.beta(0.5, 2.0, size=(tasks, 1))
    first = rng.geometric(np.clip(rate, 1e-3, None), size=(tasks, N_SAMPLES))
    return first[..., None] <= np.array(T)


def ours(success: Bools, resamples: int, rng: np.random.Generator) -> Resampled:
    """Pass@(K,T) over tasks, (K·T,), and its draws; the intervals are made and dropped."""
    (means,) = resample_means([_estimates(success)], resamples=resamples, rng=rng)
    bca(means)
    return means


def _estimates(success: Bools) -> Floats:
    """(1, N, K·T) the library's estimator for each task."""
    n_tasks, n_samples, _ = success.shape
    cells = pass_at_kt(success.sum(axis=1), np.full(n_tasks, n_samples), K)
    return cells.reshape(1, n_tasks, -1)


def loop(success: Bools, drawn: Sequence[Sequence[int]]) -> list[list[float]]:
    """R lists of K·T means, the estimator evaluated anew for every drawn task."""
    n = success.shape[1]
    counts: list[list[int]] = success.sum(axis=1).tolist()
    found = []
    for tasks in drawn:
        means = []
        for k in K:
            for t in range(len(T)):
                total = 0.0
                for task in tasks:
                    c = counts[task][t]
                    total += 1 - math.comb(n - c, k) / math.comb(n, k)
                means.append(total / len(tasks))
        found.append(means)
    return found


def estimates_by_loop(success: Bools) -> list[list[float]]:
    """K·T lists of N estimates."""
    n = success.shape[1]
    counts: list[list[int]] = success.sum(axis=1).tolist()
    return [
        [1 - math.comb(n - c[t], k) / math.comb(n, k) for c in counts]
        for k in K
        for t in range(len(T))
    ]


def means_by_loop(
    cells: Sequence[Sequence[float]], drawn: Sequence[Sequence[int]]
) -> list[list[float]]:
    """R lists of K·T means, as :func:`loop`, from estimates that are there already."""
    return [[sum([cell[task] for task in tasks]) / len(tasks) for cell in cells] for tasks in drawn]


def drawn_tasks(tasks: int, resamples: int, rng: np.random.Generator) -> list[list[int]]:
    """R lists of N places of tasks, drawn with replacement."""
    times: Ints = draw(tasks, resamples, rng).astype(np.int64)
    return [np.repeat(np.arange(tasks), row).tolist() for row in times]


def seconds(function: Callable[[], object], repeats: int = 1) -> float:
    """The least CPU time, of all threads, of ``repeats`` calls: other jobs disturb it little."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Slope of log time on log size: 1 = linear."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def peak_memory_gb() -> float:
    """The most that this process has had resident so far (Linux: ru_maxrss in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def rliable_seconds(success: Bools, resamples: int, repeats: int) -> dict[str, float]:
    """Seconds of rliable for ``resamples`` draws, scaled; empty where it cannot be imported."""
    try:
        from rliable import library as rliable
    except Exception as error:  # it fails with whatever its dependencies raise
        print(f"rliable cannot be imported ({type(error).__name__}: {error}); left out.\n")
        return {}

    def intervals(
        scores: NDArray[Any], function: Callable[[NDArray[Any]], Floats], reps: int
    ) -> None:
        rliable.get_interval_estimates({"policy": scores}, function, task_bootstrap=True, reps=reps)

    def estimate(drawn: Bools) -> Floats:
        cells: Floats = _estimates(drawn.swapaxes(0, 1)).mean(axis=(0, 1))
        return cells

    estimates, runs = _estimates(success), success.swapaxes(0, 1)
    of_estimates = seconds(lambda: intervals(estimates, lambda x: x.mean((0, 1)), 200), repeats)
    of_successes = seconds(lambda: intervals(runs, estimate, 20), repeats)
    return {
        "rliable, on the tasks' estimates": of_estimates * resamples / 200,
        "rliable, on the successes": of_successes * resamples / 20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of Pass@(K,T) with intervals.")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tasks, resamples, repeats = args.tasks, args.resamples, args.repeats
    rng = np.random.default_rng(args.seed)
    most = successes_of(GROWTH[-1] * tasks, rng)
    success = most[:tasks]

    def run(n_tasks: int, n_resamples: int) -> float:
        some = most[:n_tasks]
        return seconds(lambda: ours(some, n_resamples, np.random.default_rng(0)), repeats)

    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"{tasks:,} tasks x {N_SAMPLES} samples x {len(T)} budgets x {len(K)} values of K, "
        f"{resamples:,} resamples\n"
        f"Python {platform.python_version()}, numpy {np.__version__}, {os.cpu_count()} cores, "
        f"load {load} (1, 5, 15 min), best of {repeats}\n"
    )
    mine = run(tasks, resamples)
    memory = peak_memory_gb()
    print(f"library: {mine:.3f} s, peak memory {memory:.2f} GB (limit {MEMORY_LIMIT_GB:g} GB)")
    more_tasks = [mine, *(run(factor * tasks, resamples) for factor in GROWTH[1:])]
    more_resamples = [mine, *(run(tasks, factor * resamples) for factor in GROWTH[1:])]
    for what, base, times in (
        ("tasks", tasks, more_tasks),
        ("resamples", resamples, more_resamples),
    ):
        sizes = ", ".join(f"{factor * base:,}" for factor in GROWTH)
        taken = ", ".join(f"{one:.2f}" for one in times)
        print(f"{sizes} {what}: {taken} s, grows as {what} ^ {exponent(GROWTH, times):.2f}")

    few, more = drawn_tasks(tasks, 3, rng), drawn_tasks(tasks, 20, rng)
    cells = estimates_by_loop(success)
    apart = np.abs(np.mean(cells, axis=1) - ours(success, 0, rng).value).max()
    print(f"\nloop and library differ by at most {apart:.0e}\n")
    once = seconds(lambda: estimates_by_loop(success), repeats)
    others = {
        "loop": seconds(lambda: loop(success, few), repeats) * resamples / len(few),
        "loop, estimator cached": once
        + seconds(lambda: means_by_loop(cells, more), repeats) * resamples / len(more),
    }
    others |= rliable_seconds(success, resamples, repeats)
    print(f"{'library':34} {mine:10.2f} s, measured")
    for name, other in others.items():
        print(f"{name:34} {other:10.1f} s, scaled from a part: {other / mine:8,.0f} times")
    ratio = others["loop"] / mine
    met = ratio >= NEEDED_RATIO and memory < MEMORY_LIMIT_GB
    print(
        f"\nNeeded: at least {NEEDED_RATIO} times the loop, under {MEMORY_LIMIT_GB:g} GB: "
        f"{'met' if met else 'NOT MET'}"
    )


if __name__ == "__main__":
    main()
