"""PiSSA, OLoRA and LoRA-GA begin where their papers say, EVA where inputs vary; rsLoRA and DoRA compute their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from gym_adapters import EVA, DoRA, LoRA, LoRAGA, OLoRA, PiSSA, RsLoRA
from gym_adapters.tuners.lora_init import START
from gym_torch.batch import Piece, packed, padded
from gym_torch.trained_part import FirstStepBatch

PART = "default"


def product(layer: Any, part: str = PART) -> Tensor:
    """Return `scaling B A`."""
    return (layer.scaling[part] * layer.lora_B[part].weight @ layer.lora_A[part].weight).detach()


def gradients(bench: Any, names: list[str]) -> dict[str, Tensor]:
    """Return the gradients that full training would have at first."""
    model = bench.base()
    model(bench.tokens, labels=bench.tokens).loss.backward()
    return {name: model.get_submodule(name).weight.grad for name in names}


@pytest.mark.proves("pissa")
@pytest.mark.parametrize("alpha", [3.0, 5.0])
def test_pissa_begins_as_the_leading_part(bench: Any, alpha: float) -> None:
    adapted, base = bench.begun(PiSSA(rank=3, alpha=alpha, iterations=-1)), bench.base()
    for name, layer in adapted.layers().items():
        u, s, vh = np.linalg.svd(base.get_submodule(name).weight.detach().double().numpy(), full_matrices=False)
        leading = torch.from_numpy((u[:, :3] * s[:3]) @ vh[:3]).float()
        torch.testing.assert_close(product(layer), leading, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(product(layer, START), -product(layer))
        a, b = layer.lora_A[PART].weight, layer.lora_B[PART].weight
        torch.testing.assert_close(a @ a.T, b.T @ b, rtol=1e-4, atol=1e-4)  # shared between both


def test_pissa_by_power_iterations_leaves_no_more_than_the_exact_one(bench: Any) -> None:
    exact, quick = bench.begun(PiSSA(rank=3, iterations=-1)), bench.begun(PiSSA(rank=3))
    for one, other in zip(exact.layers().values(), quick.layers().values(), strict=True):
        left, least = (layer.get_base_layer().weight - product(layer) for layer in (other, one))
        assert left.norm() < 1.0001 * least.norm()


@pytest.mark.proves("olora", "pissa")
@pytest.mark.parametrize(("config", "theirs"), [(PiSSA(rank=3, iterations=-1), "pissa"), (OLoRA(rank=3), "olora")])
def test_what_begins_and_what_is_left_are_those_of_peft(bench: Any, config: LoRA, theirs: str) -> None:
    adapted = bench.begun(config)
    options = LoraConfig(r=3, lora_alpha=6, target_modules="all-linear", init_lora_weights=theirs)
    peft = get_peft_model(bench.base(), options).get_base_model()
    for name, layer in adapted.layers().items():
        other = peft.get_submodule(name)
        torch.testing.assert_close(product(layer), product(other), rtol=1e-4, atol=1e-5)
        rest = layer.get_base_layer().weight + product(layer, START)
        torch.testing.assert_close(rest, other.get_base_layer().weight, rtol=1e-4, atol=1e-5)


@pytest.mark.proves("pissa")
def test_a_bf16_base_keeps_its_weights_and_the_output_stays(bench: Any) -> None:
    """Taken out of the weight, the leading part would cost it bits."""
    adapted = bench.begun(PiSSA(rank=3), dtype=torch.bfloat16)
    base = bench.base(dtype=torch.bfloat16)
    for name, layer in adapted.layers().items():
        assert torch.equal(layer.get_base_layer().weight, base.get_submodule(name).weight)
    merged = adapted.merged()  # summed in fp32, and then rounded once
    assert merged.dtype == torch.bfloat16
    assert (bench.logits(merged) - bench.logits(base)).norm() < 1e-3 * bench.logits(base).norm()


@pytest.mark.proves("lora_ga")
def test_lora_ga_begins_along_the_gradient(bench: Any) -> None:
    adapted = bench.begun(LoRAGA(rank=3, stable_gamma=25.0))
    wanted = gradients(bench, list(adapted.layers()))
    for name, layer in adapted.layers().items():
        u, s, vh = np.linalg.svd(wanted[name].double().numpy(), full_matrices=False)
        size, seen = u.shape[0] ** 0.25 / 5, int((s > 1e-5 * s[0]).sum())
        a, b = layer.lora_A[PART].weight.detach().numpy(), layer.lora_B[PART].weight.detach().numpy()
        np.testing.assert_allclose(np.abs(a @ vh[:3].T), size * np.eye(3), atol=2e-3)
        last = min(6, len(vh))
        along = np.abs(b.T @ u[:, last - 3 : last])[:, : seen - last + 3]  # beyond its rank, any direction will do
        np.testing.assert_allclose(along, size * np.eye(3)[:, : along.shape[1]], atol=2e-3)
        np.testing.assert_allclose(b.T @ b, size**2 * np.eye(3), atol=1e-5)
        assert layer.scaling[PART] == pytest.approx(6 / 3**0.5)


@pytest.mark.proves("lora_ga")
def test_the_first_step_of_lora_ga_goes_more_along_the_gradient_than_that_of_lora(bench: Any) -> None:
    def cosine(config: LoRA) -> float:
        adapted = bench.begun(config)
        layers = adapted.layers()
        wanted, before = gradients(bench, list(layers)), {name: product(layer) for name, layer in layers.items()}
        weights = [weight for weight in adapted.model.parameters() if weight.requires_grad]
        adapted.model(bench.tokens, labels=bench.tokens).loss.backward()
        torch.optim.SGD(weights, lr=1e-3).step()
        moved = torch.cat([(product(layer) - before[name]).flatten() for name, layer in layers.items()])
        return float(torch.cosine_similarity(-moved, torch.cat([wanted[name].flatten() for name in layers]), dim=0))

    ours, plain = cosine(LoRAGA(rank=3)), cosine(LoRA(rank=3))
    assert ours > plain + 0.1 and ours > 0.8


@pytest.mark.proves("eva")
def test_eva_begins_where_inputs_vary_over_all_batches(bench: Any) -> None:
    adapted = EVA(rank=3).build(model=bench.base(), seed=0)
    texts = torch.arange(48).view(4, 12) * 7 % 60
    adapted.initialize([*bench.first(adapted.model, texts[:2]), *bench.first(adapted.model, texts[2:])])
    seen: dict[str, list[Tensor]] = {}
    base = bench.base()
    for name in adapted.layers():
        keep = lambda layer, inputs, name=name: seen.setdefault(name, []).append(inputs[0].flatten(0, 1))  # noqa: E731
        base.get_submodule(name).register_forward_pre_hook(keep)
    bench_logits = base(texts).logits
    assert bench_logits.shape[0] == 4
    for name, layer in adapted.layers().items():
        vh = np.linalg.svd(torch.cat(seen[name]).detach().double().numpy(), full_matrices=False)[2]
        found = np.abs(layer.lora_A[PART].weight.detach().numpy() @ vh[:3].T)
        np.testing.assert_allclose(found, np.eye(3), atol=5e-2)
        assert not layer.lora_B[PART].weight.any()


@pytest.mark.proves("eva")
def test_eva_sees_no_padding(bench: Any) -> None:
    texts = [np.arange(length, dtype=np.int32) * 7 % 60 for length in (3, 12, 7)]
    rows = [Piece(str(number), text, np.ones(len(text), dtype=bool)) for number, text in enumerate(texts)]

    def begun(batches: list[Any]) -> Any:
        adapted = EVA(rank=2).build(model=bench.base(), seed=0)
        run = [FirstStepBatch(batch, lambda batch=batch: adapted.model(batch.tokens).logits.sum()) for batch in batches]
        adapted.initialize(run)
        return adapted

    together, apart = begun([padded(rows)]), begun([packed([row]) for row in rows])
    for one, other in zip(together.layers().values(), apart.layers().values(), strict=True):
        a, b = one.lora_A[PART].weight, other.lora_A[PART].weight
        torch.testing.assert_close((a @ b.T).abs(), torch.eye(2), rtol=0, atol=2e-2)


@pytest.mark.proves("rslora")
@pytest.mark.parametrize("rank", [1, 4, 9])
def test_rslora_is_scaled_by_the_root_of_the_rank(bench: Any, rank: int) -> None:
    for layer in RsLoRA(rank=rank, alpha=6.0).build(model=bench.base(), seed=0).layers().values():
        assert layer.scaling[PART] == pytest.approx(6 / rank**0.5)


@pytest.mark.proves("dora")
def test_dora_is_the_formula_in_float64(bench: Any) -> None:
    adapted = bench.begun(DoRA(rank=3))
    bench.train(adapted.model)
    merged = adapted.merged()
    for name, layer in adapted.layers().items():
        whole = layer.get_base_layer().weight.double() + product(layer).double()
        length = layer.lora_magnitude_vector[PART].weight.double()
        expected = (length / whole.norm(dim=1))[:, None] * whole
        torch.testing.assert_close(merged.get_submodule(name).weight.double(), expected, rtol=1e-5, atol=1e-6)
