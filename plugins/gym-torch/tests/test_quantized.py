"""Quantized bases: what is stored is declared, what is computed is the decoded weight, and nothing else is touched."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_torch_bench import Crash, Event, Memory, make_run, same, train
from gym_torch_quantized import ALIVE, Rows, RowsCodec
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_adapters import LoRA
from gym_core import GymError, Quantizer, RecipeError
from gym_torch import Transformers
from gym_torch.model.adapted import Full, adapt
from gym_torch.model.empty_model import empty
from gym_torch.model.loading import LoadedModel, load_frozen
from gym_torch.packing import PADDED
from gym_torch.quantization.weights import QuantizedLinear, plain_state, quantized_layers

TOKENS = torch.tensor([[5, 3, 8, 1, 9, 2, 2, 7]])


def load(path: Path, output: Path, precision: str = "fp32", **options: Any) -> LoadedModel:
    """Load a model as a run of LoRA does, with nothing of earlier weights in memory."""
    ALIVE.clear()
    sections = {"model": Transformers(path=str(path), **{"quantization": Rows(), **options}), "adapter": LoRA(rank=4)}
    run = make_run(path, output, sections=sections, precision=precision)
    loaded: LoadedModel = run.recipe.model.build(run=run)
    return loaded


@pytest.fixture(scope="module")
def model(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    return load(model_path, tmp_path_factory.mktemp("quantized") / "run").model


def test_linear_layers_are_stored_and_all_else_is_what_it_was(model: PreTrainedModel, model_path: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    linear = {name for name, layer in plain.named_modules() if isinstance(layer, nn.Linear)} - {"lm_head"}
    assert quantized_layers(model).keys() == linear
    kept, before = dict(model.named_parameters()), dict(plain.named_parameters())
    assert before.keys() - kept.keys() == {f"{name}.weight" for name in linear}
    assert all(torch.equal(weight, before[name]) for name, weight in kept.items())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight, "tied before, tied now"
    for name, layer in quantized_layers(model).items():
        assert torch.equal(layer.original(), before[f"{name}.weight"])
        assert float((layer.weight - layer.original()).norm() / layer.original().norm()) < 0.01
    assert not hasattr(model, "hf_quantizer") and "quantization_config" not in model.config.to_dict()


def test_weights_are_read_one_after_another(model_path: Path, tmp_path: Path) -> None:
    loaded = load(model_path, tmp_path / "run")  # the codec looks whether any earlier one is still there
    assert len(ALIVE) == 1 + len(quantized_layers(loaded.model)) > 10  # and a small one, on trial


def test_a_layer_computes_with_the_decoded_weight_and_keeps_nothing_of_its_size() -> None:
    weight = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    ALIVE.clear()
    codec = RowsCodec(Rows())
    layer = QuantizedLinear(codec, codec.encode(weight), weight.shape, nn.Parameter(torch.ones(24)))
    twin = copy.deepcopy(layer).plain(torch.float32)
    rows = torch.randn(2, 3, 16, requires_grad=True)
    for enabled in (False, True):
        sizes = list[int]()

        def look(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
                found = layer(rows)
            wanted = twin(rows)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, atol=0.05 if enabled else 1e-6, rtol=0.02 if enabled else 1e-6)
        (gradient,) = torch.autograd.grad(found.float().square().sum(), rows)
        (expected,) = torch.autograd.grad(wanted.float().square().sum(), rows)
        torch.testing.assert_close(gradient, expected, atol=1.0 if enabled else 1e-4, rtol=0.05 if enabled else 1e-5)
        assert max(sizes, default=0) < weight.numel()


def test_no_cast_changes_what_is_stored(model: PreTrainedModel) -> None:
    before = next(iter(quantized_layers(model).values())).stored
    moved = copy.deepcopy(model).to(torch.bfloat16)
    assert same(next(iter(quantized_layers(moved).values())).stored, before)
    assert moved.model.norm.weight.dtype == torch.bfloat16


def test_the_adapted_model_merges_into_what_it_computes_with(model_path: Path, tmp_path: Path) -> None:
    loaded = load(model_path, tmp_path / "run")
    run = make_run(model_path, tmp_path / "run", sections={"adapter": LoRA(rank=4, target_modules="q_proj,down_proj")})
    adapted = adapt(loaded.model, run.recipe)
    for name, weight in adapted.model.named_parameters():
        if weight.requires_grad:
            weight.data = 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name)))
    with torch.no_grad():
        expected = adapted.model.eval()(TOKENS).logits
        merged = adapted.merged()
        torch.testing.assert_close(merged(TOKENS).logits, expected, atol=1e-5, rtol=1e-5)
    assert not quantized_layers(merged) and len(quantized_layers(adapted.model)) > 10


def test_it_goes_on_exactly_where_it_stopped(model_path: Path, tmp_path: Path) -> None:
    def trained(output: Path, event: Event | None = None, **settings: Any) -> dict[str, Tensor]:
        ALIVE.clear()
        sections = {
            "model": Transformers(path=str(model_path), quantization=Rows()),
            "adapter": LoRA(rank=4),
            "callbacks": (event,) if event else (),
        }
        run = make_run(model_path, output, Memory(), sections=sections, max_steps=4, save_every=2, **settings)
        return load_file(train(run).path / "adapter_model.safetensors")

    whole = trained(tmp_path / "whole")
    with pytest.raises(Crash):
        trained(tmp_path / "parts", Event(step=3))
    assert same(trained(tmp_path / "parts"), whole)


def test_a_plan_counts_what_is_stored(model: PreTrainedModel, model_path: Path) -> None:
    options = Transformers(path=str(model_path), quantization=Rows())
    planned = empty(options, "fp32", None, torch.device("cpu")).model

    def held(model: PreTrainedModel) -> int:
        return sum(tensor.nbytes for layer in quantized_layers(model).values() for tensor in layer.buffers())

    assert held(planned) == held(model) > 0
    assert all(tensor.is_meta for tensor in planned.parameters())


def test_plain_names_have_plain_weights(model: PreTrainedModel, model_path: Path) -> None:
    wanted = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).state_dict()
    found = dict(plain_state(model))
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], weight, atol=0.01) for name, weight in wanted.items())


def test_weights_that_are_not_finite_are_refused(model_path: Path, tmp_path: Path) -> None:
    weights = load_file(model_path / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    for file in model_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GymError, match=r"not finite: model\.layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path, tmp_path / "run")


def test_a_quantized_model_is_not_quantized_again(model_path: Path, tmp_path: Path) -> None:
    for file in model_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    with pytest.raises(GymError, match=r"quantized already \(gptq\)"):
        load(tmp_path, tmp_path / "run")


def test_what_is_said_of_further_models_alone_needs_one(model_path: Path, tmp_path: Path) -> None:
    model = Transformers(path=str(model_path), ref_model_quantization=Rows())
    recipe = make_run(model_path, tmp_path / "run", sections={"model": model}).recipe
    with pytest.raises(RecipeError, match=r"model\.ref_model_quantization: .*this recipe names none"):
        recipe.algorithm.check_recipe(recipe)


def test_it_needs_an_adapter(model: PreTrainedModel, model_path: Path, tmp_path: Path) -> None:
    class Whole(LoRA):
        saves_model = True

    text = "is quantized, and what would be saved is the whole model"
    for adapter in (None, Whole()):
        sections = {"model": Transformers(path=str(model_path), quantization=Rows()), "adapter": adapter}
        recipe = make_run(model_path, tmp_path / "run", sections=sections).recipe
        with pytest.raises(GymError, match=f"adapter: the model {text}"):
            recipe.algorithm.check_recipe(recipe)
    with pytest.raises(GymError, match=text):
        Full(None, copy.deepcopy(model), trained=lambda name: "norm" in name)


def test_one_line_says_of_each_model_how_it_is_held(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the policy and of a further model: what was quantized, in how many bits, and MiB before and after."""
    config = Transformers(path=str(model_path), quantization=Rows(), ref_model_quantization=Rows())
    load(model_path, tmp_path / "run")
    load_frozen(
        config.other("other").model_copy(update={"path": str(model_path)}), "fp32", PADDED, key="algorithm.ref_model"
    )
    said = [line for line in capsys.readouterr().err.splitlines() if " bits, " in line]
    pattern = r"[\d,]+ parameters of \d+ modules in [\d.]+ bits, ([\d.]+) MiB instead of ([\d.]+)"
    for line, name in zip(said, (str(model_path), f"ref_model {model_path}"), strict=True):
        found = re.fullmatch(rf"{re.escape(name)}: {pattern}", line)
        assert found and float(found[1]) < float(found[2])


def test_a_quantizer_of_finished_models_is_refused() -> None:
    class After(Quantizer):
        moment = "artifact"

    class Undeclared(Quantizer):
        moment = "load"

    for quantizer, why in ((After(), "section `quantization`"), (Undeclared(), r"LoadTimeQuantizer.*subclass it")):
        with pytest.raises(ValueError, match=why):
            Transformers(path="tiny", quantization=quantizer)


def test_another_model_is_quantized_as_its_own_key_says(model_path: Path) -> None:
    own = Transformers(path=str(model_path), quantization=Rows())
    assert own.other(str(model_path)).quantization == Rows()
    assert own.other("elsewhere").quantization is None
    assert Transformers(path="a", ref_model_quantization=Rows()).other("b").quantization == Rows()
    otherwise = Rows(modules_to_not_convert=("q_proj",))
    assert (
        Transformers(path="a", quantization=Rows(), ref_model_quantization=otherwise).other("a").quantization
        == otherwise
    )
