"""Files of LLaMA-Factory for `export`: a base and an adapter become one model, and what nobody does here is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from gym_core import execute, load_recipe
from gym_core.cli import run
from gym_core.errors import OK
from gym_testkit.bench import Bench

TOKENS = torch.tensor([[5, 3, 8, 1, 9]])


def written(bench: Bench, **more: Any) -> tuple[Path, Path, Path]:
    """Write base, adapter and file."""
    base, adapter, file = bench.model(), bench.path("adapter"), bench.path("merge.yaml")
    options = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj"], task_type="CAUSAL_LM")
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(base), options)
    for name, weight in theirs.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(0.3)
    theirs.save_pretrained(str(adapter))
    keys = {
        "model_name_or_path": str(base), "adapter_name_or_path": str(adapter), "template": "qwen3_nothink",
        "trust_remote_code": False, "export_dir": str(bench.root / "merged"), "export_size": 5, "export_device": "cpu",
        "export_legacy_format": False,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(keys | more))
    return base, adapter, file


def test_a_merge_file_writes_the_merged_model(bench: Bench) -> None:
    base, adapter, file = written(bench)
    assert run(["export", str(file)]) == OK
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    merged = AutoModelForCausalLM.from_pretrained(bench.root / "merged")
    assert torch.allclose(merged(TOKENS).logits, theirs(TOKENS).logits, atol=1e-4)
    assert not torch.allclose(
        merged(TOKENS).logits, AutoModelForCausalLM.from_pretrained(base)(TOKENS).logits, atol=1e-2
    )
    assert json.loads((bench.root / "merged" / "certificate.json").read_text())["status"] == "verified"


def test_an_adapter_of_a_run_is_merged_into_the_model_that_is_named_or_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    output = bench.path("tuned")
    execute(load_recipe({**bench.recipe("sft", max_steps=1), "adapter": "lora", "output": str(output)}))
    base, _, file = written(bench, adapter_name_or_path=str(output))
    for model, right in ((bench.model(7), False), (base, True)):
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"model_name_or_path": str(model)}))
        assert (run(["export", str(file)]) == OK) == right == (bench.root / "merged").exists()
        assert ("belongs to another base" in capsys.readouterr().err) != right


def test_what_nobody_does_is_named(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, file = written(bench, export_quantization_bit=5, export_dirr="x", infer_dtype="int3")
    assert run(["export", str(file)]) != OK
    told = capsys.readouterr().err
    assert (
        all(word in told for word in ("no weights of 5 bits", "measures on texts", "export_dirr", "int3"))
        and not (bench.root / "merged").exists()
    )


def test_a_merge_file_writes_the_merged_model_in_few_bits(bench: Bench) -> None:
    texts = bench.path("texts.jsonl")
    texts.write_text(
        "".join(json.dumps({"text": f"{number} and {number + 1} are " * 9}) + "\n" for number in range(60))
    )
    quantized = {"export_quantization_bit": 8, "export_quantization_dataset": str(texts)}
    _, adapter, file = written(bench, **quantized, export_quantization_nsamples=8, export_quantization_maxlen=64)
    assert run(["export", str(file)]) == OK
    told = json.loads((bench.root / "merged" / "quantization.json").read_text())
    assert (told["method"], told["options"]["bits"], told["options"]["desc_act"]) == ("GPTQ", 8, False)
    assert told["samples"]["calibration_samples"] == 8 and told["holdout"]["kl"] < 0.01
    base = AutoModelForCausalLM.from_pretrained(bench.root / "model-0")
    theirs, made = PeftModel.from_pretrained(base, adapter), AutoModelForCausalLM.from_pretrained(bench.root / "merged")
    assert torch.allclose(made(TOKENS).logits, theirs(TOKENS).logits, atol=0.1)
