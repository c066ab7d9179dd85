"""Figures of a budget report: surfaces, curves over T, and differences of two policies.

Built with matplotlib's object interface, without any global figure. A figure of a report with one
K, or one T, is one with one row, or one column.

Left out: the HTML page, which shows surfaces as coloured tables (``prm.eval.budget_page``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from prm.data.atomic import atomic_output
from prm.eval.budget_report import BudgetReport
from prm.eval.budget_statistics import Comparison
from prm.eval.budget_words import MAX_PAIRS, bounds, chief_pairs, number
from prm.eval.estimate import Estimate
from prm.eval.figure_parts import INK, STYLE, as_png, fitted, show_title, slug, unique, wrapped
from prm.eval.steps import Bools, Floats

# Okabe and Ito (2008): told apart with every kind of colour vision; without yellow, which is pale.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F6A4D")
MARKERS = "osD^vPX*"
HEIGHTS = LinearSegmentedColormap.from_list("heights", ["#f7fafd", "#2166ac"])
DIFFERENCES = LinearSegmentedColormap.from_list("differences", ["#c75a00", "#ffffff", "#2166ac"])
MAX_OVERLAID = len(COLOURS)
"""More policies than this get a panel each."""
MAX_COLUMNS_WITH_INTERVALS = 12


@matplotlib.rc_context(STYLE)
def curves_figure(report: BudgetReport) -> Figure:
    """Pass@(K,T) over T at the smallest K, with pointwise intervals.

    Few policies share one panel; many get one each, with the others in grey behind.
    """
    ends = {name: one.pass_at[0][-1].value for name, one in report.policies.items()}
    order = sorted(ends, key=lambda name: -np.nan_to_num(ends[name], nan=-1.0))
    draw = _overlaid if len(order) <= MAX_OVERLAID else _panels
    figure = draw(order, report)
    cells = [cell for one in report.policies.values() for cell in one.pass_at[0]]
    top = np.nanmax([0.05, *(max(cell.value, cell.high) for cell in cells)])
    for axes in figure.axes:
        axes.set_ylim(-0.02 * top, min(1.02, 1.06 * top))
    return figure


@matplotlib.rc_context(STYLE)
def surface_figure(policy: str, report: BudgetReport) -> Figure:
    """Pass@(K,T) of one policy: a heat map from 0 to 1, the value in each cell."""
    cells = report.policies[policy].pass_at
    return _heat_map(
        np.array([[cell.value for cell in row] for row in cells]),
        [[(number(cell.value), bounds(cell.low, cell.high)) for cell in row] for row in cells],
        report,
        (0.0, 1.0),
        HEIGHTS,
        title=[f"Pass@(K,T) of {policy}"],
        brackets="95 % intervals",
    )


@matplotlib.rc_context(STYLE)
def difference_figure(comparison: Comparison, report: BudgetReport) -> Figure:
    """Pass@(K,T) of one policy minus another: a heat map around 0, with outlined the cells that
    survive the simultaneous band.

    The same difference has the same colour in all comparisons of a report.
    """
    c, survives, reach = comparison, comparison.survives(), largest_difference(report)
    texts = [
        [
            (
                number(c.difference[i, j], signed=True) + "*" * bool(survives[i, j]),
                bounds(c.low[i, j], c.high[i, j], signed=True),
            )
            for j in range(len(report.t))
        ]
        for i in range(len(report.k))
    ]
    return _heat_map(
        c.difference,
        texts,
        report,
        (-reach, reach),
        DIFFERENCES,
        title=[f"Pass@(K,T) of {c.a}", f"minus {c.b}"],
        brackets="simultaneous 95 % band",
        marked=survives,
    )


def largest_difference(report: BudgetReport) -> float:
    """The largest difference, either way, of any cell and pair; at least 0.01."""
    sizes = np.abs([c.difference for c in report.comparisons])
    return float(np.nan_to_num(sizes).max(initial=0.01))


def figure_names(report: BudgetReport) -> list[str]:
    """The files of :func:`write_figures`: safe on every file system, each name once.

    Names of policies lose what is not an ASCII letter, digit, dot, dash or underscore, and what is
    beyond 60 characters; names that are then the same get a number, in every file the same one.
    """
    short = dict(zip(report.policies, unique(map(slug, report.policies)), strict=True))
    stems = ["curves", *(f"surface-{name}" for name in short.values())]
    stems += [f"difference-{short[c.a]}-{short[c.b]}" for c in _drawn(report)]
    return [f"{stem}.png" for stem in unique(stems)]


def write_figures(report: BudgetReport, folder: str | os.PathLike[str]) -> list[Path]:
    """Write curves, a surface for each policy and differences of pairs; returns the paths.

    Each file appears complete or not at all. :class:`PRMError` where one cannot be written.
    """
    paths = [Path(folder) / name for name in figure_names(report)]
    for path, figure in zip(paths, _figures(report), strict=True):
        with atomic_output(path) as file:
            file.write(as_png(figure))
    return paths


def _figures(report: BudgetReport) -> Iterator[Figure]:
    yield curves_figure(report)
    yield from (surface_figure(name, report) for name in report.policies)
    yield from (difference_figure(comparison, report) for comparison in _drawn(report))


def _drawn(report: BudgetReport) -> list[Comparison]:
    """The pairs with a figure; the page has a table of every pair."""
    return chief_pairs(report)[:MAX_PAIRS]


def _heat_map(
    value: Floats,
    texts: Sequence[Sequence[tuple[str, str]]],
    report: BudgetReport,
    limits: tuple[float, float],
    colours: LinearSegmentedColormap,
    title: Sequence[str],
    brackets: str,
    marked: Bools | None = None,
) -> Figure:
    """K x T cells, each with a number and, where there is room, its interval below."""
    n_k, n_t = value.shape
    roomy = n_t <= MAX_COLUMNS_WITH_INTERVALS
    width = max(4.5, 0.7 + (0.95 if roomy else 0.55) * n_t)
    heading = fitted(title, width)
    height = (0.5 if roomy else 0.36) * n_k + 0.18 * heading.count("\n") + 1.1
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    shades = colours.with_extremes(bad="#e4e4e4")
    image = axes.imshow(value, cmap=shades, vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.invert_yaxis()  # K grows upwards
    for i, j in np.ndindex(n_k, n_t):
        red, green, blue, _ = shades(image.norm(value[i, j]))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        style: dict[str, Any] = {"ha": "center", "color": "white" if dark else INK}
        main, interval = texts[i][j]
        axes.text(
            j, i, main, va="bottom" if roomy else "center", fontsize=9 if roomy else 7.5, **style
        )
        if roomy:
            axes.text(j, i - 0.08, interval, va="top", fontsize=6.5, **style)
        if marked is not None and marked[i, j]:
            corner = (j - 0.47, i - 0.45)
            axes.add_patch(Rectangle(corner, 0.94, 0.9, fill=False, edgecolor=INK, lw=1.8))
    axes.set_xticks(range(n_t), [str(t) for t in report.t])
    axes.set_yticks(range(n_k), [str(k) for k in report.k])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("T (turns)")
    axes.set_ylabel("K (runs)")
    show_title(figure, heading)
    caption = f"in brackets: {brackets}" if roomy else ""
    if marked is not None:
        caption += "; * outlined: it excludes 0" if roomy else f"* outlined: {brackets} excludes 0"
    figure.supxlabel(caption, fontsize=7, color="#555555", x=0.99, ha="right")
    return figure


def _overlaid(order: Sequence[str], report: BudgetReport) -> Figure:
    """All curves in one panel; the legend beside it has them in the order of their ends."""
    labels = [wrapped(name, 30) for name in order]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    n_lines = sum(label.count("\n") + 1 for label in labels)
    several = len(order) > 1
    title = f"Pass@({report.k[0]},T)" if several else f"Pass@({report.k[0]},T) of {order[0]}"
    width = 6.4 + (0.7 + 0.08 * longest if several else 0.0)
    figure = Figure(figsize=(width, max(4.2, 0.8 + 0.2 * n_lines)), layout="constrained")
    axes = figure.add_subplot()
    lines = []
    for place, name in enumerate(order):
        shift = 0.0 if len(report.t) > 1 else (place + 0.5) / len(order) - 0.5
        style = {"color": COLOURS[place], "marker": MARKERS[place]}
        lines.append(_curve(axes, report.t, report.policies[name].pass_at[0], shift, **style))
    _budget_axis(axes, report.t, least_gap=0.04)
    axes.set_ylabel(f"Pass@({report.k[0]},T), with 95 % intervals")
    axes.set_xlabel("T (turns)")
    show_title(figure, fitted([title], width))
    if several:
        legend = figure.legend(lines, map(str, range(len(lines))), loc="outside right upper")
        legend.set_frame_on(False)
        for text, label in zip(legend.get_texts(), labels, strict=True):
            text.set_parse_math(False)
            text.set_text(label)
    return figure


def _panels(order: Sequence[str], report: BudgetReport) -> Figure:
    """A panel for each policy, with the other curves in grey behind it."""
    n_columns = 3
    n_rows = math.ceil(len(order) / n_columns)
    titles = [wrapped(name, 34) for name in order]
    n_lines = [title.count("\n") + 1 for title in titles]
    highest = [max(n_lines[start : start + n_columns]) for start in range(0, len(order), n_columns)]
    height = 0.8 + sum(1.8 + 0.14 * lines for lines in highest)
    figure = Figure(figsize=(8.4, height), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(order) :]:
        axes.remove()
    for name, title, axes in zip(order, titles, grid.flat, strict=False):
        for other in order:
            values = [cell.value for cell in report.policies[other].pass_at[0]]
            axes.plot(report.t, values, color="#cccccc", lw=0.8)
        _curve(axes, report.t, report.policies[name].pass_at[0], 0.0, COLOURS[0], MARKERS[0])
        _budget_axis(axes, report.t, least_gap=0.12)
        axes.tick_params(labelbottom=True)
        axes.set_title(title, fontsize=7.5, loc="left", parse_math=False)
    figure.supxlabel("T (turns)", fontsize=9)
    figure.supylabel(f"Pass@({report.k[0]},T), with 95 % intervals", fontsize=9)
    show_title(figure, f"Pass@({report.k[0]},T) of each policy, the others in grey")
    return figure


def _curve(
    axes: Axes, t: Sequence[int], cells: Sequence[Estimate], shift: float, color: str, marker: str
) -> Line2D:
    """A line with its band; at a single T a point with its interval, moved aside by ``shift``."""
    x = np.asarray(t) * 2.0**shift
    low, high = [cell.low for cell in cells], [cell.high for cell in cells]
    if len(t) > 1:
        axes.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
    else:
        axes.vlines(x, low, high, color=color, lw=1.5)
    values = [cell.value for cell in cells]
    (line,) = axes.plot(x, values, color=color, marker=marker, ms=5, lw=1.6, mec="white", mew=0.5)
    return line


def _budget_axis(axes: Axes, t: Sequence[int], least_gap: float) -> None:
    """A log axis with a tick at each budget; of labels closer than ``least_gap`` the lesser go."""
    axes.set_xscale("log")
    span = math.log(t[-1] / t[0]) or 1.0
    shown: list[int] = []
    for budget in reversed(t):
        if not shown or math.log(shown[-1] / budget) / span >= least_gap:
            shown.append(budget)
    axes.set_xticks(t, [str(budget) if budget in shown else "" for budget in t])
    axes.xaxis.set_minor_locator(NullLocator())
    if len(t) == 1:
        axes.set_xlim(t[0] / 2, t[0] * 2)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
