"""Step rewards: telescoping, returns, nulls, padding, torch beside NumPy, and refusals.

Each mode is held to what its paper promises about sums and returns, not to its formula.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prm.errors import PRMError
from prm.shaping.config import Mode, ShapingConfig
from prm.shaping.modes import (
    clip_delta_rewards,
    clip_rewards,
    delta_rewards,
    min_form_rewards,
    potential_rewards,
    progress_rewards,
    step_rewards,
    sum_rewards,
)

MODES: tuple[Mode, ...] = get_args(Mode)
NAN = math.nan
Floats = np.ndarray[Any, np.dtype[np.float64]]

scores = st.floats(0, 1)
maybe_scores = st.one_of(scores, st.just(NAN))
gammas = st.sampled_from([0.0, 0.5, 0.9, 1.0])


def lists(elements: st.SearchStrategy[float], min_size: int = 1) -> st.SearchStrategy[Floats]:
    return st.lists(elements, min_size=min_size, max_size=7).map(np.array)


def last_known(values: Floats, *, otherwise: float) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else otherwise


class Batch(NamedTuple):
    """B traces of different lengths with null scores, padded with what must not matter."""

    action_scores: Any
    state_scores: Any
    terminal_reward: Any
    terminated: Any
    step_mask: Any


def batch(seed: int, *, n_traces: int = 6, n_steps: int = 5, nulls: bool = True) -> Batch:
    rng = np.random.default_rng(seed)
    n = rng.integers(1, n_steps + 1, n_traces)
    n[:2] = 1, n_steps
    actions = rng.uniform(size=(n_traces, n_steps))
    states = rng.uniform(size=(n_traces, n_steps + 1))
    if nulls:
        actions[rng.uniform(size=actions.shape) < 0.3] = NAN
        states[rng.uniform(size=states.shape) < 0.3] = NAN
    step_mask = np.arange(n_steps) < n[:, None]
    padding = np.array([NAN, np.inf, -np.inf, 7.0])
    actions = np.where(step_mask, actions, rng.choice(padding, actions.shape))
    state_mask = np.arange(n_steps + 1) <= n[:, None]
    states = np.where(state_mask, states, rng.choice(padding, states.shape))
    return Batch(actions, states, rng.normal(size=n_traces), rng.random(n_traces) < 0.5, step_mask)


def configured(mode: Mode) -> ShapingConfig:
    return ShapingConfig(mode=mode, process_weight=0.7, terminal_weight=1.3, gamma=0.9)


def to_torch(given: Batch) -> Batch:
    return Batch(*(torch.from_numpy(array) for array in given))


# --- Potential -----------------------------------------------------------------------------------


@given(lists(maybe_scores, min_size=2), st.booleans(), gammas, st.sampled_from([0.0, -2.0]))
def test_potential_rewards_sum_to_what_the_first_and_the_last_state_say(
    phi: Floats, terminated: bool, gamma: float, low: float
) -> None:
    rewards = potential_rewards(phi, None, terminated, gamma, low=low)
    n_steps = len(phi) - 1
    first = low if np.isnan(phi[0]) else phi[0]
    last = 0.0 if terminated else last_known(phi, otherwise=low)
    assert rewards.shape == (n_steps,)
    total = float(np.sum(gamma ** np.arange(n_steps) * rewards))
    assert total == pytest.approx(gamma**n_steps * last - first, abs=1e-12)


@given(lists(scores, min_size=3), st.data(), gammas)
def test_the_return_of_a_finished_trace_moves_by_its_own_state_alone(
    phi: Floats, data: st.DataObject, gamma: float
) -> None:
    config = ShapingConfig(process_weight=0.5, gamma=gamma)
    step = data.draw(st.integers(0, len(phi) - 2))
    other = data.draw(lists(scores, min_size=len(phi)))[: len(phi)]
    other[step] = phi[step]
    one, two = (
        step_rewards(config, state_scores=states, terminal_reward=1.0, terminated=True)
        for states in (phi, other)
    )
    assert one.returns[step] == pytest.approx(two.returns[step], abs=1e-12)


def test_a_true_end_zeroes_the_potential_and_a_cut_keeps_it() -> None:
    phi = np.array([0.25, 0.5, 0.75])
    assert potential_rewards(phi, None, True, 1.0).tolist() == [0.25, -0.5]
    assert potential_rewards(phi, None, False, 1.0).tolist() == [0.25, 0.25]


def test_no_potential_is_made_up_for_the_end_of_one_trace_by_another() -> None:
    phi = np.full((2, 4), 0.5)
    mask = np.array([[True, True, True], [True, False, False]])
    ended = np.array([False, True])
    rewards = potential_rewards(phi, mask, ended, 1.0)
    assert rewards.tolist() == [[0.0, 0.0, 0.0], [-0.5, 0.0, 0.0]]


def test_a_loop_through_the_same_states_earns_nothing() -> None:
    phi = np.array([0.2, 0.9, 0.2, 0.9, 0.2])
    assert potential_rewards(phi, None, False, 1.0).sum() == pytest.approx(0, abs=1e-15)


def test_a_leading_null_is_the_lower_end_of_the_score_range() -> None:
    config = ShapingConfig(score_range=(-1.0, 1.0))
    phi = np.array([NAN, NAN, 0.5])
    shaped = step_rewards(config, state_scores=phi, terminal_reward=0.0, terminated=False)
    assert shaped.process.tolist() == [0.0, 1.5]


# --- Progress, sum, clip, delta, min form ---------------------------------------------------------


@given(lists(maybe_scores))
def test_progress_sums_to_the_last_known_score(p: Floats) -> None:
    assert progress_rewards(p, None).sum() == pytest.approx(last_known(p, otherwise=0), abs=1e-12)


@given(scores, st.integers(1, 6))
def test_progress_pays_nothing_for_repeating_a_step(score: float, repeats: int) -> None:
    assert not progress_rewards(np.full(1 + repeats, score), None)[1:].any()


@given(lists(maybe_scores), scores)
def test_sum_pays_for_each_extra_step_and_nothing_for_an_unscored_one(
    p: Floats, extra: float
) -> None:
    total = sum_rewards(p, None).sum()
    assert sum_rewards(np.append(p, extra), None).sum() == pytest.approx(total + extra, abs=1e-12)
    assert sum_rewards(np.append(p, NAN), None)[-1] == 0


@given(lists(maybe_scores), scores)
def test_clip_never_pays_and_charges_the_shortfall(p: Floats, eta: float) -> None:
    rewards = clip_rewards(p, None, eta)
    assert (rewards <= 0).all()
    assert not rewards[np.isnan(p)].any()
    assert not clip_rewards(np.full(3, eta), None, eta).any()
    np.testing.assert_allclose((p - rewards)[p < eta], eta, atol=1e-12)


@given(lists(maybe_scores))
def test_the_return_of_a_delta_step_is_its_own_score(p: Floats) -> None:
    to_go = np.cumsum(delta_rewards(p, None)[::-1])[::-1]
    own = [last_known(p[: step + 1], otherwise=0.0) for step in range(len(p) - 1)]
    np.testing.assert_allclose(to_go, [*own, 0.0], atol=1e-12)


@given(lists(scores), st.floats(-2, 2))
def test_delta_leaves_the_outcome_alone_on_the_last_step(p: Floats, reward: float) -> None:
    config = ShapingConfig(mode="delta")
    shaped = step_rewards(config, action_scores=p, terminal_reward=reward, terminated=True)
    np.testing.assert_allclose(shaped.returns, [*(p[:-1] + reward), reward], atol=1e-12)


@given(lists(maybe_scores), scores)
def test_clip_delta_returns_are_clipped_scores(p: Floats, eta: float) -> None:
    to_go = np.cumsum(clip_delta_rewards(p, None, eta)[::-1])[::-1]
    assert (to_go <= 1e-12).all()
    scored = ~np.isnan(p[:-1])
    clipped = clip_rewards(p[:-1], None, eta)
    np.testing.assert_allclose(to_go[:-1][scored], clipped[scored], atol=1e-12)


def test_clip_delta_charges_nothing_before_the_first_score_and_carries_it_after() -> None:
    rewards = clip_delta_rewards(np.array([NAN, 0.25, NAN, 1.0]), None, 0.5)
    assert np.cumsum(rewards[::-1])[::-1].tolist() == [0.0, -0.25, -0.25, 0.0]


@given(lists(maybe_scores))
def test_min_form_tends_to_the_minimum(p: Floats) -> None:
    known = p[~np.isnan(p)]
    lowest = known.min() if len(known) else 0.0
    gaps = [abs(min_form_rewards(p, None, t).sum() - lowest) for t in (1e-1, 1e-2, 1e-3, 1e-12)]
    assert all(late <= early + 1e-12 for early, late in itertools.pairwise(gaps))
    assert gaps[-1] < 1e-9


@given(lists(scores))
def test_min_form_tends_to_the_mean_when_hot(p: Floats) -> None:
    assert min_form_rewards(p, None, 1e9).sum() == pytest.approx(p.mean(), abs=1e-6)


@given(lists(maybe_scores, min_size=2))
def test_min_form_is_the_same_without_its_unscored_steps(p: Floats) -> None:
    rewards = min_form_rewards(p, None, 0.1)
    assert not rewards[np.isnan(p)].any()
    if (scored := ~np.isnan(p)).any():
        alone = min_form_rewards(p[scored], None, 0.1)
        np.testing.assert_allclose(rewards[scored], alone, atol=1e-12)


def test_min_form_is_the_softmax_of_its_paper() -> None:
    p = batch(0, nulls=False).action_scores[1]
    expected = torch.softmax(torch.from_numpy(-p / 0.3), 0).numpy() * p
    np.testing.assert_allclose(min_form_rewards(p, None, 0.3), expected, atol=1e-12)


# --- What all modes share -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_padded_batch_is_its_traces_one_by_one(mode: Mode) -> None:
    for seed in range(5):
        given = batch(seed)
        shaped = step_rewards(configured(mode), **given._asdict())
        assert shaped.rewards.dtype == np.float64
        for row, n in enumerate(given.step_mask.sum(axis=1)):
            alone = step_rewards(
                configured(mode),
                action_scores=given.action_scores[row, :n],
                state_scores=given.state_scores[row, : n + 1],
                terminal_reward=float(given.terminal_reward[row]),
                terminated=bool(given.terminated[row]),
            )
            assert alone.step_mask.all()
            for whole, one in zip(shaped[:3], alone[:3], strict=True):
                np.testing.assert_allclose(whole[row, :n], one, rtol=0, atol=1e-12)
                assert not whole[row, n:].any()


@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_leading_axes(mode: Mode) -> None:
    given = batch(3)
    flat = step_rewards(configured(mode), **given._asdict())
    folded = Batch(*(array.reshape(2, 3, *array.shape[1:]) for array in given))
    shaped = step_rewards(configured(mode), **folded._asdict())
    for one, other in zip(shaped, flat, strict=True):
        np.testing.assert_array_equal(one.reshape(other.shape), other)


@pytest.mark.parametrize("mode", MODES)
def test_torch_gives_the_numbers_of_numpy(mode: Mode) -> None:
    for seed in range(5):
        ours = step_rewards(configured(mode), **batch(seed)._asdict())
        theirs = step_rewards(configured(mode), **to_torch(batch(seed))._asdict())
        for one, other in zip(ours[:3], theirs[:3], strict=True):
            assert isinstance(other, torch.Tensor)
            assert other.dtype == torch.float64
            np.testing.assert_allclose(other.numpy(), one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_half_precision_scores_are_summed_in_float64(mode: Mode) -> None:
    given = to_torch(batch(1))
    low = given._replace(
        action_scores=given.action_scores.to(torch.bfloat16),
        state_scores=given.state_scores.to(torch.bfloat16),
    )
    widened = low._replace(
        action_scores=low.action_scores.double(), state_scores=low.state_scores.double()
    )
    one, other = (step_rewards(configured(mode), **b._asdict()).returns for b in (low, widened))
    assert one.dtype == torch.float64
    assert torch.equal(one, other)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_flow_through_torch(mode: Mode) -> None:
    given = to_torch(batch(2))
    present = [(values >= 0) & (values <= 1) for values in given[:2]]

    def returns(*known: Any) -> Any:
        actions, states = (
            values.masked_scatter(mask, numbers)
            for values, mask, numbers in zip(given, present, known, strict=False)
        )
        changed = given._replace(
            action_scores=actions, state_scores=states, terminal_reward=known[2]
        )
        return step_rewards(configured(mode), **changed._asdict()).returns

    known = [values[mask] for values, mask in zip(given, present, strict=False)]
    inputs = [numbers.requires_grad_() for numbers in (*known, given.terminal_reward)]
    assert torch.autograd.gradcheck(returns, inputs)


@pytest.mark.parametrize("mode", MODES)
def test_nulls_and_padding_leave_no_nan_in_gradients(mode: Mode) -> None:
    given = to_torch(batch(2))
    leaves = [given.action_scores, given.state_scores, given.terminal_reward]
    for leaf in leaves:
        leaf.requires_grad_()
    step_rewards(configured(mode), **given._asdict()).returns.sum().backward()
    assert given.terminal_reward.grad.all()
    for leaf in leaves:
        assert leaf.grad is None or torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize("mode", MODES)
def test_rewards_are_what_returns_lose_from_step_to_step(mode: Mode) -> None:
    shaped = step_rewards(configured(mode), **batch(4)._asdict())
    following = np.pad(shaped.returns, ((0, 0), (0, 1)))[:, 1:]
    np.testing.assert_allclose(shaped.returns - 0.9 * following, shaped.rewards, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_the_outcome_is_paid_once_and_on_the_last_step(mode: Mode) -> None:
    given = batch(5)
    shaped = step_rewards(configured(mode), **given._asdict())
    paid = shaped.rewards - shaped.process
    for row, n in enumerate(given.step_mask.sum(axis=1)):
        assert paid[row, n - 1] == pytest.approx(1.3 * given.terminal_reward[row], abs=1e-12)
        np.testing.assert_allclose(np.delete(paid[row], n - 1), 0, atol=1e-12)


def test_each_mode_pays_by_its_own_rule_and_its_own_settings() -> None:
    given = batch(8)
    p, mask = given.action_scores, given.step_mask
    by_rule = {
        ShapingConfig(mode="progress"): progress_rewards(p, mask),
        ShapingConfig(mode="sum"): sum_rewards(p, mask),
        ShapingConfig(mode="clip", eta=0.8): clip_rewards(p, mask, 0.8),
        ShapingConfig(mode="delta"): delta_rewards(p, mask),
        ShapingConfig(mode="clip_delta", eta=0.8): clip_delta_rewards(p, mask, 0.8),
        ShapingConfig(mode="min_form", temperature=0.3): min_form_rewards(p, mask, 0.3),
        ShapingConfig(mode="potential", gamma=0.8): potential_rewards(
            given.state_scores, mask, given.terminated, 0.8
        ),
    }
    for config, expected in by_rule.items():
        shaped = step_rewards(config, **given._asdict())
        np.testing.assert_array_equal(shaped.process, expected)
    assert len({tuple(rewards.ravel()) for rewards in by_rule.values()}) == len(by_rule)


@pytest.mark.parametrize("mode", ["terminal", "baseline", "critic"])
def test_modes_that_act_on_advantages_pay_the_outcome_alone(mode: Mode) -> None:
    assert not step_rewards(configured(mode), **batch(6)._asdict()).process.any()


@pytest.mark.parametrize("mode", set(MODES) - {"terminal", "baseline", "critic"})
def test_the_weight_of_the_schedule_multiplies_the_process_alone(mode: Mode) -> None:
    given = batch(7)
    config = ShapingConfig(mode=mode, process_weight=2.0, final_weight=0.5, schedule="linear")
    full = step_rewards(ShapingConfig(mode=mode), **given._asdict())
    assert full.process.any()
    for progress, weight in ((0.0, 2.0), (0.5, 1.25), (1.0, 0.5)):
        shaped = step_rewards(config, **given._asdict(), progress=progress)
        np.testing.assert_allclose(shaped.process, weight * full.process, atol=1e-12)
        outcome = full.rewards - full.process
        np.testing.assert_allclose(shaped.rewards - shaped.process, outcome, atol=1e-12)


def test_terminal_needs_no_scores_but_a_number_of_steps() -> None:
    config = ShapingConfig(mode="terminal", gamma=0.5)
    mask = np.array([[True, True, False], [True, True, True]])
    shaped = step_rewards(
        config,
        terminal_reward=np.array([1, -1]),
        terminated=np.array([True, False]),
        step_mask=mask,
    )
    assert shaped.returns.tolist() == [[0.5, 1.0, 0.0], [-0.25, -0.5, -1.0]]


# --- Refusals -------------------------------------------------------------------------------------


def shape_two_traces(mode: Mode = "potential", **changes: Any) -> None:
    given = batch(0)._replace(
        action_scores=np.full((2, 3), 0.5),
        state_scores=np.full((2, 4), 0.5),
        terminal_reward=np.ones(2),
        terminated=np.array([True, False]),
        step_mask=np.array([[True, True, True], [True, False, False]]),
    )
    step_rewards(ShapingConfig(mode=mode), **{**given._asdict(), **changes})


def at(shape: tuple[int, int], place: tuple[int, int], value: float) -> Floats:
    array = np.full(shape, 0.5)
    array[place] = value
    return array


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"state_scores": at((2, 4), (1, 1), 1.5)},
        "state score 1 of trace 1 is 1.5: expected score_range 0 to 1, or NaN",
    ),
    (
        {"mode": "sum", "action_scores": at((2, 3), (0, 2), -0.1)},
        "action score 2 of trace 0 is -0.1: expected score_range 0 to 1, or NaN",
    ),
    (
        {"mode": "clip", "action_scores": at((2, 3), (1, 0), np.inf)},
        "action score 0 of trace 1 is inf: expected score_range 0 to 1",
    ),
    ({"state_scores": None}, "mode 'potential' needs state scores, found none"),
    ({"mode": "delta", "action_scores": None}, "mode 'delta' needs action scores, found none"),
    (
        {"terminal_reward": np.array([1.0, NAN])},
        "terminal_reward of trace 1 is nan: expected a finite number: .* not a failure",
    ),
    (
        {"terminal_reward": 1.0},
        "terminal_reward: expected one value for each trace, shape \\(2,\\)",
    ),
    ({"terminated": np.array([1, 0])}, "terminated: expected booleans, found int64"),
    ({"terminated": np.array([True])}, "terminated: expected one value for each trace"),
    (
        {"step_mask": np.array([[True, True, True], [True, False, True]])},
        "step_mask of trace 1: step 2 is there and step 1 is not",
    ),
    (
        {"step_mask": np.array([[True, True, True], [False, False, False]])},
        "step_mask of trace 1 has no step: there is none to carry its terminal reward",
    ),
    ({"step_mask": np.ones((2, 3))}, "step_mask: expected booleans, found float64"),
    ({"step_mask": np.ones((2, 2), bool)}, "step_mask: expected shape \\(2, 3\\)"),
    ({"state_scores": np.full((2, 3), 0.5)}, "step_mask: expected shape \\(2, 2\\) beside state"),
    ({"action_scores": [0.5]}, "expected NumPy arrays or torch tensors, .* found list"),
    ({"progress": 2.0}, "progress 2.0: expected the share of training done"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD, ids=[sentence[:25] for _, sentence in BAD])
def test_bad_input_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    shape_two_traces()
    with pytest.raises(PRMError, match=sentence) as caught:
        shape_two_traces(**changes)
    assert "\n" not in str(caught.value)


def test_a_trace_without_steps_is_refused() -> None:
    nothing: dict[str, Any] = {"terminal_reward": 1.0, "terminated": True}
    with pytest.raises(PRMError, match="a trace without steps"):
        step_rewards(ShapingConfig(), state_scores=np.array([0.5]), **nothing)
    with pytest.raises(PRMError, match="how many steps are there"):
        step_rewards(ShapingConfig(mode="terminal"), **nothing)


def test_arrays_of_two_kinds_are_refused() -> None:
    with pytest.raises(PRMError, match="all of one kind, found Tensor, ndarray"):
        shape_two_traces(action_scores=torch.full((2, 3), 0.5))


def test_an_infinite_score_is_refused_by_the_pure_functions_too() -> None:
    with pytest.raises(PRMError, match="action score 1 is infinite"):
        sum_rewards(np.array([0.5, np.inf]), None)
    with pytest.raises(PRMError, match="state score 0 of trace 1 is infinite"):
        potential_rewards(at((2, 3), (1, 0), -np.inf), None, np.array([True, True]), 1.0)


def test_the_room_does_not_load_torch() -> None:
    code = (
        "import sys, numpy as np, prm.shaping.modes as m; m.sum_rewards(np.ones(2), None);"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
