"""What layers do between matrix products, in one pass: as the definitions have it in float64, and in every family."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from gym_torch_packed import separate
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import gelu, silu

from gym_adapters import LoRA
from gym_core import GymError
from gym_testkit import architectures
from gym_torch.batch import packed
from gym_torch.kernels import fused_modules, fused_ops, native_code
from gym_torch.kernels.fused_modules import fuse
from gym_torch.kernels.fused_ops import Kernel, gated, label_scores, rms_norm, rotate
from gym_torch.kernels.kernel_trials import with_gradients
from gym_torch.kernels.module_recognition import exact_turn
from gym_torch.memory.gradient_checkpointing import recompute_layers
from gym_torch.memory.tiling import tile
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED
from gym_torch.patched_forward import plain
from gym_torch.policy import Policy

FP32, BF16 = torch.float32, torch.bfloat16
CLOSE = {FP32: 2e-6, BF16: 4e-3}


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    found = fused_ops.kernel()
    if found is None:
        pytest.skip("no compiler")
    return found


@pytest.fixture
def always(kernel: Kernel) -> Iterator[None]:
    """Let the kernel do its work whatever a trial says."""
    fused_modules.CHOICES.always = True
    yield
    fused_modules.CHOICES.always = None


def drawn(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return (2 * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))).to(dtype)


def norm(given: Tensor, weight: Tensor) -> Tensor:
    return given * (given.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def check(own: Callable[..., Tensor], exact: Callable[..., Tensor], given: list[Tensor], dtype: torch.dtype) -> None:
    """Compare values and gradients with a definition in float64."""
    by_out = drawn(*exact(*given).shape)
    found = with_gradients(own, given, by_out)
    wanted = with_gradients(exact, [part.double() for part in given], by_out.to(dtype).double())
    assert found[0].dtype == dtype
    assert [part.dtype for part in found[1:]] == [part.dtype for part in given]
    for one, true in zip(found, wanted, strict=True):
        close = max(CLOSE[one.dtype], CLOSE[dtype] if one.dtype == BF16 else 0)
        assert one.shape == true.shape and float((one.double() - true).norm()) <= close * float(true.norm())


@pytest.mark.parametrize("dtypes", [(FP32, FP32), (BF16, FP32), (BF16, BF16), (FP32, BF16)])
@pytest.mark.parametrize("shape", [(1, 300, 64), (2, 3, 5, 33), (3, 5), (260, 17)])
def test_a_norm_is_that_of_its_definition(kernel, shape, dtypes):
    given = [drawn(*shape, dtype=dtypes[0]), drawn(shape[-1])]
    check(lambda *given: rms_norm(kernel, *given, 1e-5, dtypes[1]), norm, given, dtypes[1])


def test_a_norm_of_what_lies_apart_and_with_a_frozen_weight(kernel):
    given = drawn(7, 5, 40).transpose(0, 1)[..., ::2]
    weight = drawn(20)
    check(
        lambda given: rms_norm(kernel, given, weight, 1e-5, FP32), lambda x: norm(x, weight.to(x.dtype)), [given], FP32
    )


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("tanh", [False, True])
def test_a_gate_is_that_of_its_definition(kernel, tanh, dtype):
    def exact(gate: Tensor, up: Tensor) -> Tensor:
        return (gelu(gate, approximate="tanh") if tanh else silu(gate)) * up

    for shape in ((1, 70, 96), (3, 2, 33), (5, 1)):
        given = [drawn(*shape, dtype=dtype), 3 * drawn(*shape, dtype=dtype)]
        check(lambda *given: gated(kernel, *given, tanh), exact, given, dtype)
    apart = [drawn(1, 6, 33, dtype=dtype).transpose(0, 1) for _ in range(2)]  # one row each, as if 6 rows lay between
    check(lambda *given: gated(kernel, *given, tanh), exact, apart, dtype)
    whole = drawn(1, 40, 60, dtype=dtype)  # one product makes both
    check(lambda x: gated(kernel, *x.chunk(2, -1), tanh), lambda x: exact(*x.chunk(2, -1)), [whole], dtype)


@pytest.mark.parametrize("dtypes", [(FP32, FP32), (FP32, BF16), (BF16, BF16), (BF16, FP32)])
@pytest.mark.parametrize("rows", [1, 2])
def test_positions_turn_as_defined(kernel, rows, dtypes):
    cos, sin = drawn(rows, 9, 12), drawn(rows, 9, 12) + 1
    given = drawn(2, 9, 3, 12, dtype=dtypes[0]).transpose(1, 2)
    check(
        lambda given: rotate(kernel, given, cos, sin, dtypes[1]),
        lambda given: exact_turn(given, given, cos.to(given.dtype), sin.to(given.dtype))[0],
        [given],
        dtypes[1],
    )


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_scores_of_labels_and_what_they_pull_are_those_of_the_definition(kernel, dtype):
    logits, labels = 5 * drawn(21, 1003, dtype=dtype), torch.arange(21) * 47
    logs = logits.double().log_softmax(1)
    pulled = logs.exp() - nn.functional.one_hot(labels, 1003)
    kept, wanted = logits.clone(), logs.gather(1, labels[:, None])[:, 0]
    assert (label_scores(kernel, logits, labels, residual=False) - wanted).abs().max() < 1e-5
    assert torch.equal(logits, kept)
    assert (label_scores(kernel, logits, labels, residual=True) - wanted).abs().max() < 1e-5
    assert (logits.double() - pulled).norm() < CLOSE[dtype] * pulled.norm()
    with pytest.raises(GymError, match="outside the vocabulary"):
        label_scores(kernel, logits, labels + 1000, residual=False)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_come_out_where_the_definition_has_them(kernel, wrong):
    given, other, weight = drawn(4, 40), drawn(4, 40), drawn(40)
    given[2, 7] = wrong
    labels = torch.tensor([3, 7, 7, 0])
    cos, sin = drawn(1, 4, 40), drawn(1, 4, 40)
    pairs = [
        (rms_norm(kernel, given, weight, 1e-5, FP32), norm(given, weight)),
        (gated(kernel, given, other, False), silu(given) * other),
        (gated(kernel, given, other, True), gelu(given, approximate="tanh") * other),
        (rotate(kernel, given[None, None], cos, sin, FP32), exact_turn(given[None, None], given[None, None], cos, sin)[0]),
        (label_scores(kernel, given.clone(), labels, False), given.log_softmax(1).gather(1, labels[:, None])[:, 0]),
    ]  # fmt: skip
    for found, wanted in pairs:
        assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())


def test_a_row_has_the_same_bits_alone_and_in_any_number_of_threads(kernel):
    given, by_out, weight = drawn(1, 3000, 64), drawn(1, 3000, 64), drawn(64)
    logits, labels = drawn(300, 1000), torch.arange(300)

    def results() -> list[Tensor]:
        pulled = logits.clone()
        both = with_gradients(lambda one, other: gated(kernel, one, other, False), [given, by_out], by_out)
        normed = with_gradients(lambda *given: rms_norm(kernel, *given, 1e-5, FP32), [given, weight], by_out)
        return [*both, *normed, label_scores(kernel, pulled, labels, True), pulled]

    threads, found = torch.get_num_threads(), results()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert all(torch.equal(one, other) for one, other in zip(found, results(), strict=True))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(rms_norm(kernel, given[:, 7:9], weight, 1e-5, FP32), found[3][:, 7:9])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", architectures.FAMILIES)
def test_every_family_is_as_near_to_fp32_as_without_it(name, precision, always):
    model = architectures.build(name)
    assert layout_for(model) is PACKED

    def found(own: bool, precision: str) -> list[Tensor]:
        fused_modules.CHOICES.always = own
        model.zero_grad()
        log_probs = Policy(model, precision)(packed(*separate()))
        log_probs.sum().backward()
        gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        return [log_probs.detach(), torch.cat(gradients)]

    exact, *both = (found(*how) for how in ((False, "fp32"), (True, precision), (False, precision)))
    mine, theirs = (
        [float((one - true).norm() / true.norm()) for one, true in zip(each, exact, strict=True)] for each in both
    )
    assert all(one <= 1.2 * other + 1e-5 for one, other in zip(mine, theirs, strict=True)), (mine, theirs)
    assert max(theirs) < {"fp32": 1e-5, "bf16": 0.2, "fp16": 0.02}[precision]


def test_a_layer_keeps_less_for_its_gradient(always):
    model = architectures.build("llama")
    assert layout_for(model) is PACKED
    policy, kept = Policy(model), {}
    for own in (True, False):
        fused_modules.CHOICES.always = own
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        for weight in model.parameters():
            pack(weight)
        weights = sum(sizes.values())
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            policy.hidden(packed(*separate()))
        kept[own] = sum(sizes.values()) - weights
    assert kept[True] < 0.8 * kept[False], kept


EXPECTED = {"qwen3": 13, "llama": 9, "gemma2": 13, "phi3": 9, "phi": 2, "gpt2": 0}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_found_in_a_family(name, kernel):
    model = architectures.build(name)
    fuse(model)
    assert sum(not plain(module) for module in model.modules()) == EXPECTED[name]


class Doubled(nn.Module):
    """Looks like a norm and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, given: Tensor) -> Tensor:
        return 2 * norm(given, self.weight)


class Clamped(nn.Module):
    """A gated network that computes something else where numbers are large."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, given: Tensor) -> Tensor:
        return self.three(silu(self.one(given).clamp(max=7.0)) * self.two(given))


class Refusing(Doubled):
    def forward(self, given: Tensor) -> Tensor:
        raise ValueError("not today")


@pytest.mark.parametrize("kind", [Doubled, Clamped, Refusing])
def test_what_computes_something_else_is_left_alone(kind):
    model = nn.Sequential(kind())
    fuse(model)
    assert plain(model[0])


def test_a_copy_has_weights_of_its_own_and_within_slices_nothing_changes(always):
    model = architectures.build("llama")
    assert layout_for(model) is PACKED
    batch = packed(*separate())
    policy = Policy(model)
    expected = policy(batch).detach()
    sliced = copy.deepcopy(model)
    for layer in sliced.model.layers:
        tile(layer, tokens=7)
    assert (Policy(sliced)(batch) - expected).abs().max() < 1e-5
    with torch.no_grad():
        for weight in sliced.parameters():
            weight.zero_()
    assert torch.equal(policy(batch), expected)


def test_adapters_frozen_weights_and_recomputation_work_beside_it(always):
    found = []
    for own in (True, False):
        fused_modules.CHOICES.always = own
        torch.manual_seed(0)
        model = architectures.build("qwen3")
        assert layout_for(model) is PACKED
        adapted = LoRA(rank=2).build(model=model, seed=0)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(weight, std=0.1)
        recompute_layers(model.train(), True)
        log_probs = Policy(model)(packed(*separate()))
        log_probs.sum().backward()
        found.append(
            [log_probs.detach(), *(weight.grad for weight in adapted.state().values() if weight.grad is not None)]
        )
    assert len(found[0]) == len(found[1])
    for one, true in zip(*found, strict=True):
        assert float((one - true).norm()) <= 1e-4 * float(true.norm())


def test_whatever_transforms_traces_or_has_no_data_goes_the_way_of_torch(always):
    model = architectures.build("llama")
    module = model.model.layers[0].mlp
    given, towards = drawn(1, 6, 32), drawn(1, 6, 32) + 1
    before = module(given), torch.func.jvp(module, (given,), (towards,))[1], torch.vmap(module)(given)
    fuse(model)
    after = module(given), torch.func.jvp(module, (given,), (towards,))[1], torch.vmap(module)(given)
    for one, other in zip(before, after, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert torch.equal(torch.func.jvp(module, (given,), (towards,))[1], before[1])
    assert module.to("meta")(given.to("meta")).shape == given.shape
    for shape in ((0, 6, 32), (32,)):
        assert model.model.norm(torch.ones(shape)).shape == shape


def test_tensors_without_data_take_what_a_run_takes(kernel):
    with FakeTensorMode():
        given = torch.empty(1, 6, 32, requires_grad=True)
        out = rms_norm(kernel, given, torch.empty(32, requires_grad=True), 1e-5, BF16)
        assert out.dtype == BF16 and torch.autograd.grad(out.sum(), given)[0].shape == given.shape


def test_without_a_compiler_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(fused_ops, "kernel", lambda: None)
    model = architectures.build("llama")
    fuse(model)
    assert all(plain(module) for module in model.modules())
    assert native_code.OFF == "GYM_COMPILE_C"
