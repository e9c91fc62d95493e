"""Codes in bytes: every length, every number of bits, and where each lies."""

from __future__ import annotations

import pytest
import torch

from gym_bitdelta.delta import packing


def unpacked(packed, columns):
    """Return the codes `[..., columns]` that planes of bits hold."""
    planes = [packing.unpack_bits(plane, columns).to(torch.uint8) << place for place, plane in enumerate(packed)]
    return torch.stack(planes).sum(0, dtype=torch.uint8)


def test_bits_of_every_length_come_back_and_the_tail_is_zero():
    draws = torch.Generator().manual_seed(0)
    whole = torch.randint(0, 256, (1, 4097), generator=draws, dtype=torch.uint8)
    trits = torch.randint(0, 3, (1, 4097), generator=draws, dtype=torch.uint8)
    for length in range(1, 4098):
        codes, few = whole[:, :length], trits[:, :length]
        packed = packing.pack_codes(codes, 8)
        assert packed.shape == (8, 1, -(-length // 8)) and packed.dtype == torch.uint8
        assert torch.equal(unpacked(packed, length), codes)
        assert int(packed[..., -1].max()) < 2 ** ((length - 1) % 8 + 1)
        # numbers of 1 to 7 bits are the lowest planes of these; every residue of 8 meets every one
        bits = length % 7 + 1
        assert torch.equal(packing.pack_codes(codes % 2**bits, bits), packed[:bits])
        assert torch.equal(unpacked(packed[:bits], length), codes % 2**bits)
        three = packing.pack_trits(few)
        assert three.shape == (1, -(-length // 5)) and torch.equal(packing.unpack_trits(three, length), few)


@pytest.mark.parametrize("bits", range(1, 9))
def test_any_number_of_bits_comes_back_whatever_the_shape(bits):
    draws = torch.Generator().manual_seed(bits)
    for shape in ((1, 1), (3, 33), (2, 5, 130), (0, 7)):
        codes = torch.randint(0, 2**bits, shape, generator=draws, dtype=torch.uint8)
        packed = packing.pack_codes(codes, bits)
        assert packed.shape == (bits, *shape[:-1], -(-shape[-1] // 8))
        assert torch.equal(unpacked(packed, shape[-1]), codes)


def test_a_bit_lies_where_the_rule_says():
    codes = torch.zeros(2, 20, dtype=torch.uint8)
    codes[1, 11] = 2
    packed = packing.pack_codes(codes, 2)
    assert packed.nonzero().tolist() == [[1, 1, 1]] and int(packed[1, 1, 1]) == 1 << 3
    codes[1, 11] = 1
    assert packing.pack_trits(codes).nonzero().tolist() == [[1, 2]] and int(packing.pack_trits(codes)[1, 2]) == 3
