"""Codes in bytes: every length, every number of bits, and the layout of the reference implementation."""

from __future__ import annotations

import pytest
import torch

from gym_bitdelta.delta import packing


def test_bits_of_every_length_come_back_and_the_tail_is_zero():
    draws = torch.Generator().manual_seed(0)
    whole = torch.randint(0, 256, (1, 4097), generator=draws, dtype=torch.uint8)
    trits = torch.randint(0, 3, (1, 4097), generator=draws, dtype=torch.uint8)
    for length in range(1, 4098):
        codes, few = whole[:, :length], trits[:, :length]
        packed = packing.pack_codes(codes, 8)
        assert packed.shape == (8, 1, -(-length // 8)) and packed.dtype == torch.uint8
        assert torch.equal(packing.unpack_codes(packed, length), codes)
        assert int(packed[..., -1].max()) < 2 ** ((length - 1) % 8 + 1)
        # numbers of 1 to 7 bits are the lowest planes of these; every residue of 8 meets every one
        bits = length % 7 + 1
        assert torch.equal(packing.pack_codes(codes % 2**bits, bits), packed[:bits])
        assert torch.equal(packing.unpack_codes(packed[:bits], length), codes % 2**bits)
        three = packing.pack_trits(few)
        assert three.shape == (1, -(-length // 5)) and torch.equal(packing.unpack_trits(three, length), few)


@pytest.mark.parametrize("bits", range(1, 9))
def test_any_number_of_bits_comes_back_whatever_the_shape(bits):
    draws = torch.Generator().manual_seed(bits)
    for shape in ((1, 1), (3, 33), (2, 5, 130), (0, 7)):
        codes = torch.randint(0, 2**bits, shape, generator=draws, dtype=torch.uint8)
        packed = packing.pack_codes(codes, bits)
        assert packed.shape == (bits, *shape[:-1], -(-shape[-1] // 8))
        assert torch.equal(packing.unpack_codes(packed, shape[-1]), codes)


def test_a_bit_lies_where_the_rule_says():
    codes = torch.zeros(2, 20, dtype=torch.uint8)
    codes[1, 11] = 2
    packed = packing.pack_codes(codes, 2)
    assert packed.nonzero().tolist() == [[1, 1, 1]] and int(packed[1, 1, 1]) == 1 << 3
    codes[1, 11] = 1
    assert packing.pack_trits(codes).nonzero().tolist() == [[1, 2]] and int(packing.pack_trits(codes)[1, 2]) == 3


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 100, 256])
def test_signs_go_to_the_layout_of_the_reference_and_back(columns):
    """Word w of output o holds the signs of inputs 32 w to 32 w + 31, each worked out one by one."""
    signs = torch.rand(5, columns, generator=torch.Generator().manual_seed(columns)) < 0.5
    packed = packing.pack_bits(signs)
    words = packing.to_int32_rows(packed, columns)
    assert words.dtype == torch.int32 and words.shape == (-(-columns // 32), 5)
    for output in range(5):
        for number, word in enumerate(words[:, output].tolist()):
            wanted = sum(int(bit) << place for place, bit in enumerate(signs[output, 32 * number : 32 * number + 32]))
            assert word & 0xFFFFFFFF == wanted
    assert torch.equal(packing.from_int32_rows(words, columns), packed)
