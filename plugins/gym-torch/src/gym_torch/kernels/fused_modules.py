"""Replaces the forward pass of norms, gated networks and rotary positions by kernels, where a module is recognized as one.

`gym_torch.kernels.module_recognition` recognizes them. The kernel is used for tensors that it supports and where a trial finds it
faster. Otherwise the module computes as before: on other devices, in other precisions, and under compilers, tracers and
transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dis import get_instructions
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from gym_torch.kernels import fused_ops
from gym_torch.kernels.kernel_functions import spelled
from gym_torch.kernels.kernel_trials import Choices, Work, apart, with_gradients
from gym_torch.kernels.module_recognition import (
    ACTIVATIONS,
    Network,
    Norm,
    computed,
    exact_turn,
    network_of,
    norm_of,
    rotates,
    turned_dtype,
)
from gym_torch.patched_forward import plain, replace, takes_one

CHOICES = Choices("fused_ops", fused_ops.functions)  #: of this process
ROWS = 512  #: of a trial


@torch.no_grad()
def fuse(model: nn.Module) -> None:
    """Have kernels compute the parts of a model that they can, but for what is compiled. Twice is as good as once."""
    if CHOICES.kernels():
        compiled = {part for whole in model.modules() if whole._compiled_call_impl for part in whole.modules()}
        able = [module for module in model.modules() if module not in compiled]
        with torch.random.fork_rng(devices=[]):  # what is tried may draw numbers
            found = apart(lambda: [(module, forward) for module in able for forward in _forwards(module)])
        for module, forward in found:
            replace(module, forward)


def _forwards(module: Any) -> Iterator[Callable[..., Any]]:
    """Yield what can take the place of the forward pass of a module."""
    if not plain(module):
        return
    if takes_one(module):
        norm, network = norm_of(module), network_of(module)
        if norm:
            yield partial(_given_one, partial(_normed, norm))
        elif network:
            yield partial(_given_one, partial(_fed_forward, network))
    elif _rotating(type(module).forward):
        yield _attended


def _given_one(how: Callable[[Any, Tensor], Tensor], part: Any, *given: Any, **named: Any) -> Any:
    """Compute `how(part, tensor)` where a module is given one tensor, else what its class does."""
    if named or len(given) != 1 or torch.compiler.is_compiling():
        return type(part).forward(part, *given, **named)
    return how(part, *given)


def _normed(norm: Norm, part: Any, given: Tensor) -> Tensor:
    weight = getattr(part, norm.name)
    dtype = norm.dtypes.get((given.dtype, weight.dtype))
    if dtype and CHOICES.any() and given.shape[-1:] == weight.shape and given.numel():
        name = f"norm of {given.shape[-1]} {spelled(given.dtype, weight.dtype, dtype)}"
        own = CHOICES.choose(lambda each: each.rms_norm, name, (given, weight), partial(_norm_work, norm, part, given))
        if own:
            return own(given, norm.whole(weight), norm.eps, dtype)
    found: Tensor = type(part).forward(part, given)
    return found


def _norm_work(norm: Norm, part: Any, like: Tensor, own: Callable[..., Tensor]) -> Work:
    held = getattr(part, norm.name)
    given, by_out, weight = _drawn(like.device, (ROWS, len(held)), (ROWS, len(held)), (len(held),))
    leaves, out = [given.to(like.dtype), weight.to(held.dtype)], norm.dtypes[like.dtype, held.dtype]
    mine = lambda given, weight: own(given, norm.whole(weight), norm.eps, out)  # noqa: E731
    return _three(mine, partial(computed, part, norm.name), norm.exact, leaves, by_out.to(out))


def _fed_forward(network: Network, part: Any, given: Tensor) -> Tensor:
    children = part._modules
    if not network.as_tried(children):
        computed_so: Tensor = type(part).forward(part, given)
        return computed_so
    made = [children[name](given) for name in network.first]
    gate, up = made[0].chunk(2, -1) if network.split else made
    found: Tensor = children[network.last](_gated(gate, up, network.tanh))
    return found


def _gated(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    act = ACTIVATIONS[tanh]
    if CHOICES.any() and gate.dtype == up.dtype and gate.shape == up.shape and gate.dim() > 1 and gate.numel():
        name = f"{'gelu' if tanh else 'silu'} of {gate.shape[-1]} {spelled(gate.dtype)}"

        def work(own: Callable[..., Tensor]) -> Work:
            shapes = 3 * [(ROWS, gate.shape[-1])]
            *leaves, by_out = (part.to(gate.dtype) for part in _drawn(gate.device, *shapes))
            theirs = lambda gate, up: act(gate) * up  # noqa: E731
            return _three(lambda gate, up: own(gate, up, tanh), theirs, theirs, leaves, by_out)

        own = CHOICES.choose(lambda each: each.gated, name, (gate, up), work)
        if own:
            return own(gate, up, tanh)
    return act(gate) * up


def _attended(part: Any, *given: Any, **options: Any) -> Any:
    forward = type(part).forward  # what compiles looks names up in the module of the class
    fused = None if torch.compiler.is_compiling() else _rotating(forward)
    return (fused or forward)(part, *given, **options)


@cache
def _rotating(forward: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the forward pass of an attention whose function that turns queries and keys by their positions is the kernel's."""
    if type(forward) is not FunctionType or any(each.opname == "STORE_GLOBAL" for each in get_instructions(forward)):
        return None
    known = forward.__globals__
    called = {known[name] for name in forward.__code__.co_names if type(known.get(name)) is FunctionType}
    turning: dict[Callable[..., Any], Callable[..., Any]]
    turning = {function: partial(_turned, function) for function in called if rotates(function)}
    if not turning:
        return None
    names = _Names(known, turning)
    found = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    found.__kwdefaults__ = forward.__kwdefaults__
    return found


class _Names(dict[str, Any]):
    """The names of a Python module, each as it is when it is asked for, with other functions in the place of some."""

    def __init__(self, known: dict[str, Any], instead: dict[Callable[..., Any], Callable[..., Any]]) -> None:
        super().__init__()
        self._known, self._instead = known, instead

    def __missing__(self, name: str) -> Any:
        found = self._known[name]
        return self._instead.get(found, found) if type(found) is FunctionType else found


def _turned(
    function: Callable[..., Any], query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *more: Any, **options: Any
) -> Any:
    """Turn queries and keys; under autocast they come out as attention reads them."""
    if CHOICES.any() and not more and not options and _alike(query, key, cos, sin):
        dtype = turned_dtype(function, query.dtype, cos.dtype)
        dtype = torch.bfloat16 if _rounding(query.device.type) else dtype
        name = f"rotary of {query.shape[1]} and {key.shape[1]} of {query.shape[3]} {spelled(query.dtype, dtype)}"

        def work(own: Callable[..., tuple[Tensor, Tensor]]) -> Work:
            sizes = [(1, part.shape[1], ROWS, part.shape[3]) for part in (query, key)]
            joined = (1, query.shape[1] + key.shape[1], *sizes[0][2:])
            *leaves, by_out, cos, sin = _drawn(query.device, *sizes, joined, *2 * [(1, *sizes[0][2:])])
            mine = lambda *given: torch.cat(own(*given, cos, sin, dtype), 1)  # noqa: E731
            theirs = lambda *given: torch.cat(function(*given, cos, sin), 1).to(dtype)  # noqa: E731
            exact = lambda *given: torch.cat(exact_turn(given[0], given[1], cos.double(), sin.double()), 1)  # noqa: E731
            return _three(mine, theirs, exact, [part.to(query.dtype) for part in leaves], by_out)

        own = CHOICES.choose(lambda each: each.rotate, name, (query, key, cos, sin), work)
        if own:
            return own(query, key, cos, sin, dtype)
    return function(query, key, cos, sin, *more, **options)


def _alike(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether these are four dimensions and three, all of a head turns, and the angles are constants."""
    return (
        (query.dim(), key.dim(), cos.dim()) == (4, 4, 3)
        and query.dtype == key.dtype
        and query.shape[::2] == key.shape[::2]
        and query.shape[3] == key.shape[3]
        and cos.shape == sin.shape
        and cos.shape[1:] == query.shape[2:]
        and len(cos) in (1, len(query))
        and query.shape[3] % 2 == 0
        and query.numel() > 0
        and not (torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad))
    )


def _three(
    mine: Callable[..., Tensor],
    theirs: Callable[..., Tensor],
    exact: Callable[..., Tensor],
    given: Sequence[Tensor],
    by_out: Tensor,
) -> Work:
    wide = [part.double() for part in given]
    return (
        partial(with_gradients, mine, given, by_out),
        partial(with_gradients, theirs, given, by_out),
        partial(with_gradients, exact, wide, by_out),
    )


def _rounding(device: str) -> bool:
    """Whether products of matrices round what they are given to bf16."""
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16


def _drawn(device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draws).to(device) for shape in shapes]
