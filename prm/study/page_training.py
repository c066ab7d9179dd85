"""Sections of the study's page on training: learning curves, the hacking watch, and settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec
import yaml

from prm.errors import plural
from prm.eval.budget_words import NOT_DEFINED, listed, number
from prm.eval.figure_parts import as_svg
from prm.eval.hacking import HackingReport
from prm.eval.html_parts import (
    Group,
    cell,
    estimate_cell,
    items,
    name,
    picture,
    section,
    table,
    text,
)
from prm.study.config import Arm
from prm.study.figures import hacking_figure, learning_figure
from prm.study.layout import Job
from prm.study.learning import FLAT, PARTS
from prm.study.report import Trained

WATCHED = {
    "reward": ("process reward", "sum of the step scores"),
    "score": ("score", "mean of a step"),
    "success": ("success", ""),
    "steps": ("turns", ""),
    "repeated": ("repeated calls", "share of the steps"),
}
"""Fields of ``GroupWatch`` with their names."""

METHOD = """<dl>
<dt>Exact optimum</dt>
<dd>The beliefs that an agent of desk can have are few, so the success of the best policy that is
told T, its actions and the worth of every action follow from dynamic programming. It is a policy of
the report like any other, run on the same tasks; regret takes its exact chance of success for the
tasks, not its luck in those runs.</dd>
<dt>Intervals</dt>
<dd>95 %. Tasks, or fixed states, are drawn with replacement, the same for all policies; training
seeds, where there are three or more, for each policy on its own. A number has a BCa interval, a
difference a symmetric one. Where all draws agree there is none.</dd>
<dt>Fixed states</dt>
<dd>States of scripted agents, the same for all policies. In each, a policy takes its action and
plays on; then again after a mistake was put in its history, which teaches nothing and gets a turn
of its own. So whoever recovers less was led astray by it; the exact optimum loses nothing.</dd>
<dt>Natural recovery</dt>
<dd>Success of the runs whose first action that is not optimal leaves two turns or more. It is
confounded: policies err in different places, and tasks with errors are the hard ones.</dd>
</dl>"""


def training_sections(one: Trained) -> list[str]:
    """Learning curves, and the hacking watch of arms with scores."""
    return [_learning(one), _hacking(one)]


def settings_section(one: Trained) -> str:
    """The arms and their time, the whole study as YAML, and how its numbers are made."""
    jobs = {
        arm.name: [Job(arm.name, arm, seed).name for seed in one.config.seeds]
        for arm in one.config.arms
    }
    rows = [(name(arm.name), _arm(one, arm, jobs[arm.name])) for arm in one.config.arms]
    total = sum(one.seconds.values())
    caption = (
        f"The arms. Training took {total:,.0f} seconds in all, on one thread each; seconds alone "
        f"are not the same when the study is made again."
    )
    columns = ["T of training", "reward", "scores", "told the turns left", "seeds", "seconds"]
    whole = yaml.safe_dump(
        msgspec.to_builtins(one.config),
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
    )
    lines = "\n".join(map(text, whole.splitlines()))
    return section(
        "Settings of the study, and how its numbers are made",
        table(caption, "arm", columns, [Group(None, rows)]),
        f"<details>\n<summary>The study as YAML</summary>\n"
        f'<pre class="scroll">{lines}</pre>\n</details>',
        METHOD,
    )


def _learning(one: Trained) -> str:
    figure = picture(
        as_svg(learning_figure(one)),
        "Success in training over the updates, a panel for each arm.",
        f"Success of the rollouts of training, in {PARTS} parts of it, a line for each T. They are "
        f"other tasks than those of the evaluation.",
    )
    rows = []
    for arm, found in one.learned.items():
        ends = (found.steps, found.entropy)
        known = [share for share in found.process_share if not math.isnan(share)]
        cells = [
            cell(number(found.last_rise, signed=True), "still rising" if found.rising else ""),
            *(cell(number(values[place])) for values in ends for place in (0, -1)),
            cell(number(fmean(known) if known else math.nan)),
        ]
        rows.append((name(arm), cells))
    columns = [
        "last rise<small>success in the last quarter of training minus the quarter before</small>",
        "turns, first",
        "turns, last",
        "entropy, first<small>nats a token</small>",
        "entropy, last",
        "share of the process<small>of the advantages, mean over training</small>",
    ]
    caption = (
        f"How training ended; first and last are the means of the first and last of {PARTS} parts. "
        f"An arm counts as still rising when its last rise is {FLAT} or more: what is said of it "
        f"holds for this much training."
    )
    table_ = table(caption, "arm", columns, [Group(None, rows)])
    return section("Learning curves", figure, table_)


def _hacking(one: Trained) -> str:
    if not one.watched:
        return ""
    verdicts = [
        f"<strong>{name(arm)}</strong>: {text(watch.verdict())}"
        for arm, watch in one.watched.items()
    ]
    updates = list(dict.fromkeys(g for watch in one.watched.values() for g in watch.groups))
    heading = "Hacking watch: does the process reward pay for something else?"
    if not updates:
        note = "<p>Training was too short to follow scores and success along it.</p>"
        return section(heading, items(verdicts), note)
    figure = picture(
        as_svg(hacking_figure(one)),
        "Scores and success over the updates, a panel for each arm with scores.",
        "Mean score of a step and success of the rollouts that were kept, over the updates.",
    )
    caption = (
        "What the process reward of each arm goes with along training; columns are the updates "
        "made before. The change is from the first to the last along the line through all. Tasks "
        "differ from update to update."
    )
    groups = [Group(name(arm), _watched(watch, updates)) for arm, watch in one.watched.items()]
    columns = [*map(text, updates), "change"]
    about = (
        "<p>What is watched is the sum of the scores of a trace's actions, as mode sum would pay "
        "it, whatever the mode of the arm does with the scores.</p>"
    )
    return section(
        heading,
        about,
        items(verdicts),
        figure,
        table(caption, "", columns, groups),
    )


def _watched(watch: HackingReport, updates: Sequence[str]) -> list[tuple[str, list[str]]]:
    rows = []
    for key, (label, meaning) in WATCHED.items():
        cells = [
            cell(number(getattr(watch.groups[each], key).value))
            if each in watch.groups
            else cell(NOT_DEFINED)
            for each in updates
        ]
        if watch.change is not None:
            change = getattr(watch.change, key)
            cells.append(estimate_cell(change, change.n, signed=True))
        rows.append((f"{label}<small>{meaning}</small>" if meaning else label, cells))
    return rows


def _arm(one: Trained, arm: Arm, jobs: Sequence[str]) -> list[str]:
    shaping = arm.shaping_config()
    given = [f"{key} {value}" for key, value in arm.shaping.items() if key != "mode"]
    if arm.estimator is not None:
        given.append(f"estimator {arm.estimator}")
    budget = arm.budget
    drawn = [f"weights {budget.weights}"] if budget.weights is not None else []
    drawn += [f"adapt {budget.adapt:g}"] if budget.adapt else []
    known = [one.seconds[job] for job in jobs if job in one.seconds]
    return [
        cell(f"{budget.kind} {listed(budget.turns)}", *map(text, drawn)),
        cell("outcome" if shaping.mode == "terminal" else shaping.mode, *map(text, given)),
        cell(NOT_DEFINED if shaping.mode == "terminal" else arm.scores),
        cell("yes" if arm.turns_shown else "no"),
        cell(f"{one.policies.n_seeds.get(arm.name, 0)} of {len(jobs)}"),
        cell(f"{sum(known):,.0f}", plural(len(known), "run")) if known else cell(NOT_DEFINED),
    ]
