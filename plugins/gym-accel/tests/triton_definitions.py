"""Kernels in Triton are those of their definitions: on a GPU, or with `TRITON_INTERPRET=1` in Triton's interpreter on a CPU.

`test_triton.py` runs this file in a process of its own, for Triton looks at the environment where it is first imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from torch.nn.functional import gelu, silu
from triton.runtime import interpreter

from gym_accel import Liger, Triton
from gym_core import Run, load_recipe
from gym_core.record import RunRecord
from gym_testkit import architectures
from gym_torch.batch import Piece
from gym_torch.kernels.fused_modules import CHOICES
from gym_torch.kernels.kernel_functions import KernelFunctions
from gym_torch.kernels.kernel_trials import with_gradients
from gym_torch.kernels.module_recognition import exact_turn
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.policy import Policy

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
RECIPE = {"model": {"path": "tiny", "kernels": ["triton"]}, "data": "rows.jsonl", "algorithm": "sft"}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
CLOSE = {FP32: 2e-6, BF16: 8e-3 if INTERPRETED else 4e-3, FP16: 5e-4}  # the interpreter cuts bf16 off, a GPU rounds


if INTERPRETED:
    # The interpreter leaves out what a launch on a GPU brings: floats as numbers of the device, and the functions of its library.
    converted = interpreter._implicit_cvt

    def convert(given: object) -> object:
        if type(given) is not float:
            return converted(given)
        return tl.tensor(interpreter.TensorHandle(np.array([given], dtype=np.float32), tl.float32), tl.float32)

    interpreter._implicit_cvt = convert
    import_module("liger_kernel.ops.rms_norm").rsqrt = lambda given: tl.math.rsqrt(given)
    import_module("liger_kernel.ops.geglu").tanh = lambda given: 2 * tl.sigmoid(2 * given) - 1


@pytest.fixture(scope="module", params=[Triton(), Liger()], ids=["triton", "liger"])
def kernels(request: pytest.FixtureRequest) -> KernelFunctions:
    """What libraries compute that both have: norms and gates."""
    return request.param.build()


@pytest.fixture(scope="module")
def own() -> KernelFunctions:
    return Triton().build()


def drawn(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return (2 * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))).to(DEVICE, dtype)


def check(own: Callable[..., Tensor], exact: Callable[..., Tensor], given: list[Tensor], dtype: torch.dtype) -> None:
    """Compare values and gradients with a definition in float64."""
    by_out = drawn(*exact(*given).shape)
    before = [part.clone() for part in given]
    found = with_gradients(own, given, by_out)
    wanted = with_gradients(exact, [part.double() for part in given], by_out.to(dtype).double())
    assert found[0].dtype == dtype
    assert [part.dtype for part in found[1:]] == [part.dtype for part in given]
    for one, true in zip(found, wanted, strict=True):
        close = max(CLOSE[one.dtype], CLOSE[dtype] if one.dtype != FP32 else 0)
        assert one.shape == true.shape and float((one.double() - true).norm()) <= close * float(true.norm())
    assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True)), "an input was changed"


def norm(given: Tensor, weight: Tensor) -> Tensor:
    return given * (given.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def gate(act: Tensor, up: Tensor, tanh: bool) -> Tensor:
    return (gelu(act, approximate="tanh") if tanh else silu(act)) * up


@pytest.mark.parametrize("dtypes", [(FP32, FP32), (BF16, FP32), (BF16, BF16), (FP32, FP16)])
def test_a_norm_is_that_of_its_definition(kernels, dtypes):
    given = [drawn(2, 3, 2, 33, dtype=dtypes[0]), drawn(33)]
    check(lambda *given: kernels.rms_norm(*given, 1e-5, dtypes[1]), norm, given, dtypes[1])


def test_a_norm_of_more_rows_than_programs(kernels):
    check(lambda *given: kernels.rms_norm(*given, 1e-5, FP32), norm, [drawn(1, 259, 4), drawn(4)], FP32)


def test_a_norm_of_what_lies_apart(kernels):
    given = [drawn(7, 5, 40).transpose(0, 1)[..., ::2], drawn(40)[::2]]
    check(lambda *given: kernels.rms_norm(*given, 1e-5, FP32), norm, given, FP32)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("tanh", [False, True])
def test_a_gate_is_that_of_its_definition(kernels, tanh, dtype):
    if INTERPRETED and dtype == BF16 and kernels.name.startswith("liger"):
        pytest.skip("Liger multiplies in bf16, which the interpreter holds as integers")
    for shape in ((3, 2, 33), (2, 1030)):  # more than a program computes
        given = [drawn(*shape, dtype=dtype), 3 * drawn(*shape, dtype=dtype)]
        check(lambda *given: kernels.gated(*given, tanh), lambda *given: gate(*given, tanh), given, dtype)
    whole = drawn(2, 4, 60, dtype=dtype)  # one product makes both
    check(lambda x: kernels.gated(*x.chunk(2, -1), tanh), lambda x: gate(*x.chunk(2, -1), tanh), [whole], dtype)


@pytest.mark.parametrize("dtypes", [(FP32, FP32), (FP32, BF16), (BF16, BF16), (BF16, FP32)])
@pytest.mark.parametrize("rows", [1, 2])
def test_positions_turn_as_defined(own, rows, dtypes):
    cos, sin = drawn(rows, 5, 12), drawn(rows, 5, 12) + 1
    given = [drawn(2, 5, heads, 12, dtype=dtypes[0]).transpose(1, 2) for heads in (3, 1)]
    check(
        lambda *given: torch.cat(own.rotate(*given, cos, sin, dtypes[1]), 1),
        lambda *given: torch.cat(exact_turn(*given, cos.to(given[0].dtype), sin.to(given[0].dtype)), 1),
        given,
        dtypes[1],
    )


def test_heads_may_lie_so_far_apart_that_32_bits_do_not_count_it(own):
    """As in the gradient of a long row, whose heads lie one behind another; memory that nobody touches takes none."""
    apart = 2**30 + 8
    whole = torch.empty(2 * apart + 12, dtype=FP16, device=DEVICE)
    heads = whole.as_strided((1, 3, 1, 12), (1, apart, 12, 1))
    near = drawn(1, 3, 1, 12, dtype=FP16)
    heads.copy_(near)
    cos, sin = drawn(1, 1, 12), drawn(1, 1, 12) + 1
    assert torch.equal(own.rotate(heads, near, cos, sin, FP32)[0], own.rotate(near, near, cos, sin, FP32)[0])


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("size", [103, 9001])
def test_scores_of_labels_and_what_they_pull_are_those_of_the_definition(own, size, dtype):
    logits, labels = 5 * drawn(5, size, dtype=dtype), torch.arange(5, device=DEVICE) * (size // 5)
    logits[1, : size - 1] = -torch.inf  # all of a block, and what comes after
    labels[1] = size - 1
    logs = logits.double().log_softmax(1)
    pulled = logs.exp() - torch.nn.functional.one_hot(labels, size)
    kept, wanted = logits.clone(), logs.gather(1, labels[:, None])[:, 0]
    assert (own.label_scores(logits, labels, False) - wanted).abs().max() < 2e-5
    assert torch.equal(logits, kept)
    assert (own.label_scores(logits, labels, True) - wanted).abs().max() < 2e-5
    assert (logits.double() - pulled).norm() < CLOSE[dtype] * pulled.norm()
    outside = own.label_scores(kept, torch.tensor([size, -1, 0, 1, -100], device=DEVICE), False)
    assert outside.isnan().tolist() == [True, True, False, False, True]


def same_kinds(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether numbers that are not finite stand in the same places."""
    return all(
        torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())
        for found, wanted in pairs
    )


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_come_out_where_the_definition_has_them(kernels, own, wrong):
    given, other, weight = drawn(4, 40), drawn(4, 40), drawn(40)
    given[2, 7] = wrong
    labels = torch.tensor([3, 7, 7, 0], device=DEVICE)
    cos, sin, heads = drawn(1, 4, 40), drawn(1, 4, 40), given[None, None]
    scores = given.log_softmax(1).gather(1, labels[:, None])[:, 0]
    assert same_kinds([(kernels.rms_norm(given, weight, 1e-5, FP32), norm(given, weight))])
    assert same_kinds([(kernels.gated(given, other, tanh), gate(given, other, tanh)) for tanh in (False, True)])
    assert same_kinds([(own.rotate(heads, heads, cos, sin, FP32)[0], exact_turn(heads, heads, cos, sin)[0])])
    assert same_kinds([(own.label_scores(given.clone(), labels, False), scores)])


@pytest.mark.parametrize("name", ["gemma2", "phi3"])
def test_a_model_computes_with_them_as_with_torch(kernels, name, tmp_path, monkeypatch):
    """Norms with an offset and without, gates of both kinds, apart and made by one product, positions and scores."""
    model = architectures.build(name).to(DEVICE)
    assert layout_for(model) is PACKED
    pieces = [Piece(f"{size}", np.arange(3, 3 + size, dtype=np.int32), np.arange(size) > 0) for size in (4, 3)]
    run = Run(load_recipe(RECIPE | {"output": str(tmp_path)}), tmp_path, RunRecord(tmp_path / "run.json"))
    found = []
    for libraries in ([kernels], []):
        monkeypatch.setattr(CHOICES, "always", bool(libraries))
        with CHOICES.kept(run, libraries):
            model.zero_grad()
            log_probs = Policy(model)(PACKED.lay_out(pieces, (None, None)).to(DEVICE))
            log_probs.sum().backward()
        gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        found.append([log_probs.detach(), torch.cat(gradients)])
    for one, true in zip(*found, strict=True):
        assert 0 < float((one - true).norm()) <= 1e-5 * float(true.norm()), "no bit differs where torch computed both"


def test_a_row_has_the_same_bits_alone(kernels):
    given, other, weight = drawn(1, 20, 64), drawn(1, 20, 64), drawn(64)
    for how in (
        lambda one, two: kernels.rms_norm(one, weight, 1e-5, FP32),
        lambda one, two: kernels.gated(one, two, False),
    ):
        assert torch.equal(how(given[:, 7:9], other[:, 7:9]), how(given, other)[:, 7:9])
