"""What is written is what was measured: plain transformers loads it in another process and answers the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gym_core import Artifact
from gym_export.config import SafetensorsExporter
from gym_quant import RTN
from gym_quant.post_training.quantizer import PostTrainingQuantizer
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer

TOKENS = torch.arange(40)[None] * 37 % 2000
#: Quantizers by name, with options.
MADE = {
    "int8": ("rtn", {"bits": 8, "group_size": 0}),
    "int4": ("rtn", {"bits": 4}),
    "int3 with zero points": ("rtn", {"bits": 3, "sym": False}),
    "gptq": ("gptq", {"bits": 3}),
    "awq": ("awq", {"bits": 3}),
    "fp8": ("fp8", {}),
    "mixed": ("mixed", {"bits_per_weight": 4.0}),
}
ASK = """
import json, sys, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
places, into = json.loads(sys.argv[1]), sys.argv[2]
found = {}
for name, path in places.items():
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        found[name] = model(torch.arange(40)[None] * 37 % 2000).logits
save_file(found, into)
assert "gym_core" not in sys.modules
"""


@pytest.fixture(scope="module")
def answers(quantized, tmp_path_factory) -> dict[str, torch.Tensor]:
    """Return the logits of all checkpoints, loaded by plain transformers in a process of its own."""
    places = {name: str(quantized(which, **options)) for name, (which, options) in MADE.items()}
    into = tmp_path_factory.mktemp("answers") / "logits.safetensors"
    subprocess.run([sys.executable, "-c", ASK, json.dumps(places), str(into)], check=True, capture_output=True)
    return load_file(into)


@pytest.mark.parametrize("name", MADE)
def test_plain_transformers_answers_as_the_model_in_memory(quantized, plain, answers, name):
    which, options = MADE[name]
    path = quantized(which, **options)
    weights = PostTrainingQuantizer(RTN()).restore(Artifact(path))
    model = AutoModelForCausalLM.from_pretrained(plain)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    with torch.no_grad():
        logits = model(TOKENS).logits
    torch.testing.assert_close(answers[name], logits, rtol=1e-4, atol=1e-4)
    changed = [name for name, weight in weights.items() if not torch.equal(weight, before[name])]
    assert len(changed) >= 21 and "model.embed_tokens.weight" not in changed, "tied words are left alone"


def test_the_figures_are_those_of_whole_models(quantized, plain, run_in, told, tmp_path):
    """Layer by layer or at once, the divergence and the perplexities of the samples held out are the same."""
    path = quantized("gptq", bits=3)
    found = told(path)
    data = run_in(tmp_path / "run", plain).recipe.data
    samples = {each.id: each for each in data.build(tokenizer=plain, rows="conversation", seed=0).train}
    before, after = (AutoModelForCausalLM.from_pretrained(each).double() for each in (plain, path))
    divergence, old, new, count = 0.0, 0.0, 0.0, 0
    for sample in map(samples.get, found["samples"]["holdout"]):
        tokens = torch.tensor(sample.tokens[None].astype("int64"))
        with torch.no_grad():
            was, now = (model(tokens).logits[0, :-1].log_softmax(-1) for model in (before, after))
        chosen = torch.tensor(sample.trained[1:].copy())
        divergence += float((was.exp() * (was - now)).sum(-1)[chosen].sum())
        old -= float(was.gather(1, tokens[0, 1:, None])[chosen].sum())
        new -= float(now.gather(1, tokens[0, 1:, None])[chosen].sum())
        count += int(chosen.sum())
    assert count == found["samples"]["holdout_tokens"]
    assert found["holdout"]["kl"] == pytest.approx(divergence / count, rel=1e-3)
    assert found["holdout"]["perplexity_before"] == pytest.approx(float(torch.tensor(old / count).exp()), rel=1e-3)
    assert found["holdout"]["perplexity_after"] == pytest.approx(float(torch.tensor(new / count).exp()), rel=1e-3)


def test_bits_are_those_of_the_files(quantized, plain, told):
    path = quantized("rtn", bits=3, sym=False)
    found, files = told(path), load_file(path / "model.safetensors")
    of_layers = sum(each.nbytes for name, each in files.items() if ".weight_" in name)
    numbers = sum(each.numel() for name, each in load_file(plain / "model.safetensors").items() if "_proj" in name)
    assert found["bits_per_weight"] == pytest.approx(8 * of_layers / numbers)
    assert 3 < found["bits_per_weight"] < 3.9
    assert found["file_bytes"] == (path / "model.safetensors").stat().st_size
    assert f"{found['holdout']['kl']:.4g}" in (path / "README.md").read_text()


def test_a_budget_is_kept_and_used(quantized, told):
    found = told(quantized("mixed", bits_per_weight=4.0))
    assert 3.8 < found["bits_per_weight"] <= 4.0
    assert len({layer["scheme"]["bits"] for layer in found["layers"].values()}) > 1
    of = {name: layer["scheme"]["bits"] for name, layer in found["layers"].items()}
    for number in range(3):
        names = [f"model.layers.{number}.self_attn.{part}_proj.weight" for part in "qkv"]
        assert len({of[name] for name in names}) == 1, "runtimes join these"


@pytest.mark.parametrize(("bits", "gain"), [(3, 0.95), (4, 1.0)])
def test_calibration_pays(quantized, told, bits, gain):
    """Each is compared with rounding to nearest on the grid that it has itself: GPTQ on a symmetric one, AWQ with zero points."""
    nearest, even, gptq, awq = (
        told(quantized(name, bits=bits, **options))
        for name, options in (("rtn", {}), ("rtn", {"sym": False}), ("gptq", {}), ("awq", {}))
    )
    assert gptq["holdout"]["kl"] < gain * nearest["holdout"]["kl"]
    assert awq["holdout"]["kl"] < gain * even["holdout"]["kl"]

    def error(found):
        return sum(layer["output_error"] ** 2 for layer in found["layers"].values())

    assert error(gptq) < 0.5 * error(nearest)


def test_a_quantized_model_that_no_run_made_is_exported_decoded(quantized, tmp_path):
    """One that was downloaded is quantized, and what it was made from is not there."""
    made = shutil.copytree(quantized("rtn"), tmp_path / "downloaded", ignore=shutil.ignore_patterns("artifact.json"))
    exported = SafetensorsExporter().build().export(Artifact(made), tmp_path / "export")
    with torch.no_grad():
        answered = [AutoModelForCausalLM.from_pretrained(path)(TOKENS).logits for path in (made, exported)]
    torch.testing.assert_close(*answered, rtol=1e-4, atol=1e-4)
    assert "quantization_config" not in json.loads((exported / "config.json").read_text())


def test_weights_in_bf16_are_computed_with_as_stored(quantized, plain, tmp_path):
    """Scales are rounded to the precision of the model before codes are chosen, so nothing is lost in storing them."""
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "low")
    copy_tokenizer(plain, tmp_path / "low")
    file = tmp_path / "low" / "model.safetensors"
    # as some families have it
    finer = {"model.norm.weight": load_file(plain / "model.safetensors")["model.norm.weight"]}
    save_file(load_file(file) | finer, file, metadata={"format": "pt"})
    path = quantized("awq", tmp_path / "low", bits=4)
    kept = load_file(path / "model.safetensors")
    assert all(torch.equal(kept[name], each) for name, each in finer.items())
    again = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        again(TOKENS)  # compressed-tensors unpacks with the first answer
    own = PostTrainingQuantizer(RTN()).restore(Artifact(path))
    for name, weight in again.state_dict().items():
        if name in own.keys() - finer.keys():
            assert weight.dtype == torch.bfloat16 and torch.equal(weight.float(), own[name]), name


def test_awq_undoes_what_outliers_do(quantized, plain, told, tmp_path):
    """Channels of large inputs and small weights, in a model that computes the same: on one grid AWQ keeps them."""
    model = AutoModelForCausalLM.from_pretrained(plain)
    with torch.no_grad():
        for layer in model.model.layers:
            behind = {
                layer.input_layernorm: [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj],
                layer.post_attention_layernorm: [layer.mlp.gate_proj, layer.mlp.up_proj],
            }
            for norm, readers in behind.items():
                norm.weight[::48] *= 30
                for reader in readers:
                    reader.weight[:, ::48] /= 30
    model.save_pretrained(tmp_path / "outliers")
    copy_tokenizer(plain, tmp_path / "outliers")
    nearest, awq = (told(quantized(name, tmp_path / "outliers", bits=4, sym=False)) for name in ("rtn", "awq"))
    assert awq["holdout"]["kl"] < 0.5 * nearest["holdout"]["kl"]
