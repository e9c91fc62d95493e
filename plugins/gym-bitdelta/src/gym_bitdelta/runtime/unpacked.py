"""The products in operations of torch: where there is no compiler. Slower than C, and right everywhere, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag, pad

from gym_bitdelta.runtime.arena import LANES, WORD, Field

FEW = 8  #: tokens below which signs are looked up eight outputs at a time, and not made a matrix first


def bytes_of_outputs(bits: NDArray[np.uint8], columns: int) -> NDArray[np.int32]:
    """Arrange signs as `[planes, outputs / 8, inputs]` bytes, the first output in the lowest bit, both sides filled up."""
    planes, rows, _ = bits.shape
    whole = np.zeros((planes, rows + -rows % LANES, columns + -columns % WORD), dtype=np.uint8)
    whole[:, :rows, :columns] = np.unpackbits(bits, axis=-1, count=columns, bitorder="little")
    return np.packbits(whole, axis=1, bitorder="little").reshape(-1).view(np.int32)


def signs_of_outputs(words: Tensor, planes: int, rows: int, columns: int, chosen: Tensor) -> Tensor:
    """Return the signs `[planes, n, columns]` (bool) of the chosen rows `[n]` of what `bytes_of_outputs` arranged."""
    held = words.view(torch.uint8).view(planes, -1, columns + -columns % WORD)
    return (held[:, chosen // 8] >> (chosen % 8).to(torch.uint8)[:, None] & 1)[..., :columns].bool()


def add(y: Tensor, x: Tensor, arenas: Sequence[Tensor], records: Tensor, starts: Tensor, rows: Tensor) -> None:
    """Do what `gym_bitdelta.runtime.products.Products.add` promises."""
    begins = starts.tolist()
    for number, (arena, pair) in enumerate(zip(arenas, records.tolist(), strict=True)):
        first, second = pair
        if not second[Field.OUT]:
            continue
        mine = rows[begins[number] : begins[number + 1]].to(x.device)
        tokens = x[mine].flatten(0, 1).float()
        if first[Field.PLANES]:
            tokens = product(arena, first, tokens)
            rank, leading = first[Field.OUT] - first[Field.LEADING], first[Field.LEADING]
            both = tokens[:, :leading] + tokens[:, rank:]
            tokens = torch.cat([both, tokens[:, leading:rank], both], 1)
        found = product(arena, second, tokens).view(len(mine), x.shape[1], -1)
        if second[Field.INDEX] >= 0:
            index = arena[second[Field.INDEX] :][: second[Field.OUT]].long()
            found = torch.zeros(*found.shape[:2], y.shape[-1], device=y.device).index_copy_(2, index, found)
        y[mine] = (y[mine].float() + found).to(y.dtype)


def product(arena: Tensor, of: Sequence[int], x: Tensor) -> Tensor:
    """Return the product `[tokens, outputs]` of a record with `x` `[tokens, inputs]`, fp32."""
    found = x.new_zeros(len(x), of[Field.OUT])
    if of[Field.PLANES]:
        few = len(x) < FEW and not of[Field.BAND] and x.device.type == "cpu"
        found = torch.stack([_looked_up(arena, of, row) for row in x]) if few else x @ matrix(arena, of).T
    if of[Field.BIAS] >= 0:
        found = found + _floats(arena, of[Field.BIAS], of[Field.OUT])
    return found


def matrix(arena: Tensor, of: Sequence[int]) -> Tensor:
    """Return the matrix `[outputs, inputs]` of a record, fp32."""
    planes, tiles, words = _sizes(of)
    signs = embedding(_signs(arena, of).int(), _patterns(arena.device))  # [planes, tiles * 2, inputs, 8]
    signs = signs.transpose(2, 3).reshape(planes, tiles * LANES, words * WORD)
    return scaled(arena, of, signs[:, : of[Field.OUT], : of[Field.IN]])


def scaled(arena: Tensor, of: Sequence[int], signs: Tensor, rows: Tensor | None = None) -> Tensor:
    """Return the numbers `[n, inputs]` that signs (-1 or 1) `[planes, n, inputs]` of a record stand for.

    `rows` `[n]` are those which the signs are of; by default all.
    """
    scale, offset, column = _scales(arena, of, Field.SCALE), _scales(arena, of, Field.OFFSET), _columns(arena, of)
    chosen = torch.arange(of[Field.OUT], device=arena.device) if rows is None else rows
    assert scale is not None

    def factors(plane: int) -> Tensor | float:
        if column is None:
            return 1.0
        part = column[min(plane, len(column) - 1)][..., : of[Field.IN]]
        return part if len(part) == 1 else part[chosen]

    whole = torch.zeros((), device=arena.device)
    for plane, factor in enumerate(_floats(arena, of[Field.FACTOR], len(signs))):
        spread = _spread(scale[min(plane, len(scale) - 1)][chosen], of)
        whole = whole + signs[plane] * (spread * factor) * factors(plane)
    return whole if offset is None else whole + _spread(offset[0][chosen], of) * factors(0)


def _looked_up(arena: Tensor, of: Sequence[int], x: Tensor) -> Tensor:
    """Return the product with one token `[inputs]`: for eight outputs and each group a weighted sum of patterns of signs."""
    planes, tiles, words = _sizes(of)
    size = of[Field.GROUP] * WORD
    groups = -(-words * WORD // size)
    column = _columns(arena, of)
    row = pad(x, (0, words * WORD - len(x)))[None]
    inputs = row if column is None else row * column[:, 0]  # [planes or 1, inputs]
    signs = _signs(arena, of)
    weights = inputs[:, None].expand(signs.shape).reshape(-1)
    begins = torch.arange(planes * tiles * 2)[:, None] * words * WORD + torch.arange(groups) * size
    sums = embedding_bag(
        signs.reshape(-1).int(), _patterns(arena.device), begins.view(-1).int(), mode="sum", per_sample_weights=weights
    ).view(planes, tiles * 2, groups, 8)
    sums = sums.transpose(2, 3).reshape(planes, tiles * LANES, groups) * _floats(arena, of[Field.FACTOR], planes).view(
        -1, 1, 1
    )
    scale, offset = (_scales(arena, of, place) for place in (Field.SCALE, Field.OFFSET))
    assert scale is not None
    found = (sums * scale).sum((0, 2))
    if offset is not None:
        parts = pad(inputs[0], (0, groups * size - inputs.shape[1])).view(groups, size).sum(1)
        found = found + (offset[0] * parts).sum(1)
    return found[: of[Field.OUT]]


@cache
def _patterns(device: torch.device) -> Tensor:
    """Return the signs `[256, 8]` of each byte."""
    return (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1) * 2.0 - 1


def _sizes(of: Sequence[int]) -> tuple[int, int, int]:
    return of[Field.PLANES], -(-of[Field.OUT] // LANES), -(-of[Field.IN] // WORD)


def _floats(arena: Tensor, begin: int, count: int) -> Tensor:
    return arena[begin : begin + count].view(torch.float32)


def _signs(arena: Tensor, of: Sequence[int]) -> Tensor:
    planes, tiles, words = _sizes(of)
    held = arena[of[Field.SIGNS] :][: planes * tiles * words * LANES]
    return held.view(torch.uint8).view(planes, tiles * 2, words * WORD)


def _scales(arena: Tensor, of: Sequence[int], place: Field) -> Tensor | None:
    """Return scales or offsets `[n, outputs, groups]`."""
    if of[place] < 0:
        return None
    _, tiles, words = _sizes(of)
    count, groups = of[Field.SCALES] if place is Field.SCALE else 1, -(-words // of[Field.GROUP])
    held = _floats(arena, of[place], count * tiles * groups * LANES).view(count, tiles, groups, LANES)
    return held.transpose(2, 3).reshape(count, tiles * LANES, groups)


def _columns(arena: Tensor, of: Sequence[int]) -> Tensor | None:
    """Return the factors of columns `[planes or 1, outputs or 1, inputs]`."""
    if of[Field.COLUMN] < 0:
        return None
    _, tiles, words = _sizes(of)
    bands = -(-tiles // of[Field.BAND]) if of[Field.BAND] else 1
    held = _floats(arena, of[Field.COLUMN], of[Field.COLUMNS] * bands * words * WORD).view(-1, bands, words * WORD)
    return held if bands == 1 else held.repeat_interleave(of[Field.BAND] * LANES, 1)[:, : tiles * LANES]


def _spread(scale: Tensor, of: Sequence[int]) -> Tensor:
    """Return scales `[outputs, groups]` for each input, or one for all."""
    return scale if scale.shape[-1] == 1 else scale.repeat_interleave(of[Field.GROUP] * WORD, -1)[..., : of[Field.IN]]
