"""The figures and the page of a budget report: complete, inert, and true to the numbers."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from prm.data.trace import Outcome, Trace
from prm.errors import PRMError
from prm.eval.budget_figures import (
    MAX_OVERLAID,
    curves_figure,
    difference_figure,
    figure_names,
    surface_figure,
    write_figures,
)
from prm.eval.budget_page import page
from prm.eval.budget_report import BudgetReport, budget_report
from prm.eval.budget_runs import BudgetOptions
from prm.eval.budget_statistics import Comparison
from prm.eval.budget_words import MAX_PAIRS, SUMMARIES, verdict
from prm.eval.estimate import Estimate
from prm.eval.figure_parts import as_png, as_svg, wrapped
from prm.eval.recovery import recovery_report
from tests.conftest import MakeTrace

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=http://x.test/y onerror=alert(1)>',
    "../../x",
    "a/b",
    "A-B",
    "$\\frac{1}{2}",
    "_hidden",
    "🚀🔥",
    "🔥🚀",
    "日本語",
    "a\nb\u202e\ud800",
    "n" * 300,
]
VOID = {"meta", "img", "wbr", "br"}


def report_of(
    make_trace: MakeTrace,
    policies: list[str],
    *,
    t: tuple[int, ...] = (1, 4, 12),
    k: tuple[int, ...] = (1, 2),
    n_tasks: int = 12,
    by: str | None = None,
) -> BudgetReport:
    """Policies in ascending order of strength; the last group of tasks is never solved."""
    rng = np.random.default_rng(0)
    traces = []
    for strength, policy in enumerate(policies):
        for task in range(n_tasks):
            for run in range(3):
                success = bool(task % 3 and rng.random() < (strength + 1) / (len(policies) + 1))
                trace = make_trace(
                    int(rng.integers(1, 13)),
                    id=f"{policy}/{task}/{run}",
                    task_id=str(task),
                    policy=policy,
                    outcome=Outcome(success=success, max_turns=12),
                    meta={"kind": ["<b>hard</b>", "2", "10"][task % 3]},
                )
                traces.append(trace)
    return budget_report(traces, BudgetOptions(k=k, t=t, by=by, resamples=200))


@pytest.fixture(scope="module")
def plain(make_trace: MakeTrace) -> BudgetReport:
    return report_of(make_trace, ["alpha", "beta", "gamma"], by="kind")


@pytest.fixture(scope="module")
def hostile(make_trace: MakeTrace) -> BudgetReport:
    return report_of(make_trace, HOSTILE, by="kind")


class Cell(NamedTuple):
    text: str
    classes: list[str]


class Page(HTMLParser):
    """The elements and the text of a page; refuses tags that are not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.cells: list[Cell] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append(Cell("", (dict(attrs).get("class") or "").split()))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if "td" in self.open:
            last = self.cells.pop()
            self.cells.append(last._replace(text=f"{last.text}{data} "))


def shown(value: float) -> str:
    """The digits of a number, whatever stands around them."""
    return f"{abs(value):.3f}".replace("inf", "∞")


def test_every_number_of_the_report_is_on_the_page(plain: BudgetReport) -> None:
    text = Page(page(plain)).text
    estimates: list[Estimate] = []
    for one in plain.policies.values():
        estimates += [cell for row in one.pass_at + one.pass_hat for cell in row]
        estimates += [one.robustness[name] for name in SUMMARIES if name != "turns_to_reach"]
        estimates += one.groups.values()
        for count in (one.n_tasks, one.n_samples):
            assert f"{count:,}" in text
        for bias in one.bias.values():
            assert f"{abs(bias):.4f}" in text
        for cost in one.steps_per_success:
            assert f"{cost.value:.1f}".replace("inf", "∞") in text
    for c in plain.comparisons:
        estimates += [c.primary, c.area]
        for cell in np.stack([c.difference, c.low, c.high]).ravel():
            assert np.isnan(cell) or shown(cell) in text
        for p in (c.primary_p, c.primary_p_holm, c.solved_p, c.solved_p_holm, *c.p.ravel()):
            assert np.isnan(p) or f"{p:.3g}" in text
    for estimate in estimates:
        for value in estimate[:3]:
            assert np.isnan(value) or shown(value) in text, estimate
    for note in plain.notes:
        assert note in text


def test_outlined_cells_are_those_that_survive(plain: BudgetReport) -> None:
    survives = np.array([c.survives() for c in plain.comparisons])
    assert survives.any()
    assert not survives.all()
    cells = Page(page(plain)).cells
    marked = [cell for cell in cells if "survives" in cell.classes]
    assert len(marked) == survives.sum()
    assert sum("*" in cell.text for cell in cells) == survives.sum()
    for c in plain.comparisons:
        (axes,) = difference_figure(c, plain).axes
        at = {tuple(np.round(patch.get_center()).astype(int)) for patch in axes.patches}
        assert at == {(j, i) for i, j in np.argwhere(c.survives())}
        starred = {text.get_position()[0] for text in axes.texts if "*" in text.get_text()}
        assert starred == {j for j, _ in at}


def test_what_is_up_is_in_favour_of_the_first(plain: BudgetReport) -> None:
    for cell in Page(page(plain)).cells:
        if cell.text.startswith(("+", "−")) and "heat" in cell.classes:
            zero = cell.text.startswith("+0.000")
            assert ("up" in cell.classes) == cell.text.startswith("+") or zero


@pytest.mark.parametrize("field", ["surface", "difference"])
def test_heat_maps_have_a_number_in_each_cell(plain: BudgetReport, field: str) -> None:
    if field == "surface":
        cells = plain.policies["beta"].pass_at
        values = np.array([[cell.value for cell in row] for row in cells])
        figure = surface_figure("beta", plain)
    else:
        values = plain.comparisons[0].difference
        figure = difference_figure(plain.comparisons[0], plain)
    (axes,) = figure.axes
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array(), values)
    numbers = [
        text.get_text().rstrip("*").replace("−", "-")
        for text in axes.texts
        if not text.get_text().startswith("[")
    ]
    assert [float(n) for n in numbers] == pytest.approx(values.ravel(), abs=6e-4)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4", "12"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2"]


def test_differences_have_one_scale_around_zero(plain: BudgetReport) -> None:
    limits = {difference_figure(c, plain).axes[0].images[0].get_clim() for c in plain.comparisons}
    ((low, high),) = limits
    assert low == -high
    assert high == max(np.abs(c.difference).max() for c in plain.comparisons)


def test_curves_show_every_policy_and_budget(plain: BudgetReport) -> None:
    (axes,) = curves_figure(plain).axes
    curves = {tuple(line.get_ydata()) for line in axes.lines}
    assert curves == {
        tuple(cell.value for cell in one.pass_at[0]) for one in plain.policies.values()
    }
    for line in axes.lines:
        assert list(line.get_xdata()) == list(plain.t)
    assert len({line.get_color() for line in axes.lines}) == 3
    assert len({line.get_marker() for line in axes.lines}) == 3
    low, high = axes.get_ylim()
    ends = [cell for one in plain.policies.values() for cell in one.pass_at[0]]
    assert low <= min(cell.low for cell in ends)
    assert high >= max(cell.high for cell in ends)


def test_many_policies_have_a_panel_each(hostile: BudgetReport) -> None:
    assert len(hostile.policies) > MAX_OVERLAID
    figure = curves_figure(hostile)
    assert len(figure.axes) == len(hostile.policies)
    titles = {axes.get_title(loc="left") for axes in figure.axes}
    assert len(titles) == len(hostile.policies)


@pytest.mark.parametrize(("t", "k"), [((12,), (1, 2)), ((1, 4, 12), (1,)), ((12,), (1,))])
def test_one_k_or_one_t(make_trace: MakeTrace, t: tuple[int, ...], k: tuple[int, ...]) -> None:
    report = report_of(make_trace, ["alpha", "beta"], t=t, k=k)
    for figure in (
        curves_figure(report),
        surface_figure("alpha", report),
        difference_figure(report.comparisons[0], report),
    ):
        assert spread(figure) > 0
    x = {float(line.get_xdata()[0]) for line in curves_figure(report).axes[0].lines}
    assert len(x) == (1 if len(t) > 1 else 2), "points at one budget stand beside each other"
    parsed = Page(page(report))
    assert ("pass^(K,T)" in parsed.text.split("How the numbers")[0]) == (len(k) > 1)


def spread(figure: Figure) -> float:
    """How unlike the pixels of a figure are."""
    return float(imread(io.BytesIO(as_png(figure))).std())


def test_a_cell_without_a_value_says_so(make_trace: MakeTrace) -> None:
    traces = [
        make_trace(turns, id=f"{p}/{task}/{run}", task_id=str(task), policy=p, outcome=outcome)
        for p in "ab"
        for task in range(4)
        for run, turns in enumerate([1, 3])
        for outcome in [Outcome(success=task > 1, max_turns=turns)]
        if (p, task, turns) != ("a", 3, 3)
    ]
    report = budget_report(traces, BudgetOptions(resamples=200))
    holed = report.comparisons[0]._replace(difference=np.array([[0.5, np.nan]]))
    (axes,) = difference_figure(holed, report).axes
    assert [text.get_text() for text in axes.texts][2] == "–"
    assert "T = 3 is not defined" in verdict(holed, report)
    parsed = Page(page(report._replace(comparisons=[holed])))
    assert any(cell.text.startswith("– ") and "heat" in cell.classes for cell in parsed.cells)
    assert any("n = 3, 1 left out" in cell.text for cell in parsed.cells)


def a_minus_b(low: list[list[float]], high: list[list[float]]) -> Comparison:
    none = Estimate(0.0, 0.0, 0.0, 1, 0)
    ends = np.array(low), np.array(high)
    middle = (ends[0] + ends[1]) / 2
    return Comparison(
        "a", "b", 9, middle, *ends, middle, none, 1.0, 1.0, none, 0, 0, solved_p=1, solved_p_holm=1
    )


VERDICTS = [
    ([[-1, 0.1, 0.1]], [[1, 0.3, 0.3]], "T = 4, 12 survive in favour of a; T = 1 does not."),
    ([[-1, -1, -0.3]], [[1, 1, -0.1]], "T = 12 survives in favour of b; T = 1, 4 do not."),
    ([[0.1, 0.1, 0.1]], [[1, 1, 1]], "T = 1, 4, 12 survive in favour of a."),
    ([[-1, -1, -1]], [[1, 1, 1]], "no difference survives."),
    (
        [[0.1, -1, -1]],
        [[1, 1, -0.1]],
        "T = 1 survives in favour of a, T = 12 survives in favour of b; T = 4 does not.",
    ),
    (
        [[0.1, -1, -1], [-1, -1, -1]],
        [[1, 1, 1], [1, 1, 1]],
        "K = 1: T = 1 survives in favour of a; T = 4, 12 do not. K = 2: no difference survives.",
    ),
    (
        [[0.1, -1, -1], [0.2, -1, -1]],
        [[1, 1, 1], [1, 1, 1]],
        "K = 1, 2: T = 1 survives in favour of a; T = 4, 12 do not.",
    ),
]


@pytest.mark.parametrize(("low", "high", "said"), VERDICTS)
def test_a_sentence_says_what_survives(
    plain: BudgetReport, low: list[list[float]], high: list[list[float]], said: str
) -> None:
    report = plain._replace(k=plain.k[: len(low)])
    assert verdict(a_minus_b(low, high), report) == said


def test_the_page_of_hostile_names_is_inert(hostile: BudgetReport) -> None:
    source = page(hostile)
    parsed = Page(source)
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "b", "iframe", "object", "link", "base", "form", "svg"}
    for tag, attributes in parsed.tags:
        assert not any(attribute.startswith("on") for attribute in attributes), tag
        for attribute in ("src", "href"):
            if attribute in attributes:
                assert (attributes[attribute] or "").startswith("data:image/svg+xml;base64,")
    assert not re.search(r"url\(|@import", source)
    policy = next(a for tag, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in (policy["content"] or "")
    for name in HOSTILE[:-2]:
        assert name in parsed.text, "names are escaped, not lost"
    assert "a\\nb\\u202e\\ud800" in parsed.text
    assert "<b>hard</b>" in parsed.text
    source.encode()


def test_the_page_is_semantic(plain: BudgetReport) -> None:
    parsed = Page(page(plain))
    tags = [tag for tag, _ in parsed.tags]
    assert tags.count("h1") == tags.count("main") == 1
    assert tags.count("caption") == tags.count("table")
    assert all(a.get("alt") for tag, a in parsed.tags if tag == "img")
    assert all(
        a.get("scope") in ("col", "row", "rowgroup") for tag, a in parsed.tags if tag == "th"
    )


def test_recovery_is_a_section_of_the_page(make_trace: MakeTrace) -> None:
    traces = [
        make_trace(
            3,
            id=f"a/{task}/{run}",
            task_id=str(task),
            labels=[1.0, float(task > 2), 1.0],
            label="<i>good</i>",
            outcome=Outcome(success=(task + run) % 2 == 0, max_turns=5),
            meta={"hops": task % 2 + 1},
        )
        for task in range(6)
        for run in range(2)
    ]
    report = budget_report(traces, BudgetOptions(k=(1,), t=(1, 3, 5), resamples=200))
    recovery = recovery_report(traces, label="<i>good</i>", horizon_key="hops", resamples=200)
    parsed = Page(page(report, recovery))
    assert "<i>good</i>" in parsed.text
    assert "Errors and recovery" in parsed.text
    assert "Errors and recovery" not in Page(page(report)).text
    one = recovery.policies["agent"]
    for estimate in (*one.recovery_at_least, *one.first_error_at, *one.horizon, one.error_share):
        assert np.isnan(estimate.value) or shown(estimate.value) in parsed.text


def test_figure_files_are_safe_and_unique(hostile: BudgetReport) -> None:
    names = figure_names(hostile)
    n = len(hostile.policies)
    assert len(names) == 1 + n + min(n * (n - 1) // 2, MAX_PAIRS)
    assert len({name.casefold() for name in names}) == len(names)
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.png", name)
        assert Path(name).name == name
        assert len(name) < 200


def test_figures_are_written_whole_or_not_at_all(plain: BudgetReport, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "figures"
    paths = write_figures(plain, folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(figure_names(plain))
    for path in paths:
        assert imread(path).std() > 0
    (tmp_path / "curves.png").mkdir()
    with pytest.raises(PRMError, match="cannot be written"):
        write_figures(plain, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "new"]


def test_the_same_report_gives_the_same_bytes(plain: BudgetReport) -> None:
    assert page(plain) == page(plain)
    assert as_png(curves_figure(plain)) == as_png(curves_figure(plain))


def test_hostile_names_can_be_drawn(hostile: BudgetReport, make_trace: MakeTrace) -> None:
    svg = as_svg(curves_figure(report_of(make_trace, HOSTILE[:MAX_OVERLAID])))
    assert b"<script" not in svg
    assert b"http://x.test" not in re.sub(rb"<!--.*?-->", b"", svg)
    for policy in HOSTILE[MAX_OVERLAID:]:
        assert spread(surface_figure(policy, hostile)) > 0


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [5, 30])
def test_wrapping_keeps_every_character(name: str, width: int) -> None:
    lines = wrapped(name, width).split("\n")
    assert max(map(len, lines)) <= width
    if name.isascii() and name.isprintable() and " " not in name:
        assert "".join(lines) == name


def test_the_policies_of_the_real_logs_are_distinguished(real_traces: Path) -> None:
    from prm.data.files import read_traces

    traces: list[Trace] = list(read_traces(str(real_traces / "tau-bench/gpt-4o-airline.json.gz")))
    report = budget_report(traces, BudgetOptions(t=(8, 15, 20, 30), resamples=200))
    cells = Page(page(report)).cells
    heat = [cell.text.split()[0] for cell in cells if "heat" in cell.classes]
    # The published figures, rounded: Pass@(1,T), Pass@(4,T), then pass^K at the full budget.
    assert heat[:4] == ["0.210", "0.345", "0.415", "0.420"]
    assert heat[8:12] == ["0.320", "0.620", "0.720", "0.720"]
    assert heat[15::4] == ["0.420", "0.273", "0.200"]
