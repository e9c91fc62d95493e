"""Recognizes what a module computes by trying it, not by its name.

A copy of a module with random weights is run on random inputs, small and large. If values and gradients match those of a formula
in float64, the module computes that formula.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from gym_torch.kernels.kernel_trials import apart, with_gradients
from gym_torch.patched_forward import called_alone

SAME = 1e-5  #: a module computes a formula where it is so near to it in fp32, relative
PRECISIONS = torch.float32, torch.bfloat16
#: By whether GELU is approximated by tanh (arXiv:1606.08415, section 2), or it is SiLU.
ACTIVATIONS: dict[bool, Callable[[Tensor], Tensor]] = {False: silu, True: partial(gelu, approximate="tanh")}


@dataclass(frozen=True)
class Norm:
    """An RMSNorm (arXiv:1910.07467): its weight is `offset + module.NAME`."""

    name: str
    eps: float
    offset: float
    dtypes: dict[tuple[torch.dtype, torch.dtype], torch.dtype]  #: of what comes out, by those of input and weight

    def exact(self, given: Tensor, weight: Tensor) -> Tensor:
        """Compute it by the definition."""
        return given * (given.square().mean(-1, keepdim=True) + self.eps).rsqrt() * (self.offset + weight)

    def whole(self, weight: Tensor) -> Tensor:
        """Return the factor, in fp32 where an offset is added."""
        return weight.float() + self.offset if self.offset else weight


def norm_of(module: nn.Module) -> Norm | None:
    """Return the norm that a module computes, or None."""
    weights = dict(module.named_parameters())
    held = [*module.children(), *module.buffers()]  # what is held may change
    if len(weights) != 1 or held or next(iter(weights.values())).dim() != 1:
        return None
    ((name, weight),) = weights.items()
    draws = torch.Generator().manual_seed(0)
    drawn = torch.randn(len(weight), generator=draws)
    given = torch.randn(2, 2, len(weight), generator=draws) * torch.tensor([[1.0, 1e-3], [30.0, 0.0]])[..., None]
    numbers = {value for value in vars(module).values() if type(value) is float}
    for eps, offset in product(sorted(numbers), (0.0, 1.0)):
        norm = Norm(name, eps, offset, {})
        how = partial(_normed, module, name)
        if all(_same(partial(how, training), norm.exact, [given, drawn]) for training in (True, False)):
            for kinds in product(PRECISIONS, PRECISIONS):
                with suppress(Exception):  # a module may refuse what it is never given
                    norm.dtypes[kinds] = computed(module, name, given.to(kinds[0]), drawn.to(kinds[1])).dtype
            return norm
    return None


def computed(module: nn.Module, name: str, given: Tensor, weight: Tensor) -> Tensor:
    """Compute what the class of a module does, with another weight."""
    found: Tensor = type(module).forward(_with_weight(module, name, weight), given)
    return found


def _with_weight(module: nn.Module, name: str, weight: Tensor) -> nn.Module:
    other = copy.copy(module)
    other._parameters = {}
    other.__dict__[name] = weight
    return other


def _normed(module: nn.Module, name: str, training: bool, given: Tensor, weight: Tensor) -> Tensor:
    other = _with_weight(module, name, weight)
    other.training = training
    return _tried(other, given)


def _tried(module: nn.Module, given: Tensor) -> Tensor:
    """Compute what the class of a module does. Raises ValueError where it notes something down for others to read."""
    before = [(vars(part), dict(vars(part))) for part in module.modules()]
    found: Tensor = type(module).forward(module, given)
    for now, kept in before:
        if now.keys() != kept.keys() or any(now[key] is not kept[key] for key in kept):
            raise ValueError("it keeps something of what it is given")
    return found


@dataclass(frozen=True)
class Network:
    """A gated feed-forward network (arXiv:2002.05202, equation 6): children that make gate and up, or one that makes both."""

    first: tuple[str, ...]
    last: str
    tanh: bool
    split: bool = False  #: one child makes both, the gate first
    others: tuple[tuple[str, nn.Module], ...] = ()  #: children without weights, which are not called

    def as_tried(self, children: Mapping[str, nn.Module | None]) -> bool:
        """Whether the children that are not called are those that were tried, and have no hooks."""
        calls = all(called_alone(part) for _, child in self.others for part in child.modules())
        return calls and all(children.get(name) is child for name, child in self.others)


def network_of(module: nn.Module) -> Network | None:
    """Return the gated network that a module of linear layers, or of their replacements, computes, or None."""
    children = dict(module.named_children())
    linear = [name for name, child in children.items() if next(child.parameters(), None) is not None]
    others = tuple((name, child) for name, child in children.items() if name not in linear)
    held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    held += [buffer for _, child in others for buffer in child.buffers()]
    if len(linear) not in (2, 3) or held:
        return None
    draws = torch.Generator().manual_seed(0)
    sizes = torch.tensor([[1.0, 1e-2], [30.0, 300.0]])  # some clamp what is large
    given = torch.randn(2, 2, 8, generator=draws) * sizes[..., None]
    for (*first, last), tanh in product(permutations(linear), ACTIVATIONS):
        network = Network(tuple(first), last, tanh, len(first) == 1, others)
        widths = [*((name, 16 if network.split else 8) for name in first), (last, 8)]
        drawn = {name: torch.randn(width, 8, generator=draws) / 3 for name, width in widths}
        how, exact = partial(_stood_in, module, list(drawn)), partial(_exact_network, network)
        tensors = [given, *drawn.values()]
        if all(_same(partial(how, training), exact, tensors) for training in (True, False)):
            return network if _rounds(partial(how, True), exact, tensors) else None
    return None


class _Product(nn.Module):
    """Stands for a linear layer whose weight is given."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.by = weight

    def forward(self, given: Tensor) -> Tensor:
        return given @ self.by.T


def _stood_in(module: nn.Module, names: list[str], training: bool, given: Tensor, *weights: Tensor) -> Tensor:
    """Compute what the class of a module does, with small linear layers in place of its own."""
    other = copy.copy(module)
    others = {name: copy.deepcopy(child) for name, child in module.named_children() if name not in names}
    other._modules = others | {name: _Product(weight) for name, weight in zip(names, weights, strict=True)}
    return _tried(other.train(training), given)


def _exact_network(network: Network, given: Tensor, *weights: Tensor) -> Tensor:
    *first, last = weights
    made = [given @ weight.T for weight in first]
    gate, up = made[0].chunk(2, -1) if network.split else made
    return (ACTIVATIONS[network.tanh](gate) * up) @ last.T


@cache
def rotates(function: Callable[..., Any]) -> bool:
    """Whether it turns queries and keys, given with cos and sin, as `fused_ops.rotate` does."""
    draws = torch.Generator().manual_seed(0)
    given = [torch.randn(2, heads, 5, 8, generator=draws) for heads in (3, 1)]
    along = [torch.randn(2, 5, 8, generator=draws) for _ in range(2)]

    def both(how: Callable[..., Any], *given: Tensor) -> Tensor:
        query, key = how(*given, *(part.to(given[0].dtype) for part in along))
        return torch.cat([query, key], 1)

    return _same(partial(both, function), partial(both, exact_turn), given)


@cache
def turned_dtype(function: Callable[..., Any], query: torch.dtype, cos: torch.dtype) -> torch.dtype:
    """Return the precision of what comes out of a function that `rotates`: some keep that of queries, others round to none."""

    def found() -> torch.dtype:  # it is asked once, so a plan that is being traced must see none of it
        given, along = torch.zeros(1, 1, 1, 2, dtype=query), torch.zeros(1, 1, 2, dtype=cos)
        turned: Tensor = function(given, given, along, along)[0]
        return turned.dtype

    return apart(found)


def exact_turn(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Rotary positions (arXiv:2104.09864, equation 34), with halves of a head in place of pairs next to each other."""
    halves = (part.chunk(2, -1) for part in (query, key))
    return [
        torch.cat([one, other], -1) * cos[:, None] + torch.cat([-other, one], -1) * sin[:, None]
        for one, other in halves
    ]


def _same(how: Callable[..., Tensor], exact: Callable[..., Tensor], given: Sequence[Tensor]) -> bool:
    """Whether values and gradients are those of a formula. Foreign code is run, so any exception means no."""
    with suppress(Exception), torch.enable_grad():
        wide = [part.double() for part in given]
        by_out = torch.randn(exact(*wide).shape, generator=torch.Generator().manual_seed(1))
        found, wanted = with_gradients(how, given, by_out), with_gradients(exact, wide, by_out)
        return all(one.shape == true.shape and _near(one, true) for one, true in zip(found, wanted, strict=True))
    return False


def _rounds(how: Callable[..., Tensor], exact: Callable[..., Tensor], given: Sequence[Tensor]) -> bool:
    """Whether it rounds under autocast, which some models turn off for these layers."""
    with suppress(Exception), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return not _near(how(*given), exact(*(part.double() for part in given)))
    return False


def _near(one: Tensor, true: Tensor) -> bool:
    """Whether each row is close, as rows may have very different magnitudes."""
    off, size = (part.double().norm(dim=-1) for part in (one - true, true))
    return bool((off <= SAME * size).all())
