"""Training a model's own weights: what is saved, in which precision, and that it comes back bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from gym_core import GymError, PluginError
from gym_torch.kinds import Adapter
from gym_torch.model.adapted import Full, build_adapter
from gym_torch.model.mapped_weights import Raised
from gym_torch.model.stored_precisions import stored_exceptions
from gym_torch.policy import Policy

torch.set_num_threads(1)
TOKENS = torch.tensor([[5, 3, 8, 1, 9]])


def base_model(folder: Path, dtype: torch.dtype, tied: bool = True) -> Path:
    """Save a random model and return its directory."""
    kind = Qwen3Config if tied else LlamaConfig
    config = kind(
        vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder)
    return folder


def trained(path: Path, dtype: torch.dtype | str = "auto") -> Full:
    """Load, adapt and change every weight by less than bf16 can hold."""
    full = Full(None, model=AutoModelForCausalLM.from_pretrained(path, dtype=dtype))
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in full.model.parameters():
            weight += 1e-3 * torch.randn_like(weight)
    return full


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exact_save_and_load_are_bit_for_bit(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    base = base_model(tmp_path / "base", dtype, tied)
    one, other = trained(base), Full(None, model=AutoModelForCausalLM.from_pretrained(base))
    one.save(tmp_path / "saved", str(base), exact=True)
    other.load(other.read(tmp_path / "saved"))
    assert all(weight.dtype == torch.float32 for weight in one.state().values())
    assert all(torch.equal(weight, other.state()[name]) for name, weight in one.state().items())
    assert torch.equal(one.model(TOKENS).logits, other.model(TOKENS).logits)


def test_tied_embeddings_train_and_are_saved_once(tmp_path: Path) -> None:
    full = trained(base_model(tmp_path / "base", torch.bfloat16))
    full.save(tmp_path / "saved", "base")
    assert "lm_head.weight" not in full.state()
    with safe_open(tmp_path / "saved" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "lm_head.weight" not in names and "model.embed_tokens.weight" in names


@pytest.mark.parametrize("loaded", ["auto", torch.float32])
def test_an_artifact_has_the_precision_of_its_base(tmp_path: Path, loaded: torch.dtype | str) -> None:
    full = trained(base_model(tmp_path / "base", torch.bfloat16), loaded)
    artifact = full.save(tmp_path / "saved", "base")
    again: PreTrainedModel = AutoModelForCausalLM.from_pretrained(artifact.path)
    assert (artifact.kind, again.dtype) == ("model", torch.bfloat16)
    assert json.loads((artifact.path / "config.json").read_text())["dtype"] == "bfloat16"
    for name, weight in full.model.named_parameters():
        assert torch.equal(weight.bfloat16(), again.get_parameter(name))
    assert full.model.dtype == torch.float32


@pytest.mark.parametrize("loaded", ["auto", torch.float32])
def test_weights_that_files_hold_in_fp32_are_stored_so(tmp_path: Path, loaded: torch.dtype | str) -> None:
    """As routers, norms and decays of some families are; all others are in bf16, as `config.json` says of all."""
    file = base_model(tmp_path / "base", torch.bfloat16) / "model.safetensors"
    weights = {name: each.float() if "norm" in name else each for name, each in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    full = trained(file.parent, loaded)
    artifact = full.save(tmp_path / "saved", "base")
    again = load_file(artifact.path / "model.safetensors")
    assert {name: each.dtype for name, each in again.items()} == {name: each.dtype for name, each in weights.items()}
    assert all(torch.equal(each, full.state()[name].to(each.dtype)) for name, each in again.items())
    exact = full.save(tmp_path / "exact", "base", exact=True)
    for place in (artifact, exact):
        held = stored_exceptions(full.model, place, place.path, torch.bfloat16)
        assert held == {name: each.dtype for name, each in weights.items() if "norm" in name}


def test_saving_writes_no_pickle(tmp_path: Path) -> None:
    trained(base_model(tmp_path / "base", torch.float32)).save(tmp_path / "saved", "base")
    assert {path.suffix for path in (tmp_path / "saved").iterdir()} == {".json", ".safetensors"}


def test_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    full = trained(base_model(tmp_path / "base", torch.float32))
    other = trained(base_model(tmp_path / "other", torch.float32, tied=False))
    with pytest.raises(GymError, match="belong to another model"):
        full.load(other.state())


def test_what_is_no_adapted_model_is_refused_by_name(tmp_path: Path) -> None:
    class Bare(Adapter):
        """Returns the model itself."""

        def build(self, **context: Any) -> Any:
            return context["model"]

    model = AutoModelForCausalLM.from_pretrained(base_model(tmp_path / "base", torch.float32))
    with pytest.raises(PluginError, match=r"Bare\.build returned a Qwen3ForCausalLM") as caught:
        build_adapter(Bare(), model)
    assert "gym_torch.model.adapted.AdaptedModel" in caught.value.problems[0].fix


def test_what_is_no_auxiliary_module_is_refused_by_name(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base_model(tmp_path / "base", torch.float32))
    with pytest.raises(PluginError, match="`head` is trained beside the model, and is a Linear"):
        Policy(model, auxiliary={"head": torch.nn.Linear(16, 1)})  # type: ignore[dict-item]


def test_a_layer_may_name_what_it_gives_to_its_product() -> None:
    given, weight = torch.randn(3, 4), torch.randn(5, 4).bfloat16()
    with Raised():
        found = torch.nn.functional.linear(input=given, weight=weight, bias=None)
        whole = torch.nn.functional.linear(input=given, weight=weight.float())
    torch.testing.assert_close(found, given @ weight.float().T)
    torch.testing.assert_close(whole, found)
