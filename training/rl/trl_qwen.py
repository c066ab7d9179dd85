"""GRPO with step rewards on a hub model that calls tools, for people with a GPU.

    python training/rl/trl_qwen.py --out out/qwen                           outcome only
    python training/rl/trl_qwen.py --out out/qwen --scorer out/model        with step rewards
    python training/rl/trl_qwen.py --out out/qwen --model Qwen/Qwen3-0.6B --training-template
    python training/rl/trl_qwen.py --out out/qwen --loop trl --vllm --turns 8

Put your own class and rows in place of ``HiddenNumber`` and ``rows``. The class has the shape of
TRL's ``environment_factory``, so it runs in both loops:

* ours: all rollouts of a batch side by side, exact tokens, and a budget T for each group, mixed
  from those of ``--turns``; sampled from the trainer's own model.
* trl: TRL's own loop, which can sample with vLLM. One T for all: calls that are answered, after
  which there is one message more.

Writes OUT/model, and OUT/rollouts-PROCESS.jsonl.gz: every rollout of the training with its step
scores, which every command of ``prm`` reads. ``accelerate launch`` runs it on several GPUs.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig
from trl.chat_template_utils import get_training_chat_template

from prm import Scorer, ShapingConfig, StepRewardModel, write_traces
from prm.data.atomic import check_new_folder
from prm.data.trace import Trace
from prm.rl.budgets import BudgetMix
from prm.rl.chat import ChatDialogue
from prm.rl.tool_environment import ToolEnvironment, tool_tasks
from prm.rl.trl import EnvironmentRollouts, StepGRPOTrainer

HIGHEST = 100


class HiddenNumber:
    """A number to be found by guessing; halving what is left takes at most 7 guesses of 100."""

    def reset(self, number: int, **row: Any) -> None:
        """Begin an episode with a row of the dataset."""
        self._number, self._found = number, False

    def guess(self, number: int) -> str:
        """Guess the hidden number, and learn whether it is higher or lower.

        Args:
            number: the guess
        """
        self._found = self._found or number == self._number
        if number == self._number:
            return "That is it. Say that you are done."
        return "The hidden number is higher." if number < self._number else "It is lower."

    def get_reward(self) -> float:
        """1 if the number was found, else 0."""
        return float(self._found)


def rows(n: int, seed: int) -> list[dict[str, Any]]:
    """The dataset: what ``reset`` is given, and the prompt."""
    question = f"Find the hidden whole number between 1 and {HIGHEST} with the tool guess."
    numbers = np.random.default_rng(seed).integers(1, HIGHEST, endpoint=True, size=n)
    return [
        {"prompt": [{"role": "user", "content": question}], "number": int(number), "row": row}
        for row, number in enumerate(numbers)
    ]


def main() -> None:
    """Train, and write the model and all rollouts."""
    asked = arguments()
    check_new_folder(asked.out / "model")
    asked.out.mkdir(parents=True, exist_ok=True)
    traces: list[Trace] = []
    trainer = ours(asked, traces) if asked.loop == "ours" else trls(asked, traces)
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    trainer.save_model(str(asked.out / "model"))
    write_traces(traces, asked.out / f"rollouts-{trainer.accelerator.process_index}.jsonl.gz")
    tokens = max(row.get("num_tokens", 0) for row in trainer.state.log_history)
    print(f"{tokens:,.0f} tokens in {seconds:.0f} s: {tokens / seconds:,.0f} a second, all told")
    if torch.cuda.is_available():
        print(f"peak GPU memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct", help="folder or hub id")
    parser.add_argument(
        "--training-template",
        action="store_true",
        help="TRL's chat template in place of one that rewrites the past, as Qwen3's does",
    )
    parser.add_argument(
        "--template-options",
        type=json.loads,
        default={},
        help="""variables of the chat template: '{"enable_thinking": false}' for Qwen3""",
    )
    parser.add_argument("--loop", choices=["ours", "trl"], default="ours", help="who samples")
    parser.add_argument("--vllm", action="store_true", help="sample with vLLM, in TRL's loop")
    parser.add_argument("--turns", type=int, nargs="+", default=[5, 7, 10], help="budgets T")
    parser.add_argument("--scorer", help="folder of a step reward model")
    parser.add_argument("--mode", help="of ShapingConfig: baseline with a scorer, else terminal")
    parser.add_argument("--process-weight", type=float, default=1.0)
    parser.add_argument("--lora", type=int, help="rank of adapters; without: all weights")
    parser.add_argument("--steps", type=int, default=100, help="updates")
    parser.add_argument("--groups", type=int, default=8, help="tasks of an update")
    parser.add_argument("--rollouts", type=int, default=8, help="of each task")
    parser.add_argument("--at-once", type=int, default=8, help="rollouts in a backward pass")
    parser.add_argument("--learning-rate", type=float, default=1e-6, help="10 times that for LoRA")
    parser.add_argument("--max-step-tokens", type=int, default=256, help="in our loop")
    parser.add_argument(
        "--max-tokens", type=int, default=2048, help="of a rollout, with its prompt"
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.loop == "trl" and len(asked.turns) > 1:
        parser.error("--loop trl: expected one number of --turns, the same for all rollouts")
    if asked.vllm and asked.loop != "trl":
        parser.error("--vllm: expected --loop trl, since our loop samples from the trainer's model")
    if asked.groups * asked.rollouts % asked.at_once:
        parser.error("--at-once: expected a divisor of --groups times --rollouts")
    return asked


def ours(asked: argparse.Namespace, traces: list[Trace]) -> StepGRPOTrainer:
    """Rollouts of many episodes side by side, with a budget for each group."""
    model, tokenizer = load(asked)
    template = get_training_chat_template(tokenizer) if asked.training_template else None
    dialogue = ChatDialogue(
        tokenizer,
        eos_token_id=model.generation_config.eos_token_id,
        chat_template=template,
        options=asked.template_options,
    )
    rollouts = EnvironmentRollouts(
        ToolEnvironment(HiddenNumber),
        dialogue,
        tool_tasks(rows(asked.steps * asked.groups, asked.seed), id_column="row"),
        BudgetMix(asked.turns),
        max_step_tokens=asked.max_step_tokens,
        max_tokens=asked.max_tokens,
    )
    return trainer_of(asked, traces, model, tokenizer, {}, rollouts=rollouts)


def trls(asked: argparse.Namespace, traces: list[Trace]) -> StepGRPOTrainer:
    """Rollouts of TRL's own loop; it takes a template of its own where that is needed."""
    from datasets import Dataset

    warnings.filterwarnings("ignore", "You are using 'environment_factory'", UserWarning)
    model, tokenizer = load(asked)
    settings: dict[str, Any] = {
        "max_tool_calling_iterations": asked.turns[0],
        "chat_template_kwargs": asked.template_options,
    }
    if asked.vllm:
        settings |= {"use_vllm": True, "vllm_mode": "colocate"}
    return trainer_of(
        asked,
        traces,
        model,
        tokenizer,
        settings,
        train_dataset=Dataset.from_list(rows(asked.steps * asked.groups, asked.seed)),
        environment_factory=HiddenNumber,
    )


def load(asked: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    # All weights are trained in float32, under bfloat16 autocast: small updates vanish in bfloat16.
    # Below adapters, weights that stay as they are can do with half of the memory.
    half = asked.lora is not None and torch.cuda.is_available()
    dtype = torch.bfloat16 if half else torch.float32
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=dtype)
    return model, AutoTokenizer.from_pretrained(asked.model)


def trainer_of(
    asked: argparse.Namespace,
    traces: list[Trace],
    model: Any,
    tokenizer: Any,
    settings: dict[str, Any],
    **source: Any,
) -> StepGRPOTrainer:
    """The trainer of either loop; ``source`` is where its rollouts come from."""
    gpu = torch.cuda.is_available()
    if asked.lora is not None:
        from peft import LoraConfig

        source["peft_config"] = LoraConfig(
            r=asked.lora, lora_alpha=2 * asked.lora, target_modules="all-linear"
        )
    args = GRPOConfig(
        str(asked.out / "trainer"),
        max_steps=asked.steps,
        per_device_train_batch_size=asked.at_once,
        gradient_accumulation_steps=asked.groups * asked.rollouts // asked.at_once,
        num_generations=asked.rollouts,
        max_completion_length=asked.max_tokens,
        learning_rate=asked.learning_rate,
        temperature=1.0,
        scale_rewards="none",
        bf16=gpu,
        use_cpu=not gpu,
        activation_checkpointing=gpu,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=asked.seed,
        **settings,
    )
    scorer = None
    if asked.scorer is not None:
        scorer = Scorer(StepRewardModel.from_pretrained(asked.scorer).to(args.device))
    mode: Any = asked.mode or ("terminal" if scorer is None else "baseline")
    return StepGRPOTrainer(
        model,
        args=args,
        processing_class=tokenizer,
        shaping=ShapingConfig(mode=mode, process_weight=asked.process_weight),
        scorer=scorer,
        on_traces=traces.extend,
        **source,
    )


if __name__ == "__main__":
    main()
