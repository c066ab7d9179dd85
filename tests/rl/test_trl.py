"""StepGRPOTrainer is TRL's GRPO in mode terminal, and puts advantages where steps are."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from trl import GRPOTrainer

import prm.rl.trl.rollouts
from prm.data.files import read_traces, write_traces
from prm.data.trace import Outcome, Trace
from prm.model.build import from_backbone
from prm.model.config import StepRewardConfig
from prm.model.predict import TraceScores
from prm.rl.rollout_record import Rollout, SamplingConfig
from prm.rl.trl import StepGRPOTrainer
from prm.rl.trl.rollouts import environment_reward
from prm.scoring.scorer import Scorer
from prm.shaping import Estimator, ShapingConfig, spans_from_mask
from tests.backbones import LENGTHS, write_backbone
from tests.rl.trl_runs import (
    DIALOGUE,
    advantages_of,
    gradients_of,
    noise,
    policy,
    sampled,
    settings,
    trained,
)


def gradients_of_stock(args: Any, reward: Any = environment_reward) -> torch.Tensor:
    """Of TRL's own trainer on the same rollouts."""
    rollouts = sampled()
    return gradients_of(
        GRPOTrainer, reward, args, train_dataset=rollouts.dataset(), rollout_func=rollouts
    )


def assert_same_gradients(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.abs().amax(1).min() > 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert ((found - expected).norm(dim=1) < 1e-5 * expected.norm(dim=1)).all()


# Gradients.


@pytest.mark.parametrize(
    "changed",
    [
        {"scale_rewards": "group", "max_steps": 2},
        {"scale_rewards": True, "loss_type": "grpo"},
        {"scale_rewards": "none", "loss_type": "dr_grpo"},
        {"scale_rewards": "batch", "loss_type": "bnpo"},
        {"scale_rewards": "group", "loss_type": "cispo"},
        {"scale_rewards": "group", "loss_type": "sapo"},
        {"scale_rewards": "batch", "loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "max_steps": 2},
        {"per_device_train_batch_size": 6, "steps_per_generation": 2, "max_steps": 3},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 1},
        {"num_iterations": 2, "max_steps": 2},
        {"mask_truncated_completions": True},
    ],
    ids=str,
)
def test_mode_terminal_has_the_gradient_of_the_stock_trainer(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    stock = gradients_of_stock(settings(tmp_path, **changed))
    ours = gradients_of(
        StepGRPOTrainer,
        args=settings(tmp_path, **changed),
        shaping=ShapingConfig(mode="terminal"),
        rollouts=sampled(),
    )
    assert_same_gradients(ours, stock)


def test_rewards_that_say_nothing_and_weights_are_as_in_the_stock_trainer(tmp_path: Path) -> None:
    def picky(rollout: Sequence[Rollout], **columns: Any) -> list[float | None]:
        return [float(r.trace.n_steps) if r.trace.meta["sample"] % 3 else None for r in rollout]

    def silent(rollout: Sequence[Rollout], **columns: Any) -> list[float | None]:
        return [0.5 if reward else None for reward in picky(rollout)]

    for function, weights, terminal_weight in (
        ([environment_reward, picky], [1.0, 0.3], 1.0),
        ([silent, picky], [2.0, 0.6], 1.0),
        ([silent, picky], [1.0, 0.3], 2.0),
    ):
        stock_weights = [terminal_weight * weight for weight in weights]
        stock = gradients_of_stock(
            settings(tmp_path, scale_rewards="group", reward_weights=stock_weights), function
        )
        ours = gradients_of(
            StepGRPOTrainer,
            function,
            settings(tmp_path, scale_rewards="group", reward_weights=weights),
            shaping=ShapingConfig(mode="terminal", terminal_weight=terminal_weight),
            rollouts=sampled(),
        )
        assert_same_gradients(ours, stock)


def test_equal_advantages_on_all_steps_are_those_of_the_stock_trainer(tmp_path: Path) -> None:
    """The sum of the scores of the steps, as a reward of the trajectory, with GRPO's estimator."""

    def reward(rollout: Sequence[Rollout], **columns: Any) -> list[float]:
        scores = noise([one.trace for one in rollout])
        outcomes = environment_reward(rollout)
        return [2 * o + 0.5 * s.actions.sum() for o, s in zip(outcomes, scores, strict=True)]

    stock = gradients_of_stock(settings(tmp_path, max_steps=2), reward)
    ours = gradients_of(
        StepGRPOTrainer,
        args=settings(tmp_path, max_steps=2),
        shaping=ShapingConfig(mode="sum", process_weight=0.5, terminal_weight=2.0),
        estimator="outcome",
        scorer=noise,
        rollouts=sampled(),
    )
    assert_same_gradients(ours, stock)


@pytest.mark.parametrize("mode", ["potential", "critic"])
def test_the_gradient_is_that_of_the_advantages_and_log_probabilities(
    tmp_path: Path, mode: Any
) -> None:
    """One rollout at a time, without padding, without TRL: -Σ A_i log π(step i) / tokens."""
    trainer = trained(settings(tmp_path), ShapingConfig(mode=mode), scorer=noise)
    found = gradients_of(
        StepGRPOTrainer,
        args=settings(tmp_path),
        shaping=ShapingConfig(mode=mode),
        scorer=noise,
        rollouts=sampled(),
    )
    model = policy()
    tokens = sum(int(rollout.token_mask.sum()) for rollout in trainer.sampled)
    for rollout, advantages in zip(
        trainer.sampled, advantages_of(trainer, ShapingConfig(mode=mode)), strict=True
    ):
        log_probs = full_pass(model, rollout, 1.2)
        steps = zip(rollout.spans, advantages, strict=True)
        torch.stack(
            [-advantage / tokens * log_probs[start:end].sum() for (start, end), advantage in steps]
        ).sum().backward()
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    assert_same_gradients(found, torch.cat(grads)[None])


def full_pass(model: torch.nn.Module, rollout: Rollout, temperature: float) -> torch.Tensor:
    """(L,) log-probabilities of the ids of a rollout; 0 for the first, which nothing predicts."""
    ids = torch.from_numpy(rollout.ids)[None]
    logits = model(input_ids=ids).logits[0, :-1] / temperature
    found: torch.Tensor = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return torch.cat([torch.zeros(1), found])


# Where advantages lie.


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("shaping", "estimator", "turn_limit"),
    [
        (ShapingConfig(mode="potential", process_weight=0.7), None, "end"),
        (ShapingConfig(mode="potential", gamma=0.9), None, "cut"),
        (ShapingConfig(mode="baseline", normalise="group"), None, "end"),
        (ShapingConfig(mode="critic", lam=0.5), None, "cut"),
        (ShapingConfig(mode="delta", terminal_weight=0.5), "index_mean", "end"),
        (ShapingConfig(mode="min_form"), "mt_grpo", "end"),
    ],
    ids=["potential", "cut", "normalised", "critic", "index_mean", "mt_grpo"],
)
def test_every_token_of_a_step_has_the_advantage_of_the_step(
    tmp_path: Path,
    shaping: ShapingConfig,
    estimator: Estimator | None,
    turn_limit: Any,
    seed: int,
) -> None:
    trainer = trained(
        settings(tmp_path, seed=seed),
        shaping,
        scorer=noise,
        estimator=estimator,
        turn_limit=turn_limit,
    )
    ((rows, output),) = trainer.batches
    kept = (output["completion_mask"] * output["tool_mask"]).bool()
    assert not output["advantages"][~kept].any()
    expected = advantages_of(
        trainer, shaping, cut=turn_limit == "cut", estimator=estimator or "alive_mean"
    )
    assert len({value for values in expected for value in values}) > 10
    for row, mask, laid, values in zip(rows, kept, output["advantages"], expected, strict=True):
        rollout = row["rollout"]
        cut = rollout.spans[0][0]
        spans = spans_from_mask(mask.numpy())
        assert spans == [(start - cut, end - cut) for start, end in rollout.spans]
        for (start, end), value in zip(spans, values, strict=True):
            np.testing.assert_allclose(laid[start:end], value, rtol=1e-6, atol=1e-7)


def test_what_is_masked_as_truncated_has_no_advantage(tmp_path: Path) -> None:
    args = settings(tmp_path, mask_truncated_completions=True)
    trainer = trained(args, ShapingConfig(mode="potential"), scorer=noise)
    ((rows, output),) = trainer.batches
    ends = DIALOGUE.stop_ids | {DIALOGUE.pad_id}
    truncated = torch.tensor([int(row["rollout"].ids[-1]) not in ends for row in rows])
    assert 0 < truncated.sum() < len(rows)
    assert not output["advantages"][truncated].any()
    assert output["advantages"][~truncated].any(1).all()


def test_the_sample_ends_in_all_ways(tmp_path: Path) -> None:
    """What the test above has seen: tests of varied rollouts hold only if they are varied."""
    found = [
        rollout
        for seed in range(4)
        for rollout in trained(settings(tmp_path, seed=seed), ShapingConfig("terminal")).sampled
    ]
    ends = Counter(rollout.trace.outcome.status for rollout in found)
    assert set(ends) == {"completed", "out_of_turns", "agent_error"}
    stopped = [r.ids[end - 1] in DIALOGUE.stop_ids for r in found for _, end in r.spans]
    assert 0 < sum(stopped) < len(stopped)
    assert {rollout.trace.n_steps for rollout in found} >= {1, 2, 3, 4}


# Log-probabilities.


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_what_is_sampled_from_is_what_is_differentiated(
    tmp_path: Path, temperature: float, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trained(settings(tmp_path, temperature=temperature), ShapingConfig("terminal"))
    assert max(trainer.logged("log_prob_difference")) < 1e-4
    assert not caplog.records
    model = policy().eval()
    for rollout in trainer.sampled:
        with torch.no_grad():
            exact = full_pass(model, rollout, temperature).numpy()
        written = rollout.token_mask
        np.testing.assert_allclose(rollout.log_probs[written], exact[written], atol=1e-4)


def test_another_distribution_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def tampered(temperature: float, *lengths: int) -> SamplingConfig:
        return SamplingConfig(1.5 * temperature, *lengths)

    monkeypatch.setattr(prm.rl.trl.rollouts, "SamplingConfig", tampered)
    trainer = trained(settings(tmp_path), ShapingConfig("terminal"))
    assert min(trainer.logged("log_prob_difference")) > 0.1
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "another temperature?" in warning.getMessage()


# Scores.


@pytest.mark.parametrize(
    "shaping", [ShapingConfig(mode="baseline"), ShapingConfig(mode="critic", lam=0.9)]
)
def test_a_step_reward_model_is_a_scorer(
    tmp_path: Path, shaping: ShapingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = write_backbone(tmp_path / "backbone", "llama")
    model = from_backbone(backbone, config=StepRewardConfig(encoding=LENGTHS))
    seen: list[Trace] = []
    trainer = trained(
        settings(tmp_path / "run"), shaping, scorer=Scorer(model), on_traces=seen.extend
    )
    assert [trace.id for trace in seen] == [rollout.trace.id for rollout in trainer.sampled]
    bare = [
        msgspec.structs.replace(rollout.trace, outcome=Outcome()) for rollout in trainer.sampled
    ]
    for trace, scored in zip(seen, Scorer(model).score(bare), strict=True):
        np.testing.assert_allclose(trace.step_scores("prm"), scored.step_scores("prm"), atol=1e-5)
        np.testing.assert_allclose(trace.states("prm"), scored.states("prm"), atol=1e-5)
    states = np.concatenate([trace.states("prm") for trace in seen])
    assert trainer.logged("score") == [pytest.approx(states.mean())]
    assert 0 < trainer.logged("process_share")[0] < 1
    write_traces(seen, tmp_path / "seen.jsonl")
    assert list(read_traces(tmp_path / "seen.jsonl")) == seen


def test_scorers_see_no_outcomes(tmp_path: Path) -> None:
    seen: list[Trace] = []

    def look(traces: Sequence[Trace]) -> list[TraceScores]:
        seen.extend(traces)
        return noise(traces)

    trained(settings(tmp_path), ShapingConfig("sum"), scorer=look)
    assert len(seen) == 12
    for trace in seen:
        # How many turns are allowed is known before the episode begins.
        assert trace.outcome == Outcome(max_turns=trace.outcome.max_turns)
        assert trace.outcome.max_turns is not None


def test_the_weight_of_the_process_follows_its_schedule(tmp_path: Path) -> None:
    shaping = ShapingConfig(
        mode="sum", process_weight=2.0, schedule="cosine", final_weight=0.5, normalise="group"
    )
    trainer = trained(settings(tmp_path, max_steps=4), shaping, scorer=noise)
    weights = [shaping.weight_at(step / 4) for step in range(4)]
    assert trainer.logged("process_weight") == weights
    assert weights[0] > weights[1] > weights[2] > weights[3] > 0.5
    traces = [rollout.trace for rollout in trainer.sampled]
    sums = np.array([scores.actions.sum() for scores in noise(traces)]).reshape(4, 12).mean(1)
    np.testing.assert_allclose(trainer.logged("process"), weights * sums)
