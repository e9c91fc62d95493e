"""One run of reinforcement learning of one peer in a process of its own: GRPO on answers that the model gives itself.

Each step answers `rows / GROUP` prompts, `GROUP` times each, with whatever weights there are by then, judges the answers with the
same function and takes one optimizer step on them, on policy, without a reference model.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from peers.process import Result, Spec, arguments, clock, held, peak, schedule, serve

GROUP = 8  #: answers to a prompt
SHARE = 0.3  #: of the memory of a GPU, for vLLM


@dataclass(kw_only=True)
class Rolled(Result):
    """What came of it; `seconds` are of whole steps."""

    samples: int  #: answers in a step
    updates: list[float]  #: seconds of each step that are neither answering nor judging
    tokens: list[float]  #: mean length of the answers of each step

    def speed(self, skip: int) -> float:
        """Return samples a second, without the first steps, which warm up."""
        return self.samples * len(self.seconds[skip:]) / sum(self.seconds[skip:])


@dataclass(kw_only=True)
class Rolling(Spec):
    """Prompts and how to answer them."""

    result: ClassVar[type[Result]] = Rolled

    prompts: str  #: `prompt`, a list of messages, a line each
    longest: int  #: most tokens of an answer
    cache: str | None = None  #: kind of cache that the peer generates with
    vllm: bool = False  #: whether both answer with vLLM, in the process that trains


def vowels(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
    """Return the share of vowels in each answer: cheap, and never the same for all answers of random weights."""
    texts = [completion[0]["content"].lower() for completion in completions]
    return [sum(map(text.count, "aeiou")) / max(1, len(text)) for text in texts]


def gym(spec: Rolling) -> Rolled:
    """Train with Gym, through a recipe."""
    import gym_grpo.objective  # noqa: F401 - loaded before memory is measured, as the peer's modules are
    import gym_rl.training_setup
    from gym_core import Callback, execute, load_recipe
    from gym_torch.observer import Observer, Progress

    class Watch(Observer):
        def __init__(self) -> None:
            self.ends: list[float] = []
            self.updated = [0.0]

        def started(self, progress: Progress) -> None:
            self.ends.append(time.perf_counter())

        def stepped(self, progress: Progress) -> None:
            self.ends.append(time.perf_counter())
            self.updated.append(progress.seconds - Timed.sampling)

    class Timed(gym_rl.training_setup.Rollouts):
        """Takes the time of rounds, which are no part of an update."""

        sampling = 0.0

        def _round(self, *args: Any) -> Any:
            began = time.perf_counter()
            made = super()._round(*args)
            Timed.sampling += time.perf_counter() - began
            return made

    watch = Watch()

    class Watching(Callback):
        def build(self, **_: Any) -> Observer:
            return watch

    before = held()
    reward = {"name": "python", "function": "peers.rollouts:vowels", "conversational": True}
    algorithm = {"name": "grpo", "rewards": [reward], "group_size": GROUP, "max_new_tokens": spec.longest}
    if spec.vllm:
        algorithm["rollouts"] = {"name": "vllm-colocated", "gpu_memory_utilization": SHARE}
    data = {"sources": [spec.prompts]}
    recipe = load_recipe({"model": spec.model, "data": data, "algorithm": algorithm, **schedule(spec)})
    with patch("gym_rl.training_setup.Rollouts", Timed):
        outcome = execute(replace(recipe, callbacks=(Watching(),)))
    most = peak()
    lines = [json.loads(line) for line in (outcome.output / "metrics.jsonl").read_text().splitlines()]
    return Rolled(
        seconds=_differences(watch.ends),
        losses=[line["loss"] for line in lines],
        norms=[line["grad_norm"] for line in lines],
        base_bytes=before,
        peak_bytes=most,
        samples=spec.rows,
        updates=_differences(watch.updated),
        tokens=[line["completions/mean_length"] for line in lines],
    )


def trl(spec: Rolling) -> Rolled:
    """Train with TRL's GRPOTrainer."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    class Timed(GRPOTrainer):
        answering = 0.0

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            began = time.perf_counter()
            made = super()._generate_and_score_completions(inputs)
            self.answering += time.perf_counter() - began
            spent.append(self.answering)
            return made

    before = held()
    spent, steps = [0.0], clock(spec)
    settings = GRPOConfig(
        **arguments(spec),
        num_generations=GROUP,
        max_completion_length=spec.longest,
        cache_implementation=spec.cache,
        **({"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": SHARE} if spec.vllm else {}),
        loss_type="grpo",
        beta=0.0,
        shuffle_dataset=False,
    )
    made = Timed(
        model=AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32),
        reward_funcs=vowels,
        args=settings,
        train_dataset=Dataset.from_list([json.loads(line) for line in Path(spec.prompts).read_text().splitlines()]),
        processing_class=AutoTokenizer.from_pretrained(spec.model),
        callbacks=[steps],
    )
    made.train()
    return Rolled(
        **steps.found(),
        base_bytes=before,
        peak_bytes=peak(),
        samples=spec.rows,
        updates=[whole - part for whole, part in zip(steps.seconds, _differences(spent), strict=True)],
        tokens=[log["completions/mean_length"] for log in steps.logs],
    )


def _differences(values: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(values)]


if __name__ == "__main__":
    serve({"gym": gym, "trl": trl}, Rolling)
