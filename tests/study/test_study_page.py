"""The page of a study: complete, inert, true to the numbers, and the same each time."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from prm.data.trace import Outcome, Step, Trace
from prm.eval.budget_report import budget_report
from prm.eval.budget_runs import BudgetOptions
from prm.eval.estimate import Estimate
from prm.eval.figure_parts import as_svg
from prm.eval.hacking import HackingReport, hacking_report
from prm.study.claims import claims, roles
from prm.study.config import BASE, BASE_HIDDEN, OPTIMUM, RANDOM, Arm, Budget, Evaluation
from prm.study.config import StudyConfig as Config
from prm.study.figures import (
    bases_of,
    changes_figure,
    hacking_figure,
    learning_figure,
    regret_figure,
    success_figure,
)
from prm.study.known import known_answers
from prm.study.learning import Learning
from prm.study.measures import MEASURES
from prm.study.page import page, write_report
from prm.study.report import StudyReport, Trained, regret_to_trained, traces_report
from prm.study.words import answer
from tests.eval.test_budget_page import Page
from tests.study.study_parts import TURNS, decisions, exact, measured, policies

MIX, SUM, HIDDEN = "<script>alert(1)</script>", "$\\frac{1}{2}, \u202e\n🚀", "h" * 90
FIXED = Budget(kind="fixed", turns=[14])
ARMS = [
    Arm(name="outcome", budget=FIXED),
    Arm(name="specialist & 6", budget=Budget(kind="fixed", turns=[6])),
    Arm(name=MIX, budget=Budget(kind="mix", turns=TURNS)),
    Arm(name="critic", budget=FIXED, shaping={"mode": "critic", "lam": 0.9}),
    Arm(name=SUM, budget=FIXED, shaping={"mode": "sum"}),
    Arm(name=HIDDEN, budget=FIXED, turns_shown=False),
]
FAILED = {"lost-s1": "ValueError: <b>it broke</b>"}
SECONDS = {"outcome-s0": 12.0, "outcome-s1": 14.0}


def learned(last_rise: float, turns: list[int]) -> Learning:
    rising = [0.1, 0.2, 0.3]
    return Learning(
        updates=[0.0, 1.0, 2.0],
        success=dict.fromkeys(turns, rising),
        score=[float("nan")] * 3,
        steps=[9.0, 8.0, 7.0],
        entropy=[0.4, 0.3, 0.2],
        process_share=[float("nan"), 0.25, 0.75],
        last_rise=last_rise,
    )


def watched(rng: np.random.Generator) -> HackingReport:
    traces = [
        Trace(
            id=f"{task}/{update}",
            task_id=str(task),
            messages=[{"role": "assistant", "content": "act"}] * 2,
            steps=[Step(at=at, scores={"prm": float(rng.random())}) for at in range(2)],
            outcome=Outcome(success=bool(rng.random() < 0.5)),
            meta={"update": update},
        )
        for task in range(6)
        for update in (0, 5)
    ]
    return hacking_report(traces, by="update", resamples=50)


def runs(names: list[str]) -> list[Trace]:
    """Runs at each T; the later the name, the better."""
    rng = np.random.default_rng(0)
    return [
        Trace(
            id=f"{name}/{t}/{task}/{sample}",
            task_id=str(task),
            policy=name,
            messages=[{"role": "assistant", "content": "act"}],
            steps=[Step(at=0)],
            outcome=Outcome(
                success=bool(rng.random() < t * (place + 1) / (20 * len(names))), max_turns=t
            ),
        )
        for place, name in enumerate(names)
        for t in TURNS
        for task in range(12)
        for sample in range(2)
    ]


def study(
    arms: list[Arm],
    *,
    failed: dict[str, str] = FAILED,
    seconds: dict[str, float] = SECONDS,
) -> StudyReport:
    config = Config(arms=arms, seeds=[0, 1], evaluation=Evaluation(turns=tuple(TURNS)))
    names = [OPTIMUM, RANDOM, BASE, BASE_HIDDEN, *(arm.name for arm in arms)]
    success = {
        name: {6: 0.02 * place, 8: 0.03 * place, 14: 0.05 * place}
        for place, name in enumerate(names)
    }
    found = policies(
        {
            name: [exact() if name == OPTIMUM else measured(success[name], seed=place)]
            for place, name in enumerate(names)
        },
        {name: [decisions(0.06 * place, 0.5, seed=place)] for place, name in enumerate(names)},
    )
    parts = roles(config, found.names)
    scored = [arm for arm in arms if arm.shaping]
    curves = {arm.name: learned(0.05 * (arm.name == "critic"), arm.budget.turns) for arm in arms}
    trained = Trained(
        config=config,
        roles=parts,
        policies=found,
        claims=claims(config, found),
        known=known_answers(config, found),
        learned=curves,
        watched={arm.name: watched(np.random.default_rng(7)) for arm in scored},
        failed=failed,
        seconds=seconds,
    )
    options = BudgetOptions(
        source="rerun", k=(1, 2), primary=(1, 8), against=parts.outcome, resamples=100
    )
    budget = budget_report(runs(names), options)
    return StudyReport(answer(found, parts, parts, curves, (1, 8)), budget, trained)


@pytest.fixture(scope="module")
def report() -> StudyReport:
    return study(ARMS)


@pytest.fixture(scope="module")
def trained(report: StudyReport) -> Trained:
    assert report.trained is not None
    return report.trained


@pytest.fixture(scope="module")
def source(report: StudyReport) -> str:
    return page(report)


@pytest.fixture(scope="module")
def read(source: str) -> Page:
    return Page(source)


def in_words(text: str) -> str:
    """As it is shown: with what moves the cursor escaped."""
    return text.replace("\u202e", "\\u202e").replace("\n", "\\n")


def test_nothing_of_the_data_acts_and_nothing_is_loaded(source: str, read: Page) -> None:
    allowed = {"bdi", "body", "caption", "code", "dd", "details", "div", "dl", "dt", "em", "figure"}
    allowed |= {"figcaption", "h1", "h2", "head", "header", "html", "img", "li", "main", "meta"}
    allowed |= {"p", "pre", "section", "small", "span", "strong", "style", "summary", "table"}
    allowed |= {"tbody", "td", "th", "thead", "title", "tr", "ul", "wbr"}
    assert {tag for tag, _ in read.tags} <= allowed
    for _, attributes in read.tags:
        assert not {"href", "srcset", "data"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("src") or "data:").startswith("data:")
    assert "url(" not in source
    assert "\u202e" not in source
    assert "<b>it broke</b>" in read.text
    source.encode()


def test_every_policy_and_every_claim_is_there(
    report: StudyReport, trained: Trained, read: Page
) -> None:
    for name in trained.policies.names:
        assert in_words(name) in read.text
    assert {claim.letter for claim in trained.claims} == set("abcdef")
    for claim in trained.claims:
        assert in_words(f"({claim.letter}) {claim.text} – {claim.verdict}") in read.text
        assert in_words(claim.exact) in read.text
        for tested in claim.numbers:
            assert in_words(tested.label) in read.text
    for sentence in (*report.answer, *report.budget.notes):
        assert in_words(sentence) in read.text
    for watch in trained.watched.values():
        assert watch.verdict() in read.text


def test_an_arm_that_failed_is_named_with_its_reason(trained: Trained, read: Page) -> None:
    assert "lost-s1: ValueError: <b>it broke</b>" in read.text
    assert "Failed" in read.text
    assert "Failed" not in page(study(ARMS[:2], failed={}))


def test_every_number_of_the_study_is_on_the_page(
    report: StudyReport, trained: Trained, read: Page
) -> None:
    estimates: list[Estimate] = [n.estimate for claim in trained.claims for n in claim.numbers]
    for name in trained.policies.names:
        for measure in MEASURES.values():
            estimates += trained.policies.estimate(name, measure)
        to_trained = regret_to_trained(trained, name)
        assert set(to_trained) == {6, 14}
        estimates += [one for t, one in to_trained.items() if trained.roles.specialists[t] != name]
    for comparison in report.budget.comparisons:
        estimates += [comparison.primary, comparison.area]
        assert f"{comparison.primary_p_holm:.3g}" in read.text
    for estimate in estimates:
        for value in estimate[:3]:
            assert np.isnan(value) or f"{abs(value):.3f}" in read.text, estimate


def test_the_same_report_gives_the_same_bytes(report: StudyReport, source: str) -> None:
    assert page(report) == source
    slower = page(study(ARMS, seconds={"outcome-s0": 99.0}))
    first, _, last = source.partition("Settings of the study")
    assert slower.startswith(first)
    assert "26 seconds in all" in last
    assert "99 seconds in all" in slower


def test_arms_have_panels_and_policies_have_rows(trained: Trained) -> None:
    arms = [arm.name for arm in ARMS]
    for key, figure in (("success", success_figure(trained)), ("regret", regret_figure(trained))):
        assert len(figure.axes) == len(arms)
        for arm, axes in zip(arms, figure.axes, strict=True):
            own = [one.value for one in trained.policies.estimate(arm, MEASURES[key])]
            (line,) = [line for line in axes.lines if line.get_marker() == "o"]
            assert np.asarray(line.get_ydata()).tolist() == own
            assert np.asarray(line.get_xdata()).tolist() == TURNS
    for axes in changes_figure(trained).axes:
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert len(dots) == len(trained.policies.names)
        assert len({np.asarray(dot.get_ydata()).item() for dot in dots}) == len(dots)
    assert len(hacking_figure(trained).axes) == 2


def test_a_panel_says_that_an_arm_was_still_learning(trained: Trained, read: Page) -> None:
    titles = [axes.get_title(loc="left") for axes in learning_figure(trained).axes]
    assert [title for title in titles if "still rising" in title] == ["critic\nstill rising, +0.05"]
    assert [len(axes.lines) for axes in learning_figure(trained).axes] == [1, 1, 3, 1, 1, 1]
    assert sum("still rising" in cell.text for cell in read.cells) == 1


def test_arms_are_set_against_the_base_they_started_from(trained: Trained) -> None:
    bases = bases_of(trained)
    assert bases.pop(HIDDEN) == BASE_HIDDEN
    assert set(bases.values()) == {BASE}
    assert len(bases) == len(ARMS) - 1


def test_without_a_reference_pairs_are_compared(trained: Trained) -> None:
    text = Page(page(study([ARMS[2]]))).text
    assert in_words(f"{MIX} − {RANDOM}") in text
    assert "Claims" not in text
    assert "Regret to the trained specialists" not in text


def test_runs_of_unknown_training_give_the_answer_and_the_budget_part(tmp_path: Path) -> None:
    report = traces_report(runs([MIX, "b"]), BudgetOptions(source="rerun", k=(1,), resamples=50))
    text = Page(page(report)).text
    assert MIX in text
    for sentence in report.answer:
        assert sentence in text
    for heading in ("Robustness to the budget", "Turns paid for each success", "Comparisons"):
        assert heading in text
    for word in ("desk", "Learning", "Hacking", "Claims", "Regret to", "Settings"):
        assert word not in text
    write_report(report, tmp_path)
    assert {"report.json", "report.html", "curves.png"} <= {p.name for p in tmp_path.iterdir()}


def test_all_files_are_written(report: StudyReport, source: str, tmp_path: Path) -> None:
    write_report(report, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    figures = {"success.png", "regret.png", "changes.png", "learning.png", "hacking.png"}
    assert names == {"report.json", "report.html", *figures}
    assert (tmp_path / "report.html").read_text() == source
    assert (tmp_path / "report.json").read_text() == report.as_text()
    for name in figures:
        assert imread(tmp_path / name).std() > 0


def test_a_figure_is_inert_and_the_same_each_time(trained: Trained) -> None:
    svg = as_svg(changes_figure(trained))
    assert svg == as_svg(changes_figure(trained))
    assert b"<script" not in svg
    assert not re.search(rb"(href|src)=\"http", svg)
