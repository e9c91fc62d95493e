"""Codes, scales and zero points mean in our files what compressed-tensors reads there."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams, compute_dynamic_scales_and_zp

from gym_core import GymError
from gym_quant.config.stored_layout import BYTES, Scheme
from gym_quant.post_training.grid import Codes, Grid, rounded_tokens
from gym_torch.checkpoints.weight_shards import pieces
from gym_torch.quantization.stored_formats import FORMATS


@pytest.mark.parametrize(
    ("columns", "group", "fitted"),
    [(512, 128, 128), (192, 128, 64), (37, 128, 0), (128, 128, 0), (96, 128, 32), (8, 0, 0)],
)
def test_a_group_is_halved_until_it_divides_the_columns(columns, group, fitted):
    assert Scheme(4, group).fitted(columns).group == fitted


SCHEMES = [Scheme(bits, 16, symmetric) for bits in range(2, 9) for symmetric in (True, False)]
SCHEMES += [Scheme(3, 0, False), Scheme(8, 0, floating=True)]


def arguments(scheme: Scheme) -> QuantizationArgs:
    group = {"strategy": "group", "group_size": scheme.group} if scheme.group else {"strategy": "channel"}
    kind = "float" if scheme.floating else "int"
    return QuantizationArgs(num_bits=scheme.bits, type=kind, symmetric=scheme.symmetric, **group)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "scheme",
    SCHEMES,
)
def test_the_library_reads_what_we_write(scheme, dtype):
    weight = torch.randn(10, 48, generator=torch.Generator().manual_seed(scheme.bits)).to(dtype)
    codes = Grid.of(weight, scheme, dtype).codes(weight)
    tensors = codes.tensors("weight")
    shapes = {name: (tuple(each.shape), each.element_size()) for name, each in tensors.items()}
    stored = scheme.stored("weight", (10, 48), "F32" if dtype == torch.float32 else "BF16")
    assert shapes == {name: (shape, BYTES[code]) for name, (code, shape) in stored.items()}
    library = BaseCompressor.get_value_from_registry("float-quantized" if scheme.floating else "pack-quantized")
    asked = QuantizationScheme(targets=["Linear"], weights=arguments(scheme))
    read = library.decompress({name.replace("weight.", ""): each for name, each in tensors.items()}, asked)["weight"]
    assert torch.equal(read, codes.weight())
    assert torch.equal(Codes.of("weight", tensors, scheme).weight(), codes.weight())


@pytest.mark.parametrize("scheme", [Scheme(4, 16), Scheme(4, 16, False), Scheme(8, 0), Scheme(8, 0, floating=True)])
def test_scales_are_those_of_the_library(scheme):
    weight = torch.randn(6, 48, generator=torch.Generator().manual_seed(1))
    grouped = weight.view(6, scheme.groups(48), -1)
    scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), arguments(scheme))
    grid = Grid.of(weight, scheme, torch.float32)
    torch.testing.assert_close(grid.scale, scale)
    if grid.zero is not None:
        assert torch.equal(grid.zero.float(), zero.float())


def test_tokens_are_rounded_as_the_library_rounds_them():
    states = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(2))
    states[0, 0] = 0
    asked = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)
    scale, zero = compute_dynamic_scales_and_zp(states, asked, torch.nn.Linear(1, 1))
    torch.testing.assert_close(rounded_tokens(states), fake_quantize(states, scale, zero, asked), rtol=1e-5, atol=1e-6)


def test_zeros_and_single_numbers_stay_what_they_are():
    for scheme in (Scheme(2, 0), Scheme(4, 0, False), Scheme(8, 0, floating=True)):
        zeros = torch.zeros(3, 4)
        assert torch.equal(Grid.of(zeros, scheme, torch.float32).codes(zeros).weight(), zeros)
    odd = torch.tensor([[7.0]])
    torch.testing.assert_close(Grid.of(odd, Scheme(4, 0, False), torch.float32).codes(odd).weight(), odd)


def test_zero_points_of_few_rows_can_be_written():
    """Those of up to 16 rows of 2 bits are one number, whose stride the library leaves as that of a transposed tensor."""
    weight = torch.randn(16, 48, generator=torch.Generator().manual_seed(1))
    zero = Grid.of(weight, Scheme(2, 0, False), torch.float32).codes(weight).tensors("weight")["weight_zero_point"]
    assert b"".join(pieces(zero)) == zero.numpy().tobytes()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "columns"), [(3, 24), (2, 8), (5, 17), (3, 64)])
def test_a_base_is_read_with_the_bits_it_was_written_in_however_few_its_columns(bits, columns, symmetric):
    scheme = Scheme(bits, 0, symmetric)
    weight = torch.randn(6, columns, generator=torch.Generator().manual_seed(1))
    codes = Grid.of(weight, scheme, torch.float32).codes(weight)
    stored = {name.replace(".", "_"): each for name, each in codes.tensors("weight").items()}
    groups = {"group_0": {"weights": {"num_bits": bits}}, "group_1": {"weights": {"num_bits": 8}}}
    read = FORMATS["compressed-tensors"]({"config_groups": groups})
    assert torch.equal(read.decode(stored, read.shape(stored)), codes.weight())


def test_codes_that_were_packed_with_gaps_are_refused():
    """Earlier releases of compressed-tensors packed ten codes of 3 bits into an integer."""
    stored = {"weight_packed": torch.zeros(6, 7, dtype=torch.int32), "weight_shape": torch.tensor([6, 64])}
    with pytest.raises(GymError, match="64 codes of 3 bits are packed into 7 integers"):
        FORMATS["compressed-tensors"]({"config_groups": {"group_0": {"weights": {"num_bits": 3}}}}).shape(stored)
