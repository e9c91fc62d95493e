"""Linear layers that are given the same tensor cast it once, and compute what they did."""

from __future__ import annotations

import copy

import torch
from gym_torch_packed import losses, separate, shared
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.profiler import ProfilerActivity, profile

from gym_testkit import architectures
from gym_torch.batch import packed
from gym_torch.kernels.shared_input_casts import share_casts
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.policy import Policy


def casts(model: nn.Module, given: torch.Tensor) -> int:
    """Return how many tensors a pass forward and backward copies."""
    with profile(activities=[ProfilerActivity.CPU]) as found, torch.autocast("cpu", torch.bfloat16):
        model(1 * given).float().sum().backward()  # autocast keeps the casts of leaves
    return sum(event.count for event in found.key_averages() if event.key == "aten::copy_")


class Branches(nn.Module):
    """Three layers that read the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(8, 4, bias=False) for _ in range(3)])

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(given) for branch in self.branches], -1)


def test_three_layers_that_read_one_tensor_cast_it_once_and_its_gradient_too():
    model, given = Branches(), torch.randn(5, 8, requires_grad=True)
    apart = casts(model, given)
    share_casts(model)
    share_casts(model)
    assert casts(model, given) == apart - 4


def test_nothing_of_the_model_is_kept_and_another_tensor_has_a_cast_of_its_own():
    model = Branches()
    share_casts(model)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        given = torch.randn(5, 8)
        first = model(given)
        given.mul_(2)
        assert torch.equal(model(given), 2 * first)
    with torch.no_grad():
        assert model(given).dtype == torch.float32
    copied = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(copied(given), model(given))


def test_a_family_with_adapters_has_the_same_loss_and_gradients_as_near_to_fp32():
    plain = architectures.build("qwen3")
    get_peft_model(plain, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    assert layout_for(plain) is PACKED
    sharing = copy.deepcopy(plain)
    share_casts(sharing, head=sharing.get_output_embeddings())
    _, exact = losses(plain, shared(), packed)
    found = []
    for model in (plain, sharing):
        with torch.autocast("cpu", torch.bfloat16):
            found.append(losses(model, shared(), packed))
    assert torch.equal(found[0][0], found[1][0])
    apart, together = (float((gradient - exact).norm()) for _, gradient in found)
    assert together < 1.2 * apart


def test_beside_shared_casts_the_head_keeps_no_logits_in_fp32():
    model, batch = architectures.build("qwen3"), packed(*separate())
    assert layout_for(model) is PACKED
    policy = Policy(model, "bf16")
    wide, kept = (len(batch.targets), model.config.vocab_size), []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy(batch)
    assert [dtype for shape, dtype in kept if shape == wide] == [torch.bfloat16]


def test_in_inference_mode_layers_compute_what_they_do_without_gradients():
    model, given = Branches(), torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        expected = model(1 * given)
        share_casts(model)
        assert torch.equal(model(1 * given), expected)


def test_what_is_to_have_a_gradient_later_is_cast_anew() -> None:
    layers, given = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), torch.randn(3, 4)
    share_casts(layers)
    with torch.autocast("cpu", torch.bfloat16):
        layers[0](given)
        layers[1](given.requires_grad_()).sum().backward()
    assert given.grad is not None and given.grad.abs().sum() > 0
