"""Peak memory of quantizing a model that is much larger than one of its layers, beyond what the process began with.

A random model of 240M parameters in bf16; each method in a process of its own. Both are measured on 4 samples of 256
tokens; GPTQ is calibrated on 16, for its widest layers have 3,072 inputs.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from peers.material import DATA, write_model
from peers.shape import SHAPE, SMALL
from report import Report, main
from transformers import AutoConfig, AutoModelForCausalLM

from gym_core import Artifact, Run, load_recipe
from gym_core.loading import load_component
from gym_core.record import RunRecord
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer

WIDE = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 20,
    "num_attention_heads": 8,
    "head_dim": 128,
}
TEXT = {"sources": ["tinyshakespeare"], "dataset_dir": str(DATA), "cutoff": 256}
#: Quantizers by name: options, and how many layers in fp32 they may take beyond what they write.
METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "rtn": ({"holdout_samples": 4, "calibration_samples": 4}, 4),
    "gptq": ({"holdout_samples": 4, "calibration_samples": 16}, 8),
}


def measure(report: Report, quick: bool) -> None:
    """Quantize with each method."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        layer, whole = write(root)
        report.figures["model"] = {"layer_fp32_mib": layer / 2**20, "bf16_mib": whole / 2**20}
        for name, (_, layers) in list(METHODS.items())[: 1 if quick else None]:
            # A process that is started anew, for one that has worked before holds memory that it can use again.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                told = alone.submit(quantize, name, root).result()
            report.figures[name] = {f"{key}_mib": told[f"{key}_bytes"] / 2**20 for key in ("peak", "file")}
            beyond = (told["peak_bytes"] - told["file_bytes"]) / layer
            report.check(f"{name}: layers in fp32 that it takes beyond its file", beyond, at_most=layers)


def write(root: Path) -> tuple[int, int]:
    """Write the model; return the bytes of a layer in fp32, and of the model as it is stored."""
    like = write_model(root / "tokenizer", SMALL, "tinyshakespeare")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**SHAPE | WIDE, vocab_size=SMALL), dtype=torch.bfloat16
    )
    model.save_pretrained(root / "model")
    copy_tokenizer(like, root / "model")
    layer = sum(4 * weight.numel() for weight in model.model.layers[0].parameters())
    return layer, sum(weight.nbytes for weight in model.parameters())


def quantize(name: str, root: Path) -> dict[str, Any]:
    """Return what is told of the quantized model."""
    options, _ = METHODS[name]
    sections = {"data": TEXT, "algorithm": "pretrain"}
    recipe = {"model": str(root / "model"), "output": str(root / name), **sections}
    (root / name).mkdir()
    run = Run(load_recipe(recipe), root / name, RunRecord(root / name / "run.json"))
    config = load_component("quantizers", name)[1](**options)
    made = config.build().quantize(run, Artifact(root / "model"), root / name / "made")
    told: dict[str, Any] = json.loads((made.path / "quantization.json").read_text(encoding="utf-8"))
    return told


if __name__ == "__main__":
    main(measure, __doc__ or "")
