"""Rollouts of an environment in TRL: budgets, seeds, checkpoints, evaluation, broken episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from prm.data.trace import Message, Trace
from prm.rl.budgets import BudgetCurriculum, BudgetMix, turns_of
from prm.rl.desk.world import shortest
from prm.rl.environment import BrokenEpisodes, Reset, Transition
from prm.rl.rollout_record import Rollout
from prm.shaping import ShapingConfig
from tests.rl.trl_runs import (
    GROUP,
    TASKS,
    Lottery,
    Watched,
    advantages_of,
    noise,
    policy,
    sampled,
    settings,
    trained,
    watched,
)


def limits_of(trainer: Watched) -> list[int]:
    """T of each group of rollouts."""
    found = [rollout.trace.outcome.max_turns for rollout in trainer.sampled]
    for first in range(0, len(found), GROUP):
        assert len({*found[first : first + GROUP]}) == 1
    return [limit for limit in found[::GROUP] if limit is not None]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Four updates of two batches of rollouts, saved after the second."""
    folder = tmp_path_factory.mktemp("long")
    return trained(long_settings(folder), ShapingConfig(mode="baseline"), scorer=noise)


def long_settings(folder: Path, **changed: Any) -> Any:
    plain = {
        "max_steps": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 1,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    return settings(folder, **plain | changed)


def test_budgets_are_those_of_groups_and_are_kept(long_run: Watched) -> None:
    limits = limits_of(long_run)
    assert set(limits) == {2, 5}
    assert len(limits) == 8 * 3
    for rollout in long_run.sampled:
        assert rollout.trace.n_steps <= (rollout.trace.outcome.max_turns or 0)


def test_no_sample_is_used_twice(long_run: Watched) -> None:
    samples = [rollout.trace.meta["sample"] for rollout in long_run.sampled]
    assert len({*samples}) == len(samples)


@pytest.mark.parametrize("mode", ["terminal", "sum"])
def test_budgets_and_first_rollouts_are_the_same_in_all_modes(
    tmp_path: Path, mode: Any, long_run: Watched
) -> None:
    args = long_settings(tmp_path, save_strategy="no")
    other = trained(args, ShapingConfig(mode=mode), scorer=noise)
    assert limits_of(other) == limits_of(long_run)
    assert same_rollouts(other.sampled[:12], long_run.sampled[:12])
    assert not same_rollouts(other.sampled, long_run.sampled)


def same_rollouts(a: Sequence[Rollout], b: Sequence[Rollout]) -> bool:
    return len(a) == len(b) and all(
        x.trace == y.trace and np.array_equal(x.ids, y.ids) for x, y in zip(a, b, strict=True)
    )


def test_budgets_follow_the_seed(tmp_path: Path, long_run: Watched) -> None:
    args = long_settings(tmp_path, save_strategy="no", seed=4)
    assert limits_of(trained(args, ShapingConfig("terminal"))) != limits_of(long_run)


def test_a_run_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(long_run: Watched) -> None:
    folder = Path(long_run.args.output_dir)
    trainer = watched(long_settings(folder), ShapingConfig(mode="baseline"), scorer=noise)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert len(trainer.batches) == 4
    assert same_rollouts(trainer.sampled, long_run.sampled[-len(trainer.sampled) :])
    for a, b in zip(trainer.model.parameters(), long_run.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    args = settings(tmp_path, max_steps=5, save_strategy="steps", save_steps=3)
    whole = trained(args, ShapingConfig("terminal"))
    assert whole.state.epoch == 2.5
    trainer = watched(args, ShapingConfig("terminal"))
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same_rollouts(trainer.sampled, whole.sampled[3 * 12 :])


def test_a_curriculum_follows_the_updates(tmp_path: Path) -> None:
    rollouts = sampled(budget=BudgetCurriculum([1, 2, 4], every=1))
    args = settings(tmp_path, max_steps=4)
    trainer = trained(args, ShapingConfig("terminal"), rollouts=rollouts)
    assert limits_of(trainer) == [1] * 3 + [2] * 3 + [4] * 6


def test_a_curriculum_by_progress_reaches_its_last_cap(tmp_path: Path) -> None:
    rollouts = sampled(budget=BudgetCurriculum([1, 3]))
    args = settings(tmp_path, max_steps=4)
    trainer = trained(args, ShapingConfig("terminal"), rollouts=rollouts)
    assert limits_of(trainer) == [1] * 6 + [3] * 6


class Told(BudgetMix):
    """Keeps what it is told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.told: list[np.ndarray] = []

    def observe(self, success: ArrayLike) -> None:
        self.told.append(np.asarray(success))
        super().observe(success)


def test_an_adaptive_mix_is_told_the_success_of_its_groups(tmp_path: Path) -> None:
    budget = Told([2, 5], adapt=0.5)
    rollouts = sampled(budget=budget, success_reward=0.5)
    trainer = trained(
        settings(
            tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1, num_generations_eval=4
        ),
        ShapingConfig("terminal"),
        rollouts=rollouts,
        eval_dataset=rollouts.dataset(),
    )
    training = [rows for rows, output in trainer.batches if output["advantages"].shape[0] == 12]
    rewards = [[row["rollout"].trace.outcome.reward for row in rows] for rows in training]
    expected = (np.array(rewards).reshape(3, 3, GROUP) >= 0.5).mean(-1)
    np.testing.assert_array_equal(budget.told, expected)
    assert len({*expected.ravel()}) > 2
    assert budget.drawn.sum() == 9


def test_budgets_are_multiples_of_the_shortest_episode(tmp_path: Path) -> None:
    rollouts = sampled(
        budget=BudgetMix([1.0, 1.5], unit="shortest"), shortest=lambda task: shortest(task.hops)
    )
    args = settings(tmp_path, max_steps=2)
    trainer = trained(args, ShapingConfig("terminal"), rollouts=rollouts)
    hops = {task.id: task.hops for task in TASKS}
    tasks = [rollout.trace.task_id for rollout in trainer.sampled[::GROUP]]
    ratios = Counter()
    for task, limit in zip(tasks, limits_of(trainer), strict=True):
        allowed = turns_of([1.0, 1.5], shortest(hops[task])).tolist()
        ratios[allowed.index(limit)] += 1
    assert set(ratios) == {0, 1}


def test_processes_sample_together_what_one_samples_alone(tmp_path: Path) -> None:
    """A group that lies on two processes has one T, and no process changes what is sampled."""
    prompts = [task.id for task in TASKS[:5] for _ in range(GROUP)]

    def sample(n_processes: int) -> list[Rollout]:
        found: list[Rollout] = []
        share = len(prompts) // n_processes
        for index in range(n_processes):
            trainer: Any = SimpleNamespace(
                args=settings(tmp_path, steps_per_generation=1),
                model=policy().train(),
                accelerator=SimpleNamespace(
                    process_index=index, num_processes=n_processes, unwrap_model=lambda model: model
                ),
                state=SimpleNamespace(global_step=0, max_steps=1),
                num_generations=GROUP,
                num_iterations=1,
            )
            own = prompts[index * share : (index + 1) * share]
            found += sampled()(own, trainer)["rollout"]
        return found

    alone = sample(1)
    assert same_rollouts(sample(2), alone)
    assert {rollout.trace.outcome.max_turns for rollout in alone} == {2, 5}


def test_evaluation_samples_all_budgets_and_disturbs_no_training(tmp_path: Path) -> None:
    rollouts = sampled()
    args = {"per_device_eval_batch_size": GROUP, "max_steps": 2}
    trainer = watched(
        settings(tmp_path, **args),
        ShapingConfig(mode="potential"),
        rollouts=rollouts,
        scorer=noise,
        eval_dataset=rollouts.dataset(),
    )
    found = []
    for _ in range(2):
        logs = trainer.evaluate()
        found.append(trainer.sampled)
        assert set(limits_of(trainer)) == {2, 5}
        assert logs["eval_prm/success/T=2"] is not None
        trainer.batches.clear()
    assert len(found[0]) == len(TASKS) * GROUP
    assert same_rollouts(*found)
    trainer.train()
    undisturbed = trained(settings(tmp_path, **args), ShapingConfig(mode="potential"), scorer=noise)
    assert same_rollouts(trainer.sampled, undisturbed.sampled)


# Episodes that break.


class Fragile(Lottery):
    """Breaks the episodes with these indices in their first or their second turn."""

    def __init__(self, first: Sequence[int], second: Sequence[int]) -> None:
        super().__init__()
        self._breaking, self._turn = {1: first, 2: second}, 0

    def reset(self, *args: Any) -> Reset:
        self._turn = 0
        return super().reset(*args)

    def step(self, actions: Sequence[Message | None]) -> Transition:
        self._turn += 1
        nothing: Message = {"role": "assistant", "content": ""}
        transition = super().step(
            [
                None if episode.ended else action or nothing
                for action, episode in zip(actions, self._episodes, strict=True)
            ]
        )
        breaking = {
            index: OSError("gone")
            for index in self._breaking.get(self._turn, ())
            if actions[index] is not None
        }
        if breaking:
            raise BrokenEpisodes(transition, breaking)
        return transition


@pytest.mark.parametrize("mode", ["terminal", "potential", "critic", "sum"])
def test_broken_episodes_are_kept_and_compared_with_nothing(tmp_path: Path, mode: Any) -> None:
    """Three of the second group break, so that one is left there with nothing to compare."""
    shaping = ShapingConfig(mode=mode)
    estimator = "outcome" if mode == "terminal" else "alive_mean"
    seen: list[Trace] = []
    trainer = trained(
        settings(tmp_path, max_steps=2),
        shaping,
        scorer=noise,
        rollouts=sampled(environment=Fragile([4, 5, 6], [1, 2, 8])),
        on_traces=seen.extend,
    )
    broken = [not rollout.trace.outcome.valid for rollout in trainer.sampled]
    first = broken[:12]
    assert first[4:8] == [True, True, True, False]
    assert 0 < sum(first[:4]) < 3
    assert trainer.logged("invalid") == [sum(first), sum(broken[12:])]
    assert [not trace.outcome.valid for trace in seen] == broken
    expected = advantages_of(trainer, shaping, estimator=estimator)
    laid = [row for _, output in trainer.batches for row in output["advantages"]]
    assert any(any(values) for values in expected)
    for rollout, row, values in zip(trainer.sampled, laid, expected, strict=True):
        cut = rollout.spans[0][0]
        if not rollout.trace.outcome.valid:
            assert not row.any()
        for (start, end), value in zip(rollout.spans, values, strict=True):
            np.testing.assert_allclose(row[start - cut : end - cut], value, rtol=1e-6, atol=1e-7)
