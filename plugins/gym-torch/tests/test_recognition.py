"""What the kernel takes the place of goes on being seen, changed and kept as it would be without it."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import dropout
from transformers import AutoConfig, AutoModelForCausalLM

from gym_testkit.architectures import SHAPE
from gym_torch.kernels import fused_modules, fused_ops
from gym_torch.kernels.fused_modules import fuse
from gym_torch.kernels.module_recognition import exact_turn
from gym_torch.patched_forward import plain, takes_one

GIVEN = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def always() -> Iterator[None]:
    if fused_ops.kernel() is None:
        pytest.skip("no compiler")
    fused_modules.CHOICES.always = True
    yield
    fused_modules.CHOICES.always = None


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps, self.fused = nn.Parameter(torch.ones(8)), 1e-5, False

    def forward(self, x: Tensor) -> Tensor:
        normed = x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight
        return 2 * normed if self.fused else normed


class Counting(Norm):
    """Changes a buffer whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.numel()
        return super().forward(x)


class Noting(Norm):
    """Keeps a number that another part of a loss reads."""

    def forward(self, x: Tensor) -> Tensor:
        self.penalty = x.square().mean()
        return super().forward(x)


class Whole(Norm):
    """Has one mean for a whole sequence, which is that of a token where there is one."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(tuple(range(1, x.dim())), keepdim=True) + self.eps).rsqrt() * self.weight


class Dropping(Norm):
    """Is a norm in evaluation mode alone."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(super().forward(x), 0.5, self.training)


class Observing(nn.SiLU):
    """An activation that notes how large its inputs are, as calibrations do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.most.copy_(torch.maximum(self.most, x.abs().max()))
        return super().forward(x)


class Network(nn.Module):
    def __init__(self, act: nn.Module | None = None, dropped: float = 0.0) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.act, self.drop = act or nn.SiLU(), nn.Dropout(dropped)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(self.act(self.gate(x)) * self.up(x)))


class Exact(Network):
    """Has its products in fp32 whatever the caller rounds."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


@pytest.mark.parametrize(
    "make", [Counting, Noting, Whole, lambda: Dropping().eval(), lambda: Network(Observing()), Exact],
)  # fmt: skip
def test_what_does_more_than_a_formula_is_left_alone_as_it_was(make):
    module = make()
    before = copy.deepcopy(module.state_dict())
    fuse(module)
    assert plain(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_what_is_tried_draws_no_numbers_of_the_run():
    network, before = Network(dropped=0.3), torch.get_rng_state()
    fuse(network)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_activation_that_is_watched_or_replaced_afterwards_is_called():
    network = Network()
    fuse(network)
    assert not plain(network)
    seen: list[Tensor] = []
    hook = network.act.register_forward_hook(lambda _module, _given, found: seen.append(found))
    network(GIVEN)
    assert len(seen) == 1
    hook.remove()
    network.act = nn.ReLU()
    assert torch.equal(network(GIVEN), type(network).forward(network, GIVEN))


def test_a_module_keeps_its_own_names_and_is_called_by_them():
    norm = Norm()
    fuse(norm)
    assert not plain(norm) and takes_one(norm)
    assert norm.fused is False
    assert torch.equal(norm.double()(GIVEN.double()), type(norm).forward(norm, GIVEN.double()))
    assert torch.allclose(norm.float()(x=GIVEN), norm(GIVEN), atol=1e-6)
    with pytest.raises(TypeError):
        norm()


@pytest.mark.parametrize("how", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_compute_with_weights_of_their_own(how):
    model = nn.Sequential(Norm(), Network())
    fuse(model)
    expected = model(GIVEN)
    copied = how(model)
    assert torch.equal(copied(GIVEN), expected) and not plain(copied[1])
    copied[1].act = nn.ReLU()
    nn.init.zeros_(copied[0].weight)
    assert not copied(GIVEN).any() and torch.equal(model(GIVEN), expected)


def test_what_is_traced_is_what_torch_computes():
    norm = Norm()
    fuse(norm)
    traced = make_fx(lambda x: norm(x))(GIVEN)
    assert torch.allclose(traced(2 * GIVEN + 1), norm(2 * GIVEN + 1), atol=1e-6)


class OnePlus(nn.Module):
    """The norm of Gemma."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(dim, generator=torch.Generator().manual_seed(1)) / 10), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (normed * (1.0 + self.weight.float())).type_as(x)


def test_what_is_added_to_a_weight_of_bf16_is_added_in_fp32():
    norm, given = OnePlus(256).bfloat16(), torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = (
        given.double() * (given.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + norm.weight.double())
    )
    theirs = (norm(given) - exact).norm()
    fuse(norm)
    assert not plain(norm) and (norm(given) - exact).norm() < 1.05 * theirs


@torch.no_grad()
def test_positions_come_out_in_the_precision_that_a_family_gives_them():
    """OLMo has cosines in fp32 and turns queries of bf16 into such."""
    config = AutoConfig.for_model("olmo2", **SHAPE)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    tokens = torch.arange(3, 13)[None]
    before = model(tokens).logits.float()
    fuse(model)
    assert (model(tokens).logits.float() - before).norm() < 0.02 * before.norm()


SCALE = 1.0
CALLS = 0


def turned(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    return exact_turn(query, key, cos, sin)


class Attention(nn.Module):
    """Reads a name of this file that changes."""

    def forward(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key = turned(query, key, cos, sin)
        return SCALE * query @ key.mT


class Counted(nn.Module):
    """Changes a name of this file."""

    def forward(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
        global CALLS
        CALLS += 1
        return turned(query, key, cos, sin)


def test_names_that_attention_looks_up_are_those_of_its_file(monkeypatch):
    given = [
        torch.randn(*shape, generator=torch.Generator().manual_seed(3))
        for shape in [(1, 2, 5, 8)] * 2 + [(1, 5, 8)] * 2
    ]
    attention, counted = Attention(), Counted()
    fuse(nn.ModuleList([attention, counted]))
    assert not plain(attention)
    counted(*given)
    assert CALLS == 1
    here = sys.modules[__name__]
    expected = attention(*given)
    monkeypatch.setattr(here, "SCALE", 3.0)
    assert torch.allclose(attention(*given), 3 * expected, rtol=1e-5)
    monkeypatch.setattr(here, "turned", lambda query, key, cos, sin: (query, key))
    assert torch.allclose(attention(*given), 3 * given[0] @ given[1].mT, rtol=1e-5)
