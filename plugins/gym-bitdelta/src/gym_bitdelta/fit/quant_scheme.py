"""How weights are coded, as options say it. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from gym_bitdelta.delta.header import Dense, Raw, data_bytes

AUTO = ("rank1", "row", "col", "tensor")  #: granularities that `auto` tries, the first of equal ones is taken


@dataclass(frozen=True)
class Coding:
    """How weights are coded."""

    code: Literal["signs", "grid", "ternary"]
    bits: int = 1
    scales: str = "auto"
    group: int | None = None
    symmetric: bool = True
    percentile: float | None = None  #: of |number|, where ranges of a grid begin
    sparse: float = 1.0
    """Share of numbers that are zero above which one bit, which has no zero, is taken for three values."""

    @property
    def one_bit(self) -> bool:
        """Whether it has no zero."""
        return self.code == "signs" and self.bits == 1

    @property
    def three_values(self) -> Coding:
        """The same with three values."""
        return replace(self, code="ternary")

    def candidates(self) -> list[Coding]:
        """Return what to choose from."""
        return [replace(self, scales=scales) for scales in AUTO] if self.scales == "auto" else [self]

    def entry(self, shape: tuple[int, ...], transposed: bool = False, rows: int | None = None) -> Dense:
        """Return what the table says of a weight that is coded so."""
        told: dict[str, Any] = {"shape": shape, "code": self.code, "bits": 1 if self.code == "ternary" else self.bits}
        told |= {"scales": self.scales, "group": self.group if self.scales == "group" else None}
        told |= {"transposed": transposed, "rows": rows, "zero_points": self.code == "grid" and not self.symmetric}
        return Dense.model_validate(told)

    def largest(self, shape: tuple[int, ...]) -> Dense | Raw:
        """Return what the table says of the most that a weight of this shape takes, whatever is in it."""
        plain = Raw(shape=shape)
        ways = [self] if self.sparse >= 1 or not self.one_bit else [self, self.three_values]
        coded = max(
            (each.entry(shape) for way in ways for each in way.candidates()), key=lambda entry: data_bytes({"": entry})
        )
        return plain if data_bytes({"": plain}) <= data_bytes({"": coded}) else coded


EMBEDDINGS = Coding("grid", 4, "group", 128)  #: of embeddings and heads of which most rows changed
