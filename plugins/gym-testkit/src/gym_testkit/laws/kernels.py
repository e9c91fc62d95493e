"""Laws of libraries of kernels: each function is that of its definition, changes nothing that it is given, and mixes no rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import gelu, one_hot, silu

from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_torch.attention.cached_attention import places_of
from gym_torch.kernels.kernel_functions import Kept, KernelFunctions, Scores
from gym_torch.kernels.linear_products import to_weight
from gym_torch.kinds import KernelLibrary
from gym_torch.segment_spans import Spans

laws = laws_of("kernels", "kernel")

SLACK = {torch.float32: 20.0}  #: how many times its rounding a result may be off, relative; 2 in other precisions
EPS = 1e-5
LENGTHS = 7, 1, 5  #: of segments

Case = tuple[str, Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]


def _functions(brought: Brought) -> KernelFunctions:
    library = cast(KernelLibrary, brought.sample())
    assert not library.missing(), f"this machine lacks {library.missing()}: declare it as `outside`"
    return cast(KernelFunctions, library.build())


def _drawn(*shape: int) -> Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _norm(given: Tensor, weight: Tensor) -> Tensor:
    return given * (given.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def _gate(gate: Tensor, up: Tensor, tanh: bool) -> Tensor:
    return (gelu(gate, approximate="tanh") if tanh else silu(gate)) * up


def _turn(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    both = torch.cat([query, key], 1)
    one, other = both.chunk(2, -1)
    return both * cos.to(both.dtype)[:, None] + torch.cat([-other, one], -1) * sin.to(both.dtype)[:, None]


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    owners = torch.repeat_interleave(torch.tensor(LENGTHS)).to(query.device)
    seen = (owners[:, None] == owners).tril()
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value


def _cases(made: KernelFunctions, dtype: torch.dtype) -> Sequence[Case]:
    """Return what each function computes, with its definition and tensors in a precision."""
    found: list[Case] = []

    def case(name: str, own: Callable[..., Tensor], exact: Callable[..., Tensor], *given: Tensor) -> None:
        device = sorted(made.devices)[0]
        found.append((name, own, exact, [part.to(device, dtype) for part in given]))

    if made.rms_norm is not None:
        norm = made.rms_norm
        case("rms_norm", lambda given, weight: norm(given, weight, EPS, dtype), _norm, _drawn(2, 9, 33), _drawn(33))
    if made.gated is not None:
        for tanh in (False, True):
            own: Callable[..., Tensor] = made.gated
            halves = _drawn(2, 9, 66).chunk(2, -1)  # rows that lie apart
            case("gated", lambda gate, up, own=own, tanh=tanh: own(gate, up, tanh), partial(_gate, tanh=tanh), *halves)
    if made.rotate is not None:
        rotate, cos, sin = made.rotate, _drawn(1, 9, 12), _drawn(1, 9, 12) + 1
        given = [_drawn(2, heads, 9, 12) for heads in (3, 1)]

        def turned(query: Tensor, key: Tensor) -> Tensor:
            return torch.cat(rotate(query, key, cos.to(query.device), sin.to(query.device), dtype), 1)

        case("rotate", turned, partial(_turn, cos=cos, sin=sin), *given)
    if made.attention is not None:
        attention, spans = made.attention, Spans(LENGTHS)

        def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            out = attention(query, key, value, spans, Scores(query.shape[-1] ** -0.5))
            assert out is not None, "it does not attend in rows of segments that continue none"
            return out

        case("attention", attended, _attend, *(_drawn(1, heads, sum(LENGTHS), 32) for heads in (4, 2, 2)))
    return found


def _near(name: str, one: Tensor, true: Tensor, dtype: torch.dtype) -> None:
    off = float((one.double() - true).norm() / true.norm())
    most = SLACK.get(dtype, 2.0) * torch.finfo(dtype).eps
    assert one.shape == true.shape and off <= most, f"{name} in {dtype} is off by {off:.1e}, {most:.1e} is rounding"


@laws("says what it computes, where and in which precisions")
def says(brought: Brought, bench: Bench) -> None:
    """At least one function, with a name, a version, devices and precisions."""
    made = _functions(brought)
    assert made.name and made.version and made.devices and made.dtypes
    given: list[object] = [made.rms_norm, made.gated, made.rotate, made.label_scores, made.attention]
    given += [made.product, made.linear, made.cached_attention]
    assert any(function is not None for function in given), "it computes nothing"


@laws("each function is that of its definition, in value and gradient, and leaves what it is given")
def defined(brought: Brought, bench: Bench) -> None:
    """Within the rounding of the precision, against float64."""
    made = _functions(brought)
    for dtype in made.dtypes:
        for name, own, exact, given in _cases(made, dtype):
            before = [part.clone() for part in given]
            leaves = [part.detach().requires_grad_() for part in given]
            wide = [part.double().detach().requires_grad_() for part in given]
            out, true = own(*leaves), exact(*wide)
            by_out = _drawn(*true.shape).to(true.device, dtype)
            assert out.dtype == dtype, f"{name} gives {out.dtype}, asked for {dtype}"
            _near(name, out.detach(), true.detach(), dtype)
            pairs = zip(
                torch.autograd.grad(out, leaves, by_out), torch.autograd.grad(true, wide, by_out.double()), strict=True
            )
            for one, wanted in pairs:
                _near(f"a gradient of {name}", one, wanted, dtype)
            same = all(torch.equal(one, other) for one, other in zip(given, before, strict=True))
            assert same, f"{name} changes what it is given"


@laws("scores of labels are those of their definition, and logits become `p - 1` where asked")
def scored(brought: Brought, bench: Bench) -> None:
    """Within rounding; a label outside the vocabulary is an error or no number."""
    made = _functions(brought)
    if made.label_scores is None:
        return
    for dtype in made.dtypes:
        device = sorted(made.devices)[0]
        logits, labels = (5 * _drawn(5, 103)).to(device, dtype), (torch.arange(5) * 20).to(device)
        logs, kept = logits.double().log_softmax(1), logits.clone()
        wanted = logs.gather(1, labels[:, None])[:, 0]
        _near("label_scores", made.label_scores(logits, labels, False), wanted, torch.float32)
        assert torch.equal(logits, kept), "label_scores overwrites logits unasked"
        _near("label_scores", made.label_scores(logits, labels, True), wanted, torch.float32)
        _near("the residual", logits, logs.exp() - one_hot(labels, 103), dtype)


@laws("the products of a linear layer are those of their definition")
def multiplied(brought: Brought, bench: Bench) -> None:
    """Forward, back to the input and back to the weight, within rounding."""
    made = _functions(brought)
    if made.linear is None:
        return
    for dtype in made.dtypes:
        device = sorted(made.devices)[0]
        drawn = (_drawn(37, 33), _drawn(9, 33), _drawn(9), _drawn(37, 9))
        rows, weight, bias, by_out = (part.to(device, dtype) for part in drawn)
        wide = rows.double(), weight.double(), by_out.double()
        _near("linear", made.linear.forward(rows, weight, bias), wide[0] @ wide[1].T + bias.double(), dtype)
        _near("linear without a bias", made.linear.forward(rows, weight, None), wide[0] @ wide[1].T, dtype)
        _near("linear, to its input", made.linear.to_input(by_out, weight), wide[2] @ wide[1], dtype)
        _near("linear, to its weight", to_weight(made.linear, by_out, rows), wide[2].T @ wide[0], dtype)
        if made.linear.summed is not None:
            further = _drawn(9, 9).to(device)  # of more digits than the others, to which it is rounded
            one = 2.5 * wide[0] @ wide[1].T + bias.double()
            two = one + wide[2] @ further.to(dtype).double()
            _near("linear, scaled", made.linear.summed([rows], [weight.T], 2.5, bias), one, dtype)
            _near("linear, summed", made.linear.summed([rows, by_out], [weight.T, further], 2.5, bias), two, dtype)


@laws("what a step of decoding does is that of its definition, and no row depends on the others")
def decoded(brought: Brought, bench: Bench) -> None:
    """Products of few rows, and attention of a token each of two rows to those before it, one of which continues a prompt."""
    made = _functions(brought)
    device = sorted(made.devices)[0]
    for dtype in made.dtypes:
        if made.product is not None:
            given, weight, bias = (part.to(device, dtype) for part in (_drawn(5, 33), _drawn(9, 33), _drawn(9)))
            out = made.product(given, weight, bias)
            _near("product", out, given.double() @ weight.double().T + bias.double(), dtype)
            assert torch.equal(made.product(given[1:2], weight, bias), out[1:2]), (
                "a row of `product` depends on the others"
            )
        if made.cached_attention is not None:
            query, key, value = (_drawn(2, heads, 1, 32).to(device, dtype) for heads in (4, 2, 2))
            held, starts = (_drawn(2, 2, 2, size, 32).to(device, dtype) for size in (9, 5))
            new, lengths, prompts = [1, 1], [8, 3], [-1, 1]
            kept = Kept(held[0], held[1], starts[0], starts[1], places_of(new, lengths, prompts, [5, 4]))
            out = made.cached_attention(query, key, value, kept, Scores(0.2))
            for row, length in enumerate(lengths):
                begin = [part[1, :, : 4 * row] for part in starts]
                own = [part[row, :, :length] for part in held]
                parts = zip(begin, own, (key[row], value[row]), strict=True)
                keys, values = (torch.cat(each, 1).double().repeat_interleave(2, 0) for each in parts)
                wanted = (query[row].double() @ keys.transpose(1, 2) * 0.2).softmax(-1) @ values
                _near("cached_attention", out[row], wanted, dtype)
                assert torch.equal(held[0, row, :, length], key[row, :, 0]), "the new key is not behind what is kept"


@laws("a token's result has the same bits whatever lies beside it")
def alone(brought: Brought, bench: Bench) -> None:
    """So packed samples are computed as they are alone."""
    made = _functions(brought)
    for dtype in made.dtypes:
        for name, own, _, given in _cases(made, dtype):
            if name in ("rms_norm", "gated"):
                some = [part[:, 2:5] if part.dim() > 1 else part for part in given]
                assert torch.equal(own(*some), own(*given)[:, 2:5]), f"{name} of a row depends on the others"
