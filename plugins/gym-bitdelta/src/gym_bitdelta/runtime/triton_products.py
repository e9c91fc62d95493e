"""The products on a GPU, in Triton. It reads the layout of the C kernels.

A program computes sixteen outputs of some tokens of one segment. Signs are unpacked and multiplied with inputs in registers,
so a plane is read once for all tokens of a block, and a matrix is never written to memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gym_bitdelta.runtime.kernel_layout import LANES, WORD, Field

TOKENS = 16  #: of a block: the least that `tl.dot` takes


@triton.jit
def add_products(
    y: tl.tensor, x: tl.tensor, place: tl.tensor, record: tl.tensor, tokens: tl.tensor, y_row: tl.tensor, x_row: tl.tensor,
    fields: tl.constexpr, BLOCK: tl.constexpr, SECOND: tl.constexpr,
) -> None:  # fmt: skip
    """Add to `y` [., outputs] the product of a segment, given where its arena lies and which rows of x and y its tokens are."""
    segment, tile, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    of = record + (segment * 2 + SECOND) * fields
    planes, inputs, outputs = tl.load(of), tl.load(of + 1), tl.load(of + 2)
    begin, end = tl.load(tokens + segment), tl.load(tokens + segment + 1)
    first = begin + block * BLOCK
    if (tile * 16 >= outputs) | (first >= end):
        return
    words_at = tl.load(place + segment).to(tl.pointer_type(tl.int32))
    floats_at = tl.load(place + segment).to(tl.pointer_type(tl.float32))
    signs, factor, scale, scales = tl.load(of + 3), tl.load(of + 4), tl.load(of + 5), tl.load(of + 6)
    group, column, columns, band = tl.load(of + 7), tl.load(of + 8), tl.load(of + 9), tl.load(of + 10)
    offset, bias, index = tl.load(of + 11), tl.load(of + 12), tl.load(of + 13)
    words, tiles = (inputs + 31) // 32, (outputs + 15) // 16
    groups = (words + group - 1) // group
    lane, bit, token = tl.arange(0, 16), tl.arange(0, 32), first + tl.arange(0, BLOCK)
    wide = tl.where(band > 0, band, tiles)  # without bands all is one
    bands, mine = (tiles + wide - 1) // wide, tile // wide
    sums = tl.zeros((BLOCK, 16), dtype=tl.float32)
    for word in range(words):
        here = word * 32 + bit
        held = tl.load(x + token[:, None] * x_row + here[None], (token < end)[:, None] & (here < inputs)[None], 0.0)
        held = held.to(tl.float32)
        for plane in range(planes):
            scaled = held
            if column >= 0:
                at = column + (tl.where(columns > 1, plane, 0) * bands + mine) * words * 32
                scaled = held * tl.load(floats_at + at + here)[None]
            packed = tl.load(words_at + signs + ((plane * tiles + tile) * words + word) * 16 + lane)
            sign = (((packed[None] >> bit[:, None]) & 1) * 2 - 1).to(tl.float32)
            each = (tl.where(scales > 1, plane, 0) * tiles + tile) * groups + word // group
            told = tl.load(floats_at + scale + each * 16 + lane) * tl.load(floats_at + factor + plane)
            sums += tl.dot(scaled, sign, input_precision="ieee") * told[None]
            if (plane == 0) & (offset >= 0):
                shift = tl.load(floats_at + offset + (tile * groups + word // group) * 16 + lane)
                sums += tl.sum(scaled, 1)[:, None] * shift[None]
    output = tile * 16 + lane
    if bias >= 0:
        sums += tl.load(floats_at + bias + output)[None]
    to = output
    if index >= 0:
        to = tl.load(words_at + index + output, output < outputs, 0)
    at = y + token[:, None] * y_row + to[None]
    mask = (token < end)[:, None] & (output < outputs)[None]
    tl.store(at, (tl.load(at, mask, 0.0).to(tl.float32) + sums).to(y.dtype.element_ty), mask)


def add(y: Tensor, x: Tensor, arenas: Sequence[Tensor], records: Tensor, starts: Tensor, rows: Tensor) -> None:
    """Do what `gym_bitdelta.runtime.products.Products.add` promises."""
    if not arenas:
        return
    rows, per = rows.to(x.device), x.shape[1]
    found, inputs = y[rows].flatten(0, 1), x[rows].flatten(0, 1).contiguous()  # tokens of a segment lie together
    told, table = records, records.to(x.device)
    place = torch.tensor([arena.data_ptr() for arena in arenas], device=x.device)
    tokens = (starts * per).to(x.device)
    most = -(-int(starts.diff().max()) * per // TOKENS)
    ranks = told[:, 0, Field.OUT] * (told[:, 0, Field.PLANES] > 0)
    if int(ranks.max()):
        hidden = torch.zeros(len(inputs), int(ranks.max()), device=x.device)
        _launch(hidden, inputs, place, table, tokens, most, second=False)
        begins = tokens.tolist()
        for number, (first, _) in enumerate(told.tolist()):
            part, leading = hidden[begins[number] : begins[number + 1]], first[Field.LEADING]
            rank = first[Field.OUT] - leading
            both = part[:, :leading] + part[:, rank : rank + leading]
            part[:, :leading], part[:, rank : rank + leading] = both, both
        low = ranks > 0
        _launch(found, hidden, place, _only(table, low), tokens, most, second=True)
        table = _only(table, ~low)
    _launch(found, inputs, place, table, tokens, most, second=True)
    y[rows] = found.unflatten(0, (len(rows), per))


def _only(table: Tensor, chosen: Tensor) -> Tensor:
    """Return records of which those not chosen have no outputs."""
    kept = table.clone()
    kept[~chosen.to(table.device), 1, Field.OUT] = 0
    return kept


def _launch(y: Tensor, x: Tensor, place: Tensor, table: Tensor, tokens: Tensor, most: int, second: bool) -> None:
    tiles = -(-int(table[:, int(second), Field.OUT].max()) // LANES)
    if tiles:
        add_products[(len(table), tiles, most)](
            y, x, place, table.contiguous(), tokens, y.stride(0), x.stride(0), len(Field), TOKENS, int(second)
        )


assert WORD == 2 * LANES  # what the kernel's numbers stand for
