"""Whether `gym plan` predicts the memory of a step: predicted against measured, each case in a process of its own.

Measured is the growth of the resident memory from before the model is made to the highest point of two optimizer steps
of the loop; the second has the state of the optimizer from its start. Libraries are loaded and have multiplied matrices
before, so that their code is not counted. A plan is of tensors, so freed blocks go back to the system at once here; how much
more is resident where malloc does as it likes is a figure beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from peers.shape import LARGE, SHAPE, SMALL
from report import Report, main

from gym_testkit.architectures import LLAMA_70B

WITHIN = 0.1
SAMPLE = 512  #: tokens of one sample
#: A processor without bf16 products takes minutes for a step of 512 tokens in bf16, and what is to be seen, the copies
#: of the weights, does not depend on the tokens.
TOKENS = {"fp32": (512, 1024, 2048, 4096), "bf16": (512,)}


def measure(report: Report, quick: bool) -> None:
    """Fill the report."""
    cases = product([SMALL] if quick else [SMALL, LARGE], ["full", "lora"], ["fp32"] if quick else ["fp32", "bf16"])
    figures = report.figures.setdefault("memory", [])
    for vocabulary, adapter, precision in cases:
        for tokens in TOKENS[precision][:: 2 if quick else 1]:
            recipe = _recipe(SHAPE | {"vocab_size": vocabulary}, adapter, precision)
            found = _child("case", recipe | {"tokens": tokens}, {"MALLOC_MMAP_THRESHOLD_": "65536"})
            found["resident"] = _child("case", recipe | {"tokens": tokens}, {})["measured"]
            ratio = found["predicted"] / found["measured"]
            figures.append({"vocabulary": vocabulary, "adapter": adapter, "precision": precision, "tokens": tokens}
                           | found | {"ratio": round(ratio, 4)})  # fmt: skip
            print(json.dumps(figures[-1]), file=sys.stderr)
            name = f"{adapter}, {precision}, vocabulary {vocabulary:,}, {tokens:,} tokens: predicted / measured"
            report.check(f"{name}, upper", ratio, at_most=1 + WITHIN)
            report.check(f"{name}, lower", ratio, at_least=1 - WITHIN)
    for adapter in ("full", "lora"):
        seconds, busy = min(_planned(adapter) for _ in range(3))
        report.figures[f"seconds of gym plan, 70B, {adapter}"] = {"wall": round(seconds, 2), "cpu": round(busy, 2)}
        report.check(f"gym plan on the config.json of a 70B Llama, {adapter}: seconds", round(seconds, 2), at_most=3)
    seconds, busy = min(_seconds([sys.executable, "-c", "import torch, transformers.modeling_utils"]) for _ in range(3))
    report.figures["of which any program needs that imports torch and transformers' models"] = {
        "wall": round(seconds, 2),
        "cpu": round(busy, 2),
    }


def _recipe(config: dict[str, Any], adapter: str, precision: str) -> dict[str, Any]:
    return {"config": config, "adapter": adapter, "precision": precision}


def _child(command: str, options: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, f"--{command}", json.dumps(options)],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _planned(adapter: str) -> tuple[float, float]:
    """Time the command as a user runs it, process start included."""
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
        recipe = {"model": {"path": folder, "dtype": "bf16"}, "data": "none.jsonl", "algorithm": "sft",
                  "adapter": adapter, "train": {"batch_tokens": 4096}}  # fmt: skip
        Path(folder, "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
        return _seconds([sys.executable, "-m", "gym_core.cli", "plan", f"{folder}/recipe.yaml", "--json"])


def _seconds(command: list[str]) -> tuple[float, float]:
    """Time a command: by the clock, and what the processor was at it. It may keep bytecode, as every installation does."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began, before = time.perf_counter(), os.times()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    ended, after = time.perf_counter(), os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return ended - began, busy


def case(options: dict[str, Any]) -> dict[str, int]:
    """Predict and measure one case in this process."""
    import torch
    from accelerate import Accelerator
    from transformers import AutoConfig, AutoModelForCausalLM

    from gym_core import load_recipe
    from gym_core.ranks import Ranks
    from gym_data.examples import Example
    from gym_optim.config import AdamW
    from gym_plan.memory import objective_of, predict
    from gym_plan.skeleton import skeleton
    from gym_plan.synthetic_examples import lengths_of, planned
    from gym_torch.distributed.ddp import Replicated
    from gym_torch.kernels.precision_probe import device
    from gym_torch.loop.job import Job
    from gym_torch.loop.optimizer import build_optimizer
    from gym_torch.loop.signals import Signals
    from gym_torch.loop.train_loop import optimizer_step
    from gym_torch.memory.memory_meter import Meter
    from gym_torch.model.adapted import adapt
    from gym_torch.model.layout_support import layout_for
    from gym_torch.model.parameter_groups import groups_of
    from gym_torch.observer import Observers, Progress
    from gym_torch.policy import Policy
    from gym_torch.source import Step

    with TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps(options["config"]), encoding="utf-8")
        recipe = load_recipe(
            {
                "model": {"path": folder, "init": "random"},
                "data": "none.jsonl",
                "algorithm": "sft",
                "adapter": options["adapter"],
                "train": {"batch_tokens": options["tokens"], "precision": options["precision"]},
            }
        )
        shape = AutoConfig.from_pretrained(path)
        built, lengths = skeleton(recipe, options["precision"], device()), lengths_of(options["tokens"], SAMPLE)
        predicted = predict(recipe, built, planned(objective_of(recipe, built.layout), lengths)).memory
    accelerator = Accelerator(mixed_precision="no", cpu=device().type == "cpu")
    for dtype in (torch.float32, torch.bfloat16):  # libraries set up their threads and kernels at first use
        square = torch.randn(256, 256, dtype=dtype, device=device(), requires_grad=True)
        (square @ square).sum().backward()
    del built, square
    meter = Meter(device())
    spread = Replicated(accelerator)
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    objective = objective_of(recipe, layout_for(model))
    adapt(model, recipe)
    spread.place(model)
    policy = spread.wrap(Policy(model, options["precision"])).train()
    samples = [Example.longest(str(number), length) for number, length in enumerate(lengths)]
    config = AdamW()
    optimizer = build_optimizer(config, groups_of(policy.model, policy), 1e-4)
    job = Job(
        train=recipe.train, accelerator=accelerator, ranks=Ranks(), spread=spread, policy=policy, objective=objective,
        optimizer=optimizer, optimizer_config=config, factor=lambda step: 1.0, source=None, evaluation=None,
        observer=Observers([]), save=lambda: None, signals=Signals(), progress=Progress(total=2),
    )  # fmt: skip
    for _ in range(2):
        rates = [1e-4] * len(optimizer.param_groups)
        assert optimizer_step(job, Step([samples], 0.0), rates, time.monotonic())
    return {
        "predicted": predicted.peak,
        "measured": meter.peak(),
        **{f"predicted_{key}": value for key, value in predicted.to_json().items()},
    }


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--case":
        print(json.dumps(case(json.loads(sys.argv[2]))))
    else:
        main(measure, __doc__ or "")
