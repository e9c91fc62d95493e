"""Training on one GPU beside TRL, LLaMA-Factory and unsloth: tokens/s, model FLOP utilisation and peak memory.

Models of 0.6B and 7B with made-up weights are trained whole, by LoRA, by QLoRA and by GRPO, in bf16, by all that are
installed, each in a process of its own and in its best known form: packed rows, and FlashAttention and the kernels of Liger
where those are installed. Utilisation is against the machine's own rate of matrix products in bf16, and counts nothing that
is computed again, as layers are at 7B. What does not fit into memory, and a peer that fails, is said so. `--quick` leaves 7B
out. Without a GPU nothing is measured, and the exit code is 77.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import report
from peers.sizes import RANK, SIZES, Case, cases

NO_GPU = 77  #: exit code, as others say that a test was skipped
DATA, LENGTH, ROWS, STEPS, WARM = "alpaca_en_demo", 2048, 4, 12, 4
ANSWERS, PROMPT, LONGEST, ROUNDS = (
    32,
    256,
    256,
    3,
)  #: of GRPO: answers in a step, tokens of prompts and of answers, and steps
FASTER, USED = 1.5, 0.46  #: targets: times LLaMA-Factory with FlashAttention; utilisation at 7B


def measure(out: report.Report, quick: bool) -> None:
    """Measure every case that fits."""
    from peers.process import accelerated

    if not accelerated():
        print("there is no GPU here: nothing was measured", file=sys.stderr)
        sys.exit(NO_GPU)
    import torch

    rate = matmul_rate()
    free, whole = torch.cuda.mem_get_info()
    out.figures["device"] = {
        "name": torch.cuda.get_device_name(),
        "gib": round(whole / 2**30),
        "bf16_tflops": rate / 1e12,
    }
    planned = list(cases(free, quick))
    for size in dict.fromkeys(case.size for case in planned):
        with tempfile.TemporaryDirectory() as scratch:
            for case in (case for case in planned if case.size == size):
                key = f"{case.size} {case.way}"
                found = (_rolled if case.way == "grpo" else _tuned)(Path(scratch), case, rate) if case.peers else {}
                out.figures[key] = found or case.left_out
                _check(out, key, case, found)


def matmul_rate() -> float:
    """Return the FLOP/s of the GPU's own matrix products in bf16, the best of a few."""
    import torch

    left, right = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    times = []
    for _ in range(12):
        torch.cuda.synchronize()
        began = time.perf_counter()
        left @ right
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 2 * 8192**3 / min(times)


def _model(scratch: Path, size: str, data: str) -> Path:
    from peers.material import write_model

    shape = SIZES[size].config
    folder = scratch / "model"
    return folder if folder.exists() else write_model(folder, shape["vocab_size"], data, shape=shape, half=True)


def _tuned(scratch: Path, case: Case, rate: float) -> dict[str, Any]:
    """Return the figures of each peer in supervised training."""
    from peers.material import DATA as FOLDER
    from peers.material import source, write_samples
    from peers.supervised import Tuning

    model, samples = _model(scratch, case.size, DATA), scratch / "samples.jsonl"
    rows = write_samples(samples, model, DATA, LENGTH)
    lengths = [len(row["input_ids"]) for row in rows]
    scored = sum(label != -100 for row in rows for label in row["labels"]) / sum(lengths)
    squares = sum(length**2 for length in lengths) / sum(lengths) / 2  # causal: a token sees half of its sample
    flops = SIZES[case.size].step(case.way, squares, scored)
    spec = Tuning(
        model=str(model),
        samples=str(samples),
        data=source(DATA, LENGTH),
        output=str(scratch / "run"),
        steps=STEPS,
        rows=ROWS,
        precision="bf16",
        learning_rate=1e-5,
        length=LENGTH,
        adapter=None if case.way == "full" else {"name": "lora", "rank": RANK},
        recompute=case.size == "7B",
        quantized=case.way == "qlora",
        half=case.way != "full",
        kernels=kernels(),
        flash=find_spec("flash_attn") is not None,
        folder=str(FOLDER),
        dataset=DATA,
    )
    # Gym fills a row from samples, of which so many make the tokens that the peers pack into a step.
    own = {"gym": {"rows": max(1, round(ROWS * LENGTH / fmean(lengths)))}}
    return _each(case, spec, own, lambda made: _trained(made, flops, rate))


def kernels() -> list[str]:
    """Return the libraries that Gym is to try: all whose packages are installed, best known first."""
    found = {"flash_attention_3": "flash_attn_interface", "flash_attention_2": "flash_attn", "liger": "liger_kernel"}
    return [*(name for name, package in found.items() if find_spec(package)), "varlen_attention", "triton"]


def _trained(made: Any, flops: float, rate: float) -> dict[str, Any]:
    speed = made.speed(WARM)
    return {
        "tokens_per_second": round(speed),
        "model_flop_utilisation": round(speed * flops / rate, 3),
        "peak_gib": round(made.peak_bytes / 2**30, 2),
        "loss": [round(loss, 3) for loss in made.losses[:: STEPS // 4]],
    }


def _rolled(scratch: Path, case: Case, rate: float) -> dict[str, Any]:
    """Return the figures of each peer in reinforcement learning."""
    from peers.material import write_prompts
    from peers.rollouts import GROUP, Rolling

    model, prompts = _model(scratch, case.size, DATA), scratch / "prompts.jsonl"
    write_prompts(prompts, model, DATA, ROUNDS * ANSWERS // GROUP, PROMPT)
    spec = Rolling(
        model=str(model),
        prompts=str(prompts),
        output=str(scratch / "run"),
        steps=ROUNDS,
        rows=ANSWERS,
        precision="bf16",
        learning_rate=1e-6,
        longest=LONGEST,
    )

    def rolled(made: Any) -> dict[str, Any]:
        count = fmean(made.tokens[1:])
        flops = SIZES[case.size].step("grpo", (PROMPT + count) / 2, count / (PROMPT + count))
        tokens = ANSWERS * (PROMPT + count) / fmean(made.updates[1:])
        return {
            "answers_per_second": round(made.speed(1), 2),
            "answer_tokens": round(count, 1),
            "update_tokens_per_second": round(tokens),
            "update_flop_utilisation": round(tokens * flops / rate, 3),
            "peak_gib": round(made.peak_bytes / 2**30, 2),
        }

    return _each(case, spec, {}, rolled)


def _each(case: Case, spec: Any, own: dict[str, Any], figures: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of each peer, or why it failed."""
    from dataclasses import replace

    from peers.runs import run

    found: dict[str, Any] = {}
    for peer in case.peers:
        try:
            found[peer] = figures(run(peer, replace(spec, **own.get(peer, {}))))
        except SystemExit as error:  # of a peer that failed in its process
            found[peer] = str(error).strip().splitlines()[-1][:200]
    return found


def _check(out: report.Report, key: str, case: Case, found: dict[str, Any]) -> None:
    """Hold what was measured to the targets; Gym must not fail."""
    ours = found.get("gym")
    if case.peers:
        out.check(f"{key}: Gym trains", float(type(ours) is dict), at_least=1)
    if type(ours) is not dict or case.way == "grpo":
        return
    theirs = found.get("llamafactory")
    if type(theirs) is dict:
        ratio = ours["tokens_per_second"] / theirs["tokens_per_second"]
        out.check(f"{key}: Gym / LLaMA-Factory, tokens/s", round(ratio, 2), at_least=FASTER)
    if key == "7B full":
        out.check(f"{key}: model FLOP utilisation", ours["model_flop_utilisation"], at_least=USED)


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
