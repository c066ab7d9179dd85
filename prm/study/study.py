"""``prm study``: train the arms of a study, run all on the same tasks, compare them.

The report is the one of ``prm eval budget`` on the runs of all arms: Pass@(K,T) anew at every T,
with tasks and training seeds resampled.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from prm.data.files import read_traces
from prm.data.trace import Trace
from prm.errors import PRMError
from prm.eval.budget_report import budget_report
from prm.eval.budget_runs import BudgetOptions
from prm.eval.evaluate_budget import as_table, write_report
from prm.study.config import StudyConfig, read_study


def study(file: str, /, *, out: str, processes: int | None = None, bootstrap: int = 2000) -> None:
    """Train the arms of a study and compare how robust they are to the turn budget.

    What is in OUT already is not done again: a study that was stopped goes on where it was.

    Args:
        file: YAML of the study; those under eval/studies are examples.
        out: Folder of the study: a new one, or the one to go on with.
        processes: Arms that are trained at a time, each on one thread; one for each core if absent.
        bootstrap: Number of resamples of tasks and seeds, at least 20; 0 for no intervals.
    """
    from prm.study.run import run_study

    if processes is not None and processes < 1:
        raise PRMError(f"--processes: expected 1 or more, found {processes}")
    if bootstrap != 0 and bootstrap < 20:
        raise PRMError(f"--bootstrap: expected 0 or at least 20, found {bootstrap}")
    asked = read_study(file)
    folder = Path(out)
    failed = run_study(asked, folder, processes=processes)
    traces = _runs(asked, folder)
    if not traces:
        first, reason = next(iter(failed.items()))
        raise PRMError(f"all arms failed; the first, {first}: {reason}")
    measured = budget_report(traces, _options(asked, bootstrap))
    # Made anew from the runs, so that it holds arms that failed before and are there now.
    shutil.rmtree(folder / "report", ignore_errors=True)
    write_report(measured, None, folder / "report")
    sys.stdout.buffer.write(as_table(measured).encode())
    if failed:
        first, reason = next(iter(failed.items()))
        raise PRMError(f"{len(failed)} of the arms failed; the first, {first}: {reason}")


def _options(config: StudyConfig, resamples: int) -> BudgetOptions:
    from prm.study.arm import SEED_KEY

    grid = config.evaluation
    return BudgetOptions(
        source="rerun",
        k=tuple(k for k in (1, 2, 4, 8, 16) if k <= grid.samples),
        t=tuple(sorted(grid.turns)),
        primary=(config.primary.k, config.primary.t),
        seed_key=SEED_KEY,
        resamples=resamples,
    )


def _runs(config: StudyConfig, folder: Path) -> list[Trace]:
    from prm.study.run import runs_of

    return [trace for path in runs_of(config, folder) for trace in read_traces(path)]
