"""Whether vLLM computes with the checkpoints of each quantizer what plain transformers does.

vLLM needs an environment of its own, whose Python `GYM_VLLM` names: `nox -s vllm` makes it and runs this. Each checkpoint gives
log-probabilities to the same tokens, in bf16 in both.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from report import Report, main
from transformers import AutoModelForCausalLM

from gym_core import Artifact, Run, load_recipe
from gym_core.loading import load_component
from gym_core.record import RunRecord
from gym_data.location import locate

WORKER = Path(__file__).parent / "peers" / "vllm_answers.py"
#: Quantizers by name, with what is not their default. On a CPU vLLM has kernels for whole numbers of 4 bits alone.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "rtn 4": ("rtn", {"bits": 4, "group_size": 64}),
    "gptq 4": ("gptq", {"bits": 4, "group_size": 64}),
    "awq 4": ("awq", {"bits": 4, "group_size": 64}),
    "awq 4, symmetric": ("awq", {"bits": 4, "group_size": 64, "sym": True}),
    "rtn 8": ("rtn", {"bits": 8, "group_size": 64}),
    "fp8": ("fp8", {}),
}
NEAR = 0.05  #: nats per token, of the mean difference; bf16 alone makes some of it


def measure(out: Report, quick: bool) -> None:
    """Quantize, load and compare."""
    rows = (torch.arange(4 * 60).view(4, 60) * 37 % 2000).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        data = {"sources": [{"name": "tiny-tasks", "count": 600}]}
        recipe = {"model": "tiny", "data": data, "algorithm": "sft", "output": scratch}
        run = Run(load_recipe(recipe), root, RunRecord(root / "run.json"))
        for label, (name, options) in list(SETTINGS.items())[: 2 if quick else None]:
            config = load_component("quantizers", name)[1](**options)
            made = config.build().quantize(run, Artifact(locate("tiny")), root / label.replace(" ", "-"))
            spec = json.dumps({"model": str(made.path), "rows": rows, "dtype": "bfloat16"})
            done = subprocess.run(
                [os.environ["GYM_VLLM"], str(WORKER), spec], cwd=root, stdout=subprocess.PIPE, check=False
            )
            if done.returncode:
                out.figures[label] = "not loaded"
                continue
            apart = (torch.tensor(json.loads(done.stdout)) - plain(made.path, rows)).abs()
            out.figures[label] = {"mean": float(apart.mean()), "most": float(apart.max())}
            out.check(f"{label}: mean difference of log-probabilities, nats", float(apart.mean()), at_most=NEAR)
    out.check("checkpoints that vLLM loaded", sum(isinstance(each, dict) for each in out.figures.values()), at_least=1)


@torch.no_grad()
def plain(path: Path, rows: list[list[int]]) -> torch.Tensor:
    """Return the log-probability of each token but the first of each row, by plain transformers."""
    tokens = torch.tensor(rows)
    logits = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)(tokens).logits[:, :-1].float()
    return logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]


if __name__ == "__main__":
    main(measure, __doc__ or "")
