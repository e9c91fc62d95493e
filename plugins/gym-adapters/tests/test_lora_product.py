"""The joined products of a LoRA layer: as near to the exact ones as those of peft, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gym_adapters import LoRA
from gym_torch.kernels import linear_products
from gym_torch.memory.gradient_checkpointing import recompute_layers

BF16 = {"device_type": "cpu", "dtype": torch.bfloat16}


@pytest.fixture(params=[False, True], ids=["plain", "bias"])
def layer(request: pytest.FixtureRequest, bench: Any) -> Any:
    """Return a layer of a model with an adapter that is not zero."""
    torch.manual_seed(0)
    model = bench.base()
    place = model.get_submodule("model.layers.1.mlp")
    place.up_proj = nn.Linear(place.up_proj.in_features, 80, bias=request.param)
    adapted = LoRA(rank=4, alpha=6.0, target_modules="mlp.up_proj").build(model=model, seed=0)
    found = adapted.model.get_submodule("model.layers.1.mlp.up_proj")
    nn.init.normal_(found.lora_B["default"].weight)
    return found


def passed(layer: Any, how: Callable[[Tensor], Tensor], given: Tensor) -> list[Tensor]:
    """Return what comes out, and the gradients of what is given and of both matrices."""
    leaf = given.clone().requires_grad_()
    pair = [layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    out = how(leaf)
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape)
    grads = torch.autograd.grad((out.float() * weights).sum(), [leaf, *pair])
    return [out.detach(), *grads]


def exact(layer: Any) -> Callable[[Tensor], Tensor]:
    """Return LoRA by its equation (arXiv:2106.09685, equation 3) in float64."""
    base, scaling = layer.base_layer, layer.scaling["default"]
    wide = [layer.lora_A["default"].weight, layer.lora_B["default"].weight]

    def how(given: Tensor) -> Tensor:
        bias = 0 if base.bias is None else base.bias.double()
        return (
            given.double() @ base.weight.double().T
            + bias
            + scaling * (given.double() @ wide[0].double().T) @ wide[1].double().T
        )

    return how


@pytest.fixture(params=[False, True], ids=["by torch", "summed"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have torch multiply, or a kernel that adds products up, where there is one."""
    monkeypatch.setattr(linear_products.CHOICES, "always", request.param)
    for name, size in {"ROWS": 8, "NARROWEST": 1}.items():
        monkeypatch.setattr(linear_products, name, size)


@pytest.mark.proves("lora")
@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("shape", [(1, 37), (3, 5), (7,)], ids=str)
@pytest.mark.parametrize(
    ("kind", "autocast"), [(torch.float32, True), (torch.bfloat16, True), (torch.float32, False)], ids=str
)
def test_as_near_to_the_exact_as_peft(layer: Any, shape: tuple[int, ...], kind: torch.dtype, autocast: bool) -> None:
    given = torch.randn(*shape, layer.in_features, generator=torch.Generator().manual_seed(1)).to(kind)
    theirs = lambda given: type(layer).forward(layer, given)  # noqa: E731
    with torch.autocast(**BF16, enabled=autocast):
        mine, peft = passed(layer, layer, given), passed(layer, theirs, given)
    true = passed(layer, exact(layer), given)
    for one, other, right in zip(mine, peft, true, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        off = [float((each.double() - right.double()).norm() / right.double().norm()) for each in (one, other)]
        assert off[0] <= max(1.3 * off[1], 1e-6) and off[0] > 0, off


def test_in_float64_it_is_peft_to_the_last_bit(layer: Any) -> None:
    given = torch.randn(2, 9, layer.in_features).double()
    layer.double()
    theirs = lambda given: type(layer).forward(layer, given)  # noqa: E731
    assert all(map(torch.equal, passed(layer, layer, given), passed(layer, theirs, given)))


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("policy", [True, "selective", "tiled", "offload"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "fp32"])
def test_whatever_is_computed_again_the_gradients_are_the_same(
    bench: Any, policy: Any, dropout: float, autocast: bool
) -> None:
    """What was kept for the second pass must be what the first one had."""
    tokens = torch.arange(18).view(2, 9)

    def gradients(recomputed: Any) -> Tensor:
        model = bench.base()
        LoRA(rank=4, dropout=dropout).build(model=model, seed=0)
        draws = torch.Generator().manual_seed(1)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        for weight in trained:
            weight.data = torch.randn(weight.shape, generator=draws) / 10
        recompute_layers(model.train(), recomputed)
        torch.manual_seed(2)
        with torch.autocast(**BF16, enabled=autocast):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return torch.cat([weight.grad.flatten() for weight in trained])

    found, wanted = gradients(policy), gradients(False)
    # `tiled` draws dropout slice by slice.
    assert float((found - wanted).norm() / wanted.norm()) < (
        0.5 if dropout and policy in ("tiled", "offload") else 1e-6
    )


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "fp32"])
def test_pairs_beside_each_other_are_as_near_as_those_of_peft(bench: Any, autocast: bool) -> None:
    """And one of zeros changes no bit."""
    model = bench.base()
    adapted = LoRA(rank=4, alpha=6.0, target_modules="mlp.up_proj").build(model=model, seed=0)
    adapted.attach("before0", 3)
    layer = adapted.model.get_submodule("model.layers.1.mlp.up_proj")
    pairs = [part["before0"].weight for part in (layer.lora_A, layer.lora_B)]
    for weight in pairs:
        nn.init.normal_(weight)
    given = torch.randn(2, 9, layer.in_features, generator=torch.Generator().manual_seed(1))
    theirs = lambda given: type(layer).forward(layer, given)  # noqa: E731
    further = layer.scaling["before0"] * pairs[1].double() @ pairs[0].double()
    true = lambda given: exact(layer)(given) + given.double() @ further.T  # noqa: E731
    with torch.autocast(**BF16, enabled=autocast):
        both = layer(given)
        layer.set_adapter(["before0"])
        assert torch.equal(layer(given), both)
        layer.set_adapter(["before0", "default"])
        nn.init.normal_(layer.lora_B["default"].weight)
        mine, peft = passed(layer, layer, given), passed(layer, theirs, given)
    for one, other, right in zip(mine, peft, passed(layer, true, given), strict=True):
        off = [float((each.double() - right.double()).norm() / right.double().norm()) for each in (one, other)]
        assert off[0] <= max(1.3 * off[1], 1e-6), off


@pytest.mark.parametrize("shape", [(0,), (2, 0), (3, 1, 2)], ids=str)
def test_what_comes_out_may_be_changed_in_place(layer: Any, shape: tuple[int, ...]) -> None:
    """As models do that clip queries and keys; a row may also be empty."""
    given = torch.randn(*shape, layer.in_features)
    theirs = lambda given: type(layer).forward(layer, given).clamp_(-0.1, 0.1)  # noqa: E731
    found, wanted = passed(layer, lambda given: layer(given).clamp_(-0.1, 0.1), given), passed(layer, theirs, given)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", ["base_layer", "lora_A.default", "lora_B.default"])
def test_who_looks_at_a_part_sees_what_it_gives(layer: Any, part: str) -> None:
    """And may give something else instead."""
    given, seen = torch.randn(2, 9, layer.in_features), []
    inner = layer.get_submodule(part)

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append((inputs[0], output))
        return output * 2

    hook = inner.register_forward_hook(look)
    with torch.autocast(**BF16), torch.no_grad():
        found = layer(given)
        theirs = type(layer).forward(layer, given)
    hook.remove()
    (_, mine), (_, other) = seen
    assert torch.equal(mine, other)
    assert torch.allclose(found.float(), theirs.float(), rtol=0.05, atol=0.1)


def test_nothing_is_cast_to_fp32_and_back(layer: Any) -> None:
    """Neither is anything as large as the output made but the output."""
    given = torch.randn(1, 64, layer.in_features).bfloat16()
    large = [64 * layer.in_features, 64 * layer.out_features]

    def passes(module: nn.Module) -> int:
        """Count what writes a tensor as large as what goes in or comes out, beside products."""
        with torch.autocast(**BF16), torch.no_grad(), torch.profiler.profile(record_shapes=True) as told:
            module(given)
        events = told.key_averages(group_by_input_shape=True)
        sizes = [(event, torch.Size(shape).numel()) for event in events for shape in event.input_shapes[:1] if shape]
        writing = {"aten::copy_", "aten::mul", "aten::add", "aten::clone"}
        return sum(event.count for event, size in sizes if size in large and event.key in writing)

    alone = passes(layer.base_layer)
    assert passes(layer) == alone
    vars(layer).pop("forward")
    assert passes(layer) >= alone + 3  # the cast, the scaling and the sum of peft
