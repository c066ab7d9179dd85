"""Errors and recovery as a section of the report page (``prm.eval.recovery``)."""

from __future__ import annotations

from collections.abc import Callable

from prm.eval.estimate import Estimate
from prm.eval.html_parts import Group, estimate_cell, name, section, table, text
from prm.eval.recovery import PolicyRecovery, RecoveryReport


def recovery_section(recovery: RecoveryReport) -> str:
    """Errors and what came after them; n counts trajectories, in the table of error rates steps."""
    policies = recovery.policies

    def along(
        caption: str, columns: list[str], field: Callable[[PolicyRecovery], list[Estimate]]
    ) -> str:
        rows = [(name(p), list(map(estimate_cell, field(one)))) for p, one in policies.items()]
        return table(caption, "policy", columns, [Group(None, rows)])

    steps = [f"step {step}" for step in recovery.steps]
    horizon = ""
    if recovery.horizon_key is not None:
        horizon = along(
            f"Success on the tasks of each {text(recovery.horizon_key)}.",
            [f"{value:g}" for value in recovery.horizon_values],
            lambda one: one.horizon,
        )
    return section(
        "Errors and recovery",
        f"<p>A step is an error when its label {text(recovery.label)} is below "
        f"{recovery.good_at:g}. Steps are numbered from 0; n counts runs. Recovery found in logs "
        f"is confounded: hard tasks have more errors and are solved less often, and policies err "
        f"in different places.</p>",
        along(
            "Errors, and success without them.",
            [
                "runs with an error",
                "mean step of the first",
                "the same, over the length of the run",
                "success without any error",
                "success where the first error is not known",
            ],
            lambda one: [
                one.error_share,
                one.first_error_step,
                one.first_error_place,
                one.success_without_error,
                one.success_where_unknown,
            ],
        ),
        along(
            "Success after a first error with at least r turns left.",
            [f"r ≥ {r}" for r in recovery.remaining],
            lambda one: one.recovery_at_least,
        ),
        along(
            "The same with r turns or more left, but fewer than in the next column.",
            [f"r from {r}" for r in recovery.remaining],
            lambda one: one.recovery_up_to_next,
        ),
        along("Where the first errors fall.", steps, lambda one: one.first_error_at),
        along(
            "Share of errors among the labelled steps; n counts steps.",
            steps,
            lambda one: one.error_rate,
        ),
        horizon,
    )
