"""``prm study``: train the arms of a study, run all on the same tasks, compare them, and report.

With ``--from-traces`` the policies were trained and run elsewhere, and the report has the part that
their runs can answer.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from prm.data.atomic import atomic_folder, check_new_folder
from prm.data.terminal import read_counted
from prm.errors import PRMError
from prm.eval.bootstrap import MAX_RESAMPLES, MIN_RESAMPLES
from prm.eval.budget_runs import BudgetOptions, Source
from prm.eval.budget_words import cell_of
from prm.study.config import StudyConfig, read_study

REPORT = "report"
"""The folder in OUT with report.html, report.json and figures."""


def study(
    files: list[str],
    /,
    *,
    out: str,
    processes: int | None = None,
    from_traces: bool = False,
    source: Source = "auto",
    k: list[int] | None = None,
    t: list[int] | None = None,
    primary: str | None = None,
    against: str | None = None,
    seed_key: str | None = None,
    success_at: float | None = None,
    bootstrap: int = 2000,
) -> None:
    """Train the arms of a study and report how robust they are to the turn budget, and why.

    OUT/report gets report.html, report.json and figures. What is in OUT already is not done again:
    a study that was stopped goes on where it was. With --from-traces nothing is trained: the
    policies in the files are compared, and OUT is a new folder.

    Args:
        files: YAML of the study; those under eval/studies are examples. With --from-traces, files
            of runs of policies that were trained anywhere.
        out: Folder of the study: a new one, or the one to go on with.
        processes: Arms that are trained at a time, each on one thread; one for each core if absent.
        from_traces: Whether the files are runs, and nothing is to be trained.
        source: With --from-traces, as in prm eval budget: auto, cut or rerun.
        k: With --from-traces, numbers of trajectories, such as 1 2 4.
        t: With --from-traces, turn budgets, such as 1 2 3 5 10.
        primary: With --from-traces, the cell to report first, as K,T.
        against: With --from-traces, the policy that all others are compared with.
        seed_key: With --from-traces, key of meta that tells training seeds of one policy apart.
        success_at: With --from-traces, a run whose source does not say so succeeded when its reward
            is at least this.
        bootstrap: Number of resamples of tasks and seeds, at least 20; 0 for no intervals.
    """
    if processes is not None and processes < 1:
        raise PRMError(f"--processes: expected 1 or more, found {processes}")
    if bootstrap != 0 and not MIN_RESAMPLES <= bootstrap <= MAX_RESAMPLES:
        raise PRMError(
            f"--bootstrap: expected 0 or {MIN_RESAMPLES} to {MAX_RESAMPLES:,}, found {bootstrap}"
        )
    given = {"--source": source != "auto", "--k": k, "--t": t, "--primary": primary}
    given |= {"--against": against, "--seed-key": seed_key, "--success-at": success_at is not None}
    if not from_traces:
        if len(files) != 1:
            raise PRMError(f"study: expected the YAML of one study, found {len(files)} files")
        for option, value in given.items():
            if value:
                raise PRMError(f"{option}: it goes with --from-traces; the YAML has its own grid")
        _train(files[0], Path(out), processes, bootstrap)
        return
    if processes is not None:
        raise PRMError("--processes: nothing is trained with --from-traces")
    options = BudgetOptions(
        source=source,
        k=None if k is None else tuple(k),
        t=None if t is None else tuple(t),
        primary=cell_of(primary),
        against=against,
        seed_key=seed_key,
        resamples=bootstrap,
    )
    check_new_folder(out)
    from prm.eval.evaluate_budget import with_success_at
    from prm.study.page import write_report
    from prm.study.report import traces_report
    from prm.study.terminal import as_table

    report = traces_report(with_success_at(read_counted(files), success_at), options)
    with atomic_folder(out) as partial:
        write_report(report, partial)
    sys.stdout.buffer.write(as_table(report).encode())
    print(f"prm: wrote report.html, report.json and figures to {out}", file=sys.stderr)


def _train(file: str, folder: Path, processes: int | None, resamples: int) -> None:
    from prm.study.layout import alone, begin

    config = read_study(file)
    begin(config, folder)
    with alone(folder):
        _run_and_report(config, folder, processes, resamples)


def _run_and_report(
    config: StudyConfig, folder: Path, processes: int | None, resamples: int
) -> None:
    from prm.study.run import run_study

    failed = run_study(config, folder, processes=processes)
    from prm.study.page import write_report
    from prm.study.report import study_report
    from prm.study.terminal import as_table

    report = study_report(config, folder, failed, resamples=resamples)
    place = folder / REPORT
    # Made anew from what is in the folder, so that it holds arms that failed before.
    shutil.rmtree(place, ignore_errors=True)
    with atomic_folder(place) as partial:
        write_report(report, partial)
    sys.stdout.buffer.write(as_table(report).encode())
    print(f"prm: wrote report.html, report.json and figures to {place}", file=sys.stderr)
    if failed:
        first, reason = next(iter(failed.items()))
        raise PRMError(f"{len(failed)} parts or arms failed; the first, {first}: {reason}")
