"""Products of the rows of a batch with the packed deltas of their tenants: one operation of torch, and who computes it.

`gym_deltas::add_products` adds to `y` `[rows, tokens, out]` what each segment's matrix makes of `x` `[rows, tokens, in]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from gym_bitdelta.runtime import c_products, torch_products
from gym_bitdelta.runtime.kernel_layout import LANES, WORD, Arrange, Field
from gym_core import GymError

KINDS = (torch.float32, torch.bfloat16)  #: what kernels read and write themselves; others go through fp32


@dataclass(frozen=True)
class Products:
    """A way to compute them. Arenas belong to the way that arranged them."""

    name: str  #: `avx512`, `avx2`, `c`, `torch` or `triton`
    arrange: Arrange
    signs: Callable[[Tensor, int, int, int, Tensor], Tensor]
    """Returns the signs of some rows of what was arranged: see `gym_bitdelta.runtime.c_products.tiled_signs`."""

    def add(
        self, y: Tensor, x: Tensor, arenas: Sequence[Tensor], records: Tensor, starts: Tensor, rows: Tensor
    ) -> None:
        """Add to `y` `[rows, tokens, out]` the products of `x` `[rows, tokens, in]` with the matrices of segments.

        Args:
            y: contiguous, changed in place.
            x: contiguous, of the same precision. Sums are fp32 whatever it is.
            arenas: of each segment, int32 `[words]`.
            records: where the matrix of each lies, int64 `[segments, 2, fields]`; see `planes.c`.
            starts: segment s has `rows[starts[s]:starts[s + 1]]`, int64 `[segments + 1]`.
            rows: rows of the batch, each at most once, int64.

        """
        if x.dtype not in KINDS or y.dtype != x.dtype:
            sums = y.float()
            torch.ops.gym_deltas.add_products(sums, x.float(), arenas, records, starts, rows, self.name)
            y.copy_(sums)
        else:
            torch.ops.gym_deltas.add_products(y, x, arenas, records, starts, rows, self.name)

    def rows_of(self, arena: Tensor, pair: Sequence[Sequence[int]], chosen: Tensor) -> Tensor:
        """Return rows `[n, columns]` of the matrix of a pair of records, fp32; zeros where it has no such row."""
        first, second = pair
        found = self._rows(arena, second, chosen)
        if not first[Field.PLANES]:
            return found
        inner = self._rows(arena, first, torch.arange(first[Field.OUT], device=arena.device))
        leading, rank = first[Field.LEADING], first[Field.OUT] - first[Field.LEADING]
        both = inner[:leading] + inner[rank:]
        return found @ torch.cat([both, inner[leading:rank], both])

    def _rows(self, arena: Tensor, record: Sequence[int], chosen: Tensor) -> Tensor:
        planes, rows, columns = (record[field] for field in (Field.PLANES, Field.OUT, Field.IN))
        found = torch.zeros(len(chosen), columns, device=arena.device)
        if record[Field.INDEX] >= 0:
            index = arena[record[Field.INDEX] :][:rows].long()
            place = torch.searchsorted(index, chosen).clamp(max=rows - 1)
            held = (index[place] == chosen).nonzero()[:, 0]
            place = place[held]
        else:
            held = (chosen < rows).nonzero()[:, 0]
            place = chosen[held]
        size = planes * -(-rows // LANES) * -(-columns // WORD) * LANES
        signs = self.signs(arena[record[Field.SIGNS] :][:size], planes, rows, columns, place) * 2.0 - 1
        found[held] = torch_products.scaled(arena, record, signs, place)
        return found


def products(name: str | None = None, device: torch.device | str = "cpu") -> Products:
    """Return the way of this name; by default the fastest for the device. Raises GymError where it does not run there."""
    found = c_products.library() if torch.device(device).type == "cpu" else None
    names = (
        ["triton"]
        if torch.device(device).type == "cuda" and find_spec("triton")
        else list(found.names)
        if found
        else []
    )
    if name is None:
        name = next(iter(names), "torch")
    if name not in (*names, "torch"):
        raise GymError(
            f"there is no kernel `{name}` on this machine: there are {', '.join([*names, 'torch'])}",
            key="kernel",
            fix="leave it out, and the fastest one is taken",
        )
    if name == "torch":
        return Products(name, torch_products.bytes_of_outputs, torch_products.signs_of_outputs)
    return Products(name, c_products.tiles, c_products.tiled_signs)


def _add_on_cpu(
    y: Tensor, x: Tensor, arenas: Sequence[Tensor], records: Tensor, starts: Tensor, rows: Tensor, kernel: str
) -> None:
    library = None if kernel == "torch" else c_products.library()
    if library is None:
        torch_products.add(y, x, arenas, records, starts, rows)
    else:
        library.add(y, x, arenas, records, starts, rows, kernel)


def _add_on_gpu(
    y: Tensor, x: Tensor, arenas: Sequence[Tensor], records: Tensor, starts: Tensor, rows: Tensor, kernel: str
) -> None:
    if kernel == "torch":
        torch_products.add(y, x, arenas, records, starts, rows)
    else:
        from gym_bitdelta.runtime import triton_products  # Triton comes with torch for GPUs alone

        triton_products.add(y, x, arenas, records, starts, rows)


_library = torch.library.Library("gym_deltas", "DEF")
_library.define(
    "add_products(Tensor(a!) y, Tensor x, Tensor[] arenas, Tensor records, Tensor starts, Tensor rows, str kernel) -> ()"
)
_library.impl("add_products", _add_on_cpu, "CPU")
_library.impl("add_products", _add_on_gpu, "CUDA")
_library.impl("add_products", lambda *given: None, "Meta")
