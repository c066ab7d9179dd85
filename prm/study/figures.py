"""Figures of a study: what a table shows too slowly.

Arms have a panel each, because a study has more of them than one panel can hold, or a row each.
Built with matplotlib's object interface, without any global figure.

Left out: heat maps over K and T (``prm.eval.budget_figures``), and the page (``prm.study.page``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from prm.data.atomic import atomic_output
from prm.eval.budget_figures import COLOURS
from prm.eval.budget_figures import write_figures as write_budget_figures
from prm.eval.estimate import Estimate
from prm.eval.figure_parts import STYLE, as_png, show_title, wrapped
from prm.study.config import BASE, BASE_HIDDEN, OPTIMUM, RANDOM
from prm.study.measures import MEASURES
from prm.study.report import StudyReport, Trained

MAIN, OTHER = COLOURS[0], COLOURS[1]
KNOWN: dict[str, dict[str, Any]] = {
    OPTIMUM: {"color": "#222222", "ls": "--"},
    BASE: {"color": COLOURS[1], "ls": "-."},
    BASE_HIDDEN: {"color": COLOURS[3], "ls": "-."},
    RANDOM: {"color": "#777777", "ls": ":"},
}
"""Policies that no arm trained, and their lines."""
WIDTH, COLUMNS = 8.4, 3


def arms_of(trained: Trained) -> list[str]:
    """The policies that were trained, in the order of the config."""
    return [name for name in trained.policies.names if name not in KNOWN]


def bases_of(trained: Trained) -> dict[str, str]:
    """The base policy that each arm started from, where it was measured."""
    bases = {
        arm.name: BASE if arm.turns_shown else BASE_HIDDEN
        for arm in trained.config.arms
        if arm.name in trained.policies.names
    }
    return {name: base for name, base in bases.items() if base in trained.policies.names}


@matplotlib.rc_context(STYLE)
def success_figure(trained: Trained) -> Figure:
    """Pass@(1,T) of each arm, with what it could have and what it started from."""
    known = [OPTIMUM, *_bases(trained), RANDOM]
    return _over_t(
        trained,
        "success",
        "Pass@(1,T) of each arm with its 95 % interval, the other arms in grey",
        known,
    )


@matplotlib.rc_context(STYLE)
def regret_figure(trained: Trained) -> Figure:
    """How far each arm is below the exact optimum at each T."""
    known = _bases(trained)
    figure = _over_t(
        trained,
        "regret",
        "Regret of each arm with its 95 % interval, the other arms in grey",
        known,
    )
    for axes in figure.axes:
        axes.axhline(0, color="#222222", lw=0.8)
    return figure


@matplotlib.rc_context(STYLE)
def learning_figure(trained: Trained) -> Figure:
    """Success in training at each T over the updates, a panel for each arm."""
    budgets = sorted({t for one in trained.learned.values() for t in one.success})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, len(budgets)))
    colours = dict(zip(budgets, shades, strict=True))
    titles = [
        f"{name}\nstill rising, {one.last_rise:+.2f}" if one.rising else name
        for name, one in trained.learned.items()
    ]
    figure, panels = _panels(titles)
    for one, axes in zip(trained.learned.values(), panels, strict=True):
        for t, success in one.success.items():
            axes.plot(one.updates, success, color=colours[t], lw=1.5, marker="o", ms=2.5)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.supxlabel("updates made", fontsize=9)
    figure.supylabel("success in training", fontsize=9)
    _head(figure, "Success along training", {f"T = {t}": {"color": colours[t]} for t in budgets})
    return figure


@matplotlib.rc_context(STYLE)
def changes_figure(trained: Trained) -> Figure:
    """Decisions and recovery of each policy: a row for each, a panel for each measure."""
    policies = trained.policies
    names = policies.names
    labels = [wrapped(name, 24) for name in names]
    heights = [1 + 0.6 * label.count("\n") for label in labels]
    y = [sum(heights[:place]) + height / 2 for place, height in enumerate(heights)]
    shown = [one for one in MEASURES.values() if one.of_states and policies.has(names[0], one)]
    shown.append(MEASURES["natural_recovery"])
    figure = Figure(figsize=(WIDTH, 1.2 + 0.21 * sum(heights)), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for measure, axes in zip(shown, panels, strict=True):
        for name, place in zip(names, y, strict=True):
            (one,) = policies.estimate(name, measure)
            colour = "#666666" if name in KNOWN else MAIN
            axes.hlines(place, one.low, one.high, color=colour, lw=1.5)
            axes.plot(one.value, place, "o", color=colour, ms=5, mec="white", mew=0.5)
        for base in _bases(trained):
            (one,) = policies.estimate(base, measure)
            axes.axvline(one.value, lw=1, zorder=0, **KNOWN[base])
        axes.set_title(wrapped(measure.label, 17), fontsize=8, loc="left")
        _tidy(axes)
        axes.xaxis.set_major_locator(MaxNLocator(2))
        axes.tick_params(axis="x", labelsize=7.5)
    panels[0].set_yticks(y, labels, fontsize=7.5, parse_math=False)
    panels[0].set_ylim(sum(heights), 0)
    title = "Decisions and recovery, with 95 % intervals"
    _head(figure, title, {base: KNOWN[base] for base in _bases(trained)})
    return figure


@matplotlib.rc_context(STYLE)
def hacking_figure(trained: Trained) -> Figure:
    """Mean step score and success over the updates, a panel for each arm with scores."""
    figure, panels = _panels(list(trained.watched))
    for watch, axes in zip(trained.watched.values(), panels, strict=True):
        x = [float(group) for group in watch.groups]
        groups = watch.groups.values()
        _band(axes, x, [group.success for group in groups], MAIN, "-")
        _band(axes, x, [group.score for group in groups], OTHER, "--")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.supxlabel("updates made", fontsize=9)
    figure.supylabel("mean over tasks", fontsize=9)
    lines = {"success": {"color": MAIN}, "mean score of a step": {"color": OTHER, "ls": "--"}}
    _head(figure, "Scores and success along training, with 95 % intervals", lines)
    return figure


def write_figures(report: StudyReport, folder: Path) -> None:
    """Write the figures of the page as PNG; of policies that were not trained here, those of
    ``prm eval budget``."""
    if report.trained is None:
        write_budget_figures(report.budget, folder)
        return
    for name, figure in figures(report.trained):
        with atomic_output(folder / f"{name}.png") as file:
            file.write(as_png(figure))


def figures(trained: Trained) -> Iterator[tuple[str, Figure]]:
    """The figures that the study has data for, by the name of their file."""
    yield "success", success_figure(trained)
    yield "regret", regret_figure(trained)
    yield "changes", changes_figure(trained)
    yield "learning", learning_figure(trained)
    if trained.watched:
        yield "hacking", hacking_figure(trained)


def _bases(trained: Trained) -> list[str]:
    return list(dict.fromkeys(bases_of(trained).values()))


def _over_t(trained: Trained, key: str, title: str, known: Sequence[str]) -> Figure:
    """A measure over T: a panel for each arm, with the others behind and the known ones before."""
    policies, arms = trained.policies, arms_of(trained)
    bases = bases_of(trained)
    known = [name for name in known if name in policies.names]
    found = {name: policies.estimate(name, MEASURES[key]) for name in [*arms, *known]}
    figure, panels = _panels(arms)
    for arm, axes in zip(arms, panels, strict=True):
        for other in arms:
            axes.plot(policies.turns, _values(found[other]), color="#cccccc", lw=0.7, zorder=1)
        for name in known:
            if name not in (BASE, BASE_HIDDEN) or name == bases[arm]:
                axes.plot(policies.turns, _values(found[name]), lw=1.1, **KNOWN[name])
        _band(axes, policies.turns, found[arm], MAIN, "-")
        axes.set_xticks(policies.turns)
    figure.supxlabel("T (turns)", fontsize=9)
    figure.supylabel(MEASURES[key].label, fontsize=9)
    _head(figure, title, {"the arm": {"color": MAIN}} | {name: KNOWN[name] for name in known})
    return figure


def _panels(titles: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """A panel with the same axes for each title."""
    n_rows = math.ceil(len(titles) / COLUMNS)
    labels = ["\n".join(wrapped(line, 34) for line in title.split("\n")) for title in titles]
    n_lines = [label.count("\n") + 1 for label in labels]
    highest = [max(n_lines[start : start + COLUMNS]) for start in range(0, len(labels), COLUMNS)]
    height = 1.1 + sum(1.75 + 0.14 * lines for lines in highest)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(n_rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(titles) :]:
        axes.remove()
    panels = list(grid.flat[: len(titles)])
    for axes, label in zip(panels, labels, strict=True):
        axes.set_title(label, fontsize=7.5, loc="left", parse_math=False)
        axes.tick_params(labelbottom=True)
        _tidy(axes)
    return figure, panels


def _band(
    axes: Axes, x: Sequence[float], cells: Sequence[Estimate], colour: str, line: str
) -> None:
    low, high = [cell.low for cell in cells], [cell.high for cell in cells]
    axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    axes.plot(x, _values(cells), color=colour, ls=line, lw=1.6, marker="o", ms=3.5)


def _values(cells: Sequence[Estimate]) -> list[float]:
    return [cell.value for cell in cells]


def _head(figure: Figure, title: str, lines: Mapping[str, dict[str, Any]]) -> None:
    """A title, and below it what each kind of line stands for, in rows of six."""
    rows = math.ceil(len(lines) / 6)
    show_title(figure, title + "\n" * rows)  # the layout keeps room for titles alone
    handles = [Line2D([], [], lw=1.6, **style) for style in lines.values()]
    place = (0.0, 1 - 0.2 / figure.get_figheight())
    legend = figure.legend(
        handles, list(lines), loc="upper left", bbox_to_anchor=place, ncols=6, fontsize=8
    )
    legend.set_in_layout(False)
    legend.set_frame_on(False)


def _tidy(axes: Axes) -> None:
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
