"""Experts with updates beside their matrices are experts whose matrices have them, whatever family they are of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn
from torch.func import functional_call
from transformers.models.aria.modeling_aria import AriaExperts, AriaTextConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssExperts
from transformers.models.jetmoe.modeling_jetmoe import JetMoeParallelExperts
from transformers.models.muse_spark.modeling_muse_spark import MuseSparkExperts, MuseSparkTextConfig
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHConfig, NemotronHExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeExperts

from gym_adapters.expert_lora_layer import LowRankExperts
from gym_torch.quantization.expert_layer import grouped, runs_beside

DIM, INNER, EXPERTS, CHOSEN = 32, 16, 5, 2
EAGER = {"experts_implementation": "eager"}
#: gated; transposed with biases and a gate of its own, interleaved; without a gate; transposed; with a norm behind
KINDS = {
    "qwen3_moe": (
        Qwen3MoeExperts,
        Qwen3MoeConfig(hidden_size=DIM, moe_intermediate_size=INNER, num_experts=EXPERTS, **EAGER),
    ),
    "gpt_oss": (
        GptOssExperts,
        GptOssConfig(hidden_size=DIM, intermediate_size=INNER, num_local_experts=EXPERTS, **EAGER),
    ),
    "nemotron_h": (
        NemotronHExperts,
        NemotronHConfig(hidden_size=DIM, moe_intermediate_size=INNER, n_routed_experts=EXPERTS, **EAGER),
    ),
    "aria": (
        AriaExperts,
        AriaTextConfig(hidden_size=DIM, intermediate_size=INNER, moe_num_experts=EXPERTS, **EAGER),
    ),
    "muse_spark": (
        MuseSparkExperts,
        MuseSparkTextConfig(moe_hidden_size=DIM, moe_intermediate_size=INNER, num_local_experts=EXPERTS, **EAGER),
    ),
}


class Layer(nn.Module):
    """A layer of experts inside something, for peft replaces it there."""

    def __init__(self, family: str, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind, config = KINDS[family]
        self.experts = kind(config).to(dtype)
        for weight in self.experts.parameters():
            nn.init.normal_(weight, std=0.3)

    def matrices(self) -> list[str]:
        return [f"experts.{name}" for name, weight in self.experts.named_parameters() if weight.dim() == 3]


def of_peft(family: str, dtype: torch.dtype, rank: int = 3) -> ParamWrapper:
    """Return experts with updates that have trained a little, as peft runs them."""
    layer = Layer(family, dtype)
    options = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=[], target_parameters=layer.matrices())
    get_peft_model(layer, options)
    for module in layer.modules():
        if isinstance(module, ParamWrapper):
            nn.init.normal_(module.lora_B["default"].weight, std=0.1)
    for weight in layer.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(torch.promote_types(dtype, torch.float32))
    return cast(ParamWrapper, layer.experts)


def adapted(family: str, dtype: torch.dtype, rank: int = 3) -> LowRankExperts:
    """Return the same, run beside the matrices."""
    return LowRankExperts.of(of_peft(family, dtype, rank), LoraConfig(r=rank, lora_alpha=2 * rank))


def routed(tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, the experts of each, of which one is never chosen, and their shares."""
    torch.manual_seed(1)
    chosen = torch.stack([torch.randperm(EXPERTS - 1)[:CHOSEN] for _ in range(tokens)])
    hidden = torch.randn(tokens, DIM, dtype=dtype).requires_grad_()
    return hidden, chosen, torch.rand(tokens, CHOSEN, dtype=dtype).requires_grad_()


def wrappers(outer: nn.Module) -> Iterator[ParamWrapper]:
    """Yield peft's places for the updates of the tensors of a layer."""
    while isinstance(outer, ParamWrapper):
        yield outer
        outer = outer.base_layer


def updated(outer: LowRankExperts) -> dict[str, Tensor]:
    """Return the whole matrices by the formula, differentiable by the updates."""
    experts, whole = outer.get_base_layer(), {}
    for place in wrappers(outer):
        lower = place.lora_A["default"].weight.unflatten(0, (EXPERTS, -1))
        upper = place.lora_B["default"].weight.unflatten(1, (-1, EXPERTS))
        change = 2 * torch.einsum("oke,eki->eoi", upper, lower)
        weight = experts.get_parameter(place.parameter_name)
        whole[place.parameter_name] = weight + (change.mT if experts.is_transposed else change)
    return whole


@pytest.mark.proves("expert_lora")
@pytest.mark.parametrize("family", KINDS)
def test_value_and_gradients_are_those_of_whole_matrices(family: str) -> None:
    """In float64, where every expert has its own product, against the family's own way to run them."""
    outer, inputs = adapted(family, torch.float64), routed(11, torch.float64)
    trained = [place.get_parameter(f"lora_{part}.default.weight") for place in wrappers(outer) for part in "AB"]
    assert len(trained) == 4 and runs_beside(outer.get_base_layer())
    found = outer(*inputs)
    wanted = functional_call(outer.get_base_layer(), updated(outer), inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    leaves, toward = [inputs[0], inputs[2], *trained], torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, toward), torch.autograd.grad(wanted, leaves, toward), rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize("rank", [3, 8])
@pytest.mark.parametrize("family", KINDS)
def test_in_groups_the_products_are_the_same(family: str, rank: int) -> None:
    """In fp32 torch multiplies all experts at once, with the rank made whole by zeros."""
    outer, inputs = adapted(family, torch.float32, rank), routed(11, torch.float32)
    found = outer(*inputs)
    wanted = functional_call(outer.get_base_layer(), updated(outer), inputs)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    leaves = [inputs[0], *(weight for weight in outer.parameters() if weight.requires_grad)]
    toward = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, toward), torch.autograd.grad(wanted, leaves, toward), rtol=1e-3, atol=1e-4
    )


@pytest.mark.proves("expert_lora")
def test_over_bf16_an_update_smaller_than_the_rounding_of_weights_is_seen() -> None:
    """What trains points along its inputs, so it adds up over them; added to the weights one by one, it is gone."""
    outer = adapted("qwen3_moe", torch.bfloat16)
    noise, chosen, shares = (each.detach() for each in routed(64, torch.float32))
    common = torch.randn(DIM).sign()
    for place in wrappers(outer):
        lower, upper = place.lora_A["default"].weight, place.lora_B["default"].weight
        lower.data = common.expand_as(lower).clone() if lower.shape[1] == DIM else torch.zeros_like(lower)
        upper.data = torch.full_like(upper, 3e-4 / 6)
    experts, tokens = outer.get_base_layer(), (common + 0.1 * noise).bfloat16()
    with torch.no_grad():
        exact = {name: weight.float() for name, weight in experts.named_parameters()}
        inputs = tokens.float(), chosen, shares
        change = functional_call(experts, updated(outer), inputs) - functional_call(experts, exact, inputs)

        def seen(found: Tensor) -> float:
            """Return how much of the change there is, 1 for all of it."""
            plain = experts(tokens, chosen, shares)
            return float(((found - plain).float() * change).sum() / (change * change).sum())

        with torch.autocast("cpu", torch.bfloat16):
            found = outer(tokens, chosen, shares)
        whole = {name: weight.bfloat16() for name, weight in updated(outer).items()}
        added = functional_call(experts, whole, (tokens, chosen, shares))
    assert found.dtype == torch.bfloat16
    assert seen(found) == pytest.approx(1, abs=0.25)
    assert seen(added) < 0.5


@pytest.mark.proves("expert_lora")
def test_nothing_as_large_as_all_experts_is_kept() -> None:
    """Neither is anything of their size made: peft adds the update to all of them before each pass."""
    whole, most = EXPERTS * DIM * INNER, []
    for outer in (adapted("qwen3_moe", torch.float32), of_peft("qwen3_moe", torch.float32)):
        own = {weight.untyped_storage().data_ptr() for weight in outer.parameters()}
        with kept() as sizes:
            outer(*routed(4, torch.float32))
        most.append(max(size for place, size in sizes.items() if place not in own))
    assert most[0] < whole and most[1] == 2 * whole


@contextmanager
def kept() -> Iterator[dict[int, int]]:
    """Gather what autograd keeps, by storage: how many numbers."""
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def test_torch_does_not_group_all_there_is() -> None:
    """Strides that are no whole grains are multiplied expert by expert, to the same result."""
    torch.manual_seed(0)
    ends = torch.tensor([3, 3, 10], dtype=torch.int32)
    for wide, dtype in ((12, torch.float32), (11, torch.float32), (12, torch.float64)):
        rows, weights = torch.randn(10, wide, dtype=dtype), torch.randn(3, wide, 8, dtype=dtype)
        wanted = torch.cat([rows[:3] @ weights[0], rows[3:] @ weights[2]])
        torch.testing.assert_close(grouped(rows, weights, ends), wanted)


def test_experts_that_run_in_a_way_of_their_own_are_left_to_peft() -> None:
    assert not runs_beside(JetMoeParallelExperts(3, 8, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("family", KINDS)
def test_on_a_gpu_in_bf16(family: str) -> None:
    """Where torch has one kernel for all experts, values and gradients are those of fp32, to bf16's rounding."""
    outer, inputs = adapted(family, torch.bfloat16, 8), routed(64, torch.float32)
    trained = [weight for weight in outer.parameters() if weight.requires_grad]
    exact = outer(*inputs)
    wanted = [exact, *torch.autograd.grad(exact.sum(), trained)]
    outer.cuda()
    trained = [weight for weight in outer.parameters() if weight.requires_grad]
    with torch.autocast("cuda", torch.bfloat16):
        half = outer(*(each.cuda() for each in inputs))
    for one, other in zip([half, *torch.autograd.grad(half.float().sum(), trained)], wanted, strict=True):
        assert float((one.cpu() - other).norm() / other.norm()) < 0.03
