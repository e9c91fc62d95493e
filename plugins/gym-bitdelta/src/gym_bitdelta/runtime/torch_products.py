"""The products in operations of torch: where there is no compiler. Slower than C, and right everywhere, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag, pad

from gym_bitdelta.runtime.kernel_layout import LANES, WORD, Field

TOGETHER = 8  #: tenants of one form, so that what is unpacked for them stays near the processor
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
    begins, told = starts.tolist(), records.tolist()
    alike: dict[tuple[object, ...], list[int]] = {}  # tenants of one form are computed together, some at a time
    for number, (first, second) in enumerate(told):
        if second[Field.OUT] and begins[number] < begins[number + 1]:
            alike.setdefault((*first, *second, begins[number + 1] - begins[number]), []).append(number)
    for numbers in alike.values():
        for start in range(0, len(numbers), TOGETHER):
            some = numbers[start : start + TOGETHER]
            mine = torch.stack([rows[begins[number] : begins[number + 1]] for number in some]).to(x.device)
            found = _of_pair(
                [arenas[number] for number in some], told[some[0]], x[mine].flatten(1, 2).float(), y.shape[-1]
            )
            y[mine] = (y[mine].float() + found.view(*mine.shape, *y.shape[1:])).to(y.dtype)


def _of_pair(arenas: Sequence[Tensor], pair: Sequence[Sequence[int]], x: Tensor, width: int) -> Tensor:
    """Return the products `[segments, tokens, width]` of pairs of records, all alike, with `x` `[segments, tokens, inputs]`."""
    first, second = pair
    if first[Field.PLANES]:
        x = product(arenas, first, x)
        rank, leading = first[Field.OUT] - first[Field.LEADING], first[Field.LEADING]
        both = x[..., :leading] + x[..., rank:]
        x = torch.cat([both, x[..., leading:rank], both], -1)
    found = product(arenas, second, x)
    if second[Field.INDEX] < 0:
        return pad(found, (0, width - found.shape[-1]))
    index = torch.stack([arena[second[Field.INDEX] :][: second[Field.OUT]] for arena in arenas]).long()
    return found.new_zeros(*found.shape[:2], width).scatter_(2, index[:, None].expand(found.shape), found)


def product(arenas: Sequence[Tensor], of: Sequence[int], x: Tensor) -> Tensor:
    """Return the products `[segments, tokens, outputs]` of records that are alike with `x` `[segments, tokens, inputs]`, fp32."""
    found = x.new_zeros(*x.shape[:2], of[Field.OUT])
    if of[Field.PLANES] and x.shape[1] < FEW and not of[Field.BAND] and x.device.type == "cpu":
        found = torch.stack([_looked_up(arenas, of, token) for token in x.unbind(1)], 1)
    elif of[Field.PLANES]:
        found = torch.stack([tokens @ matrix(arena, of).T for arena, tokens in zip(arenas, x, strict=True)])
    if of[Field.BIAS] >= 0:
        found = found + torch.stack([_floats(arena, of[Field.BIAS], of[Field.OUT]) for arena in arenas])[:, None]
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
    scale, column = _scale(of, arena), _columns(arena, of)
    chosen = torch.arange(of[Field.OUT], device=arena.device) if rows is None else rows

    def factors(plane: int) -> Tensor | float:
        if column is None:
            return 1.0
        part = column[min(plane, len(column) - 1)][..., : of[Field.IN]]
        return part if len(part) == 1 else part[chosen]

    whole = torch.zeros((), device=arena.device)
    for plane, factor in enumerate(_floats(arena, of[Field.FACTOR], len(signs))):
        spread = _spread(scale[min(plane, len(scale) - 1)][chosen], of)
        whole = whole + signs[plane] * (spread * factor) * factors(plane)
    return whole if of[Field.OFFSET] < 0 else whole + _spread(_offset(of, arena)[chosen], of) * factors(0)


def _looked_up(arenas: Sequence[Tensor], of: Sequence[int], x: Tensor) -> Tensor:
    """Return the products `[segments, outputs]` with one token each `[segments, inputs]`.

    For eight outputs and each group of inputs it is a weighted sum of patterns of signs.
    """
    planes, tiles, words = _sizes(of)
    size = of[Field.GROUP] * WORD
    groups, count = -(-words * WORD // size), len(arenas)
    columns = [_columns(arena, of) for arena in arenas]
    rows = pad(x, (0, words * WORD - x.shape[1]))[:, None]
    inputs = rows * torch.stack([each[:, 0] for each in columns if each is not None]) if of[Field.COLUMN] >= 0 else rows
    signs = torch.stack([_signs(arena, of) for arena in arenas])  # [segments, planes, tiles * 2, inputs]
    weights = inputs[:, :, None].expand(signs.shape).reshape(-1)
    begins = torch.arange(count * planes * tiles * 2)[:, None] * words * WORD + torch.arange(groups) * size
    sums = embedding_bag(
        signs.view(-1).int(), _patterns(x.device), begins.view(-1).int(), mode="sum", per_sample_weights=weights
    ).view(count, planes, tiles * 2, groups, 8)
    factor, scale = (
        torch.stack([told(arena) for arena in arenas]) for told in (partial(_factor, of), partial(_scale, of))
    )
    sums = sums.transpose(3, 4).reshape(count, planes, tiles * LANES, groups) * factor
    found = (sums * scale).sum((1, 3))
    if of[Field.OFFSET] >= 0:
        parts = pad(inputs[:, 0], (0, groups * size - inputs.shape[-1])).view(count, 1, groups, size).sum(-1)
        found = found + (torch.stack([_offset(of, arena) for arena in arenas]) * parts).sum(-1)
    return found[:, : of[Field.OUT]]


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


def _factor(of: Sequence[int], arena: Tensor) -> Tensor:
    return _floats(arena, of[Field.FACTOR], of[Field.PLANES]).view(-1, 1, 1)


def _scale(of: Sequence[int], arena: Tensor) -> Tensor:
    """Return scales `[planes or 1, outputs, groups]`."""
    return _tiled(of, arena, Field.SCALE, of[Field.SCALES])


def _offset(of: Sequence[int], arena: Tensor) -> Tensor:
    """Return offsets `[outputs, groups]`."""
    return _tiled(of, arena, Field.OFFSET, 1)[0]


def _tiled(of: Sequence[int], arena: Tensor, place: Field, count: int) -> Tensor:
    _, tiles, words = _sizes(of)
    groups = -(-words // of[Field.GROUP])
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
