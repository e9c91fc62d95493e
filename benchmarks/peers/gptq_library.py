"""GPTQ by its library, in an environment that holds it alone: `python gptq_library.py SPEC`, with SPEC the options as JSON.

Nothing of Gym is imported here. `nox -s gptq` makes the environment.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", GPTQMODEL_CPU_WORKERS="2")

import torch
from gptqmodel import GPTQModel
from gptqmodel.quantization import QuantizeConfig


def main() -> None:
    """Quantize a model on the rows of tokens that a file holds, and save it."""
    spec = json.loads(sys.argv[1])
    with open(spec["rows"], encoding="utf-8") as file:
        rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in json.load(file)]
    config = QuantizeConfig(**spec["options"], offload_to_disk=False, pack_impl="original")
    model = GPTQModel.load(spec["model"], config, dtype=getattr(torch, spec["dtype"]), device="cpu")
    model.quantize(rows, batch_size=1, calibration_data_min_length=1)
    model.save(spec["output"])


if __name__ == "__main__":
    main()
