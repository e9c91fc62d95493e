"""Peak memory of exporting a model of 640 MiB in bf16, as it is and with a LoRA merged into it.

Each export runs in a process of its own, whose whole peak counts: interpreter, libraries and pages of mapped files too. It is
read from /proc, for what `getrusage` says of a process begins with what the one had that started it. Linux alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import report
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from gym_adapters import LoRA

LIMIT = 1.6  #: peak, as a multiple of the size of the weights
CHILD = """
import json, sys, time
from pathlib import Path
from gym_core import Artifact
from gym_export import SafetensorsExporter
import gym_adapters.tuners.lora, gym_export.formats.safetensors
told, into = json.loads(sys.argv[1]), Path(sys.argv[2])
def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
before, began = peak(), time.monotonic()
SafetensorsExporter().build().export(Artifact(**told | {"path": Path(told["path"])}), into)
print(json.dumps({"libraries": before, "peak": peak(), "seconds": time.monotonic() - began}))
"""


def write_model(path: Path, layers: int) -> int:
    """Write a random model shaped like Qwen3 in bf16; return the bytes of its weights."""
    config = Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, initializer_range=0.1, dtype="bfloat16",
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(path)
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def write_lora(path: Path, base: Path) -> dict[str, object]:
    """Write a random LoRA on every linear layer of a model; return its artifact."""
    model = AutoModelForCausalLM.from_pretrained(base)
    adapted = LoRA(rank=8).build(model=model, seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.02)
    return adapted.save(path, str(base)).to_json()


def exported(artifact: dict[str, object], into: Path) -> dict[str, float]:
    """Export in a process of its own; return its peak and what its libraries took before, in bytes, and the seconds."""
    command = [sys.executable, "-c", CHILD, json.dumps(artifact), str(into)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found | json.loads((into / "certificate.json").read_text(encoding="utf-8"))


def measure(out: report.Report, quick: bool) -> None:
    """Export a model, and then an adapter of it; `quick` leaves the model out, whose peak is the lower."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        size = write_model(scratch / "base", layers=11)
        artifacts = {"lora": write_lora(scratch / "lora", scratch / "base")}
        if not quick:
            artifacts["model"] = {"path": str(scratch / "base"), "kind": "model"}
        out.figures["weights_mib"] = round(size / 2**20)
        for name, artifact in artifacts.items():
            found = exported(artifact, scratch / f"export-{name}")
            out.figures[name] = {
                "peak_mib": round(found["peak"] / 2**20),
                "libraries_mib": round(found["libraries"] / 2**20),
                "seconds": round(found["seconds"], 1),
                "relative_difference": found["relative_difference"],
            }
            out.check(f"{name}: peak / size of the weights", round(found["peak"] / size, 3), at_most=LIMIT)


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
