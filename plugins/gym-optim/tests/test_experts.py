"""The experts of a mixture, which lie in tensors [experts, rows, columns]: each is a matrix of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim_bench import components, random, state_bytes
from torch import Tensor, nn

from gym_optim import Fira, GaLore, QGaLore, parameter_groups
from gym_optim.kinds import Optimizer
from gym_testkit.architectures import build
from gym_torch.model.parameter_groups import groups_of

GENERAL = {name: kind for name, kind in components().items() if kind.general}
SMALL = {
    "rank": 2,
    **dict.fromkeys(("update_proj_gap", "precondition_frequency", "interval_steps", "switch_interval"), 2),
    "min_8bit_size": 16,
    "scale_parameter": True,
}  #: what makes each do all it can do in a few steps


def small(kind: type[Optimizer]) -> Optimizer:
    return kind(**{name: value for name, value in SMALL.items() if name in kind.model_fields})


@pytest.mark.proves("adafactor", "galore")
@pytest.mark.parametrize("shape", [(3, 16, 16), (3, 16, 32), (3, 32, 16)])
@pytest.mark.parametrize(("name", "kind"), GENERAL.items())
def test_each_expert_of_a_stack_moves_as_a_matrix_of_its_own(
    name: str, kind: type[Optimizer], shape: tuple[int, ...]
) -> None:
    """In float64, with another size of gradient for each expert, over several projections."""
    options: Any = small(kind)
    if shape[1] != shape[2] and "max_precond_dim" in kind.model_fields:
        # singular vectors of nothing are what rounding makes them
        options = options.model_copy(update={"max_precond_dim": 16})
    stack = nn.Parameter(random(*shape))
    alone = [nn.Parameter(matrix.clone()) for matrix in stack.detach()]
    names = [(f"layers.0.experts.{number}.weight", matrix) for number, matrix in enumerate(alone)]
    together, apart = (
        options.build(parameters=[{"params": params, "role": "matrix"}], learning_rate=0.01)
        for params in ([("layers.0.experts.weight", stack)], names)
    )
    sizes = torch.tensor([1.0, 0.1, 10.0], dtype=torch.float64).view(3, 1, 1)
    for step in range(7):
        stack.grad = sizes * random(*shape, seed=step)
        for matrix, gradient in zip(alone, stack.grad.clone(), strict=True):
            matrix.grad = gradient
        together.step()
        apart.step()
    moved = torch.stack([matrix.detach() for matrix in alone])
    torch.testing.assert_close(stack.detach(), moved, rtol=1e-7, atol=1e-9)
    assert state_bytes(together) == state_bytes(apart)


def as_peft(stack: Tensor, dim: int) -> Tensor:
    """Lay the factors of experts [experts, rows, columns] out in one matrix: A expert by expert, B rank by rank."""
    return stack.flatten(0, 1) if dim == 0 else stack.permute(1, 2, 0).flatten(1)


@pytest.mark.proves("muon")
@pytest.mark.parametrize(("dim", "shape"), [(0, (3, 8, 16)), (0, (3, 1, 16)), (1, (3, 16, 8)), (1, (3, 16, 1))])
@pytest.mark.parametrize(("name", "kind"), GENERAL.items())
def test_the_factors_of_each_expert_in_one_matrix_move_as_those_of_a_layer(
    name: str, kind: type[Optimizer], dim: int, shape: tuple[int, ...]
) -> None:
    """A LoRA of experts moves each as the LoRA of a layer of its own would, whatever the gradients of the others are."""
    options: Any = small(kind)
    if "min_8bit_size" in kind.model_fields:
        options = options.model_copy(update={"min_8bit_size": 1000})  # codes come in blocks, which experts may share
    alone = [nn.Parameter(matrix) for matrix in random(*shape)]
    whole = nn.Parameter(as_peft(random(*shape), dim).contiguous())
    group = {"params": [("layers.0.experts.lora.weight", whole)], "role": "matrix", "experts": 3, "expert_dim": dim}
    names = [(f"layers.0.experts.{number}.lora.weight", matrix) for number, matrix in enumerate(alone)]
    together = options.build(parameters=[dict(group)], learning_rate=0.01)
    apart = options.build(parameters=[{"params": names, "role": "matrix"}], learning_rate=0.01)
    sizes = torch.tensor([1.0, 0.1, 10.0], dtype=torch.float64).view(3, 1, 1)
    for step in range(5):
        gradient = sizes * random(*shape, seed=step)
        whole.grad = as_peft(gradient, dim).contiguous()
        for matrix, own in zip(alone, gradient, strict=True):
            matrix.grad = own.clone()
        together.step()
        apart.step()
    moved = as_peft(torch.stack([matrix.detach() for matrix in alone]), dim)
    torch.testing.assert_close(whole.detach(), moved, rtol=1e-7, atol=1e-9)
    assert state_bytes(together) == state_bytes(apart)
    shapes = [{**group, "params": [("layers.0.experts.lora.weight", tuple(whole.shape))]}]
    each = [{"role": "matrix", "params": [(key, shape[1:]) for key, _ in names]}]
    assert options.declared_bytes(shapes) == options.declared_bytes(each)


def test_each_expert_has_an_interval_of_its_own() -> None:
    """The gradients of one stay as they are, so that its basis does; those of the other are noise."""
    stack = nn.Parameter(random(2, 16, 24))
    optimizer = QGaLore([stack], rank=2, update_proj_gap=1, queue_size=2, cos_threshold=0.99)
    for step in range(6):
        stack.grad = torch.stack([random(16, 24), random(16, 24, seed=step)])
        optimizer.step()
    intervals = optimizer.state[stack]["interval"]
    assert intervals[0] > 1 and intervals[1] == 1


@pytest.mark.parametrize("kind", [GaLore, Fira, QGaLore])
def test_an_expert_without_a_token_when_a_basis_is_due_keeps_its_own(kind: Any) -> None:
    stack, gradients = nn.Parameter(random(2, 16, 24)), random(2, 16, 24, seed=1)
    optimizer = kind([stack], rank=2, update_proj_gap=2, **{"queue_size": 1} if kind is QGaLore else {})
    held = []
    for tokens in (1, 1, 0):
        stack.grad = gradients * torch.tensor([1.0, tokens]).view(2, 1, 1)
        optimizer.step()
        held.append({key: value.clone() for key, value in optimizer.state[stack].items() if "basis" in key})
    for key, basis in held[-1].items():
        assert torch.equal(basis[1], held[-2][key][1])
    assert optimizer.state[stack].get("interval", [4, 2]) == [4, 2]


@pytest.mark.parametrize(("name", "kind"), GENERAL.items())
def test_the_state_of_a_mixture_is_the_declared_one(name: str, kind: type[Optimizer]) -> None:
    model, options = build("qwen3_moe"), small(kind)
    optimizer = options.build(parameters=groups_of(model), learning_rate=1e-3)
    shapes = [
        {**group, "params": [(key, tuple(weight.shape)) for key, weight in group["params"]]}
        for group in groups_of(model)
    ]
    tokens = torch.arange(64).view(2, 32) * 7 % 50
    for _ in range(3):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert state_bytes(optimizer) == options.declared_bytes(shapes)


def mixture_of_30b() -> list[dict[str, Any]]:
    """Return the shapes of Qwen3-30B-A3B: 48 layers of 128 experts, 2,048 wide."""
    groups: dict[str, list[tuple[str, tuple[int, ...]]]] = {"matrix": [], "vector": []}
    for layer in range(48):
        path = f"model.layers.{layer}."
        matrices = {
            "self_attn.q_proj": (4096, 2048),
            "self_attn.k_proj": (512, 2048),
            "self_attn.v_proj": (512, 2048),
            "self_attn.o_proj": (2048, 4096),
            "mlp.gate": (128, 2048),
            "mlp.experts.gate_up_proj": (128, 1536, 2048),
            "mlp.experts.down_proj": (128, 2048, 768),
        }
        groups["matrix"] += [(path + name, shape) for name, shape in matrices.items()]
        groups["vector"] += [(path + "input_layernorm.weight", (2048,))]
    tables = [
        {"role": "embedding", "params": [("model.embed_tokens.weight", (151_936, 2048))]},
        {"role": "head", "params": [("lm_head.weight", (151_936, 2048))]},
    ]
    return [*({"role": role, "params": params} for role, params in groups.items()), *tables]


#: Share of AdamW's state that is left at most.
MOST = {
    "galore": 0.22,
    "q_galore": 0.07,
    "fira": 0.22,
    "apollo": 0.3,
    "apollo_mini": 0.03,
    "adam_mini": 0.51,
    "muon": 0.52,
    "adafactor": 0.01,
    "adamw_8bit": 0.28,
    "badam": 0.03,
}


def test_low_memory_optimizers_save_on_mixtures_of_experts() -> None:
    shapes = mixture_of_30b()
    full = GENERAL["adamw"]().declared_bytes(shapes)
    shares = {name: GENERAL[name]().declared_bytes(shapes) / full for name in MOST}
    assert {name: round(share, 3) for name, share in shares.items() if share > MOST[name]} == {}


def test_kernels_of_convolutions_and_biases_of_experts_are_no_matrices() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 4, 3)
            self.experts = nn.Module()
            self.experts.down_proj = nn.Parameter(torch.zeros(3, 4, 5))
            self.experts.down_proj_bias = nn.Parameter(torch.zeros(3, 4))

    found: dict[str, set[str]] = {}
    for group in parameter_groups(Layer()):
        found.setdefault(group["role"], set()).update(name for name, _ in group["params"])
    assert found == {
        "kernel": {"conv.weight"},
        "matrix": {"experts.down_proj"},
        "vector": {"conv.bias", "experts.down_proj_bias"},
    }


def test_experts_that_saw_no_token_stay_finite() -> None:
    """Their gradients are zero, from the first step on."""
    for name, kind in GENERAL.items():
        stack = nn.Parameter(torch.ones(2, 16, 24))
        named = [("layers.0.experts.weight", stack)]
        optimizer: Any = small(kind).build(parameters=[{"params": named, "role": "matrix"}], learning_rate=0.01)
        for step in range(5):
            gradient: Tensor = random(2, 16, 24, seed=step).float()
            gradient[1] = 0
            stack.grad = gradient
            optimizer.step()
        assert stack.isfinite().all(), name
