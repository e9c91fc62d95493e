"""What a rule is given: a vector for each input, a few coordinates at a time. It does not know where the vectors lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gym_core import GymError
from gym_deltasoup.merging.distances import EXACT, Distances, Sums

CHUNK = 2**22  #: numbers of all inputs together that are in memory at a time
BLOCK = 2**13  #: coordinates that are turned into fp64 at a time, so that they stay in the cache
WHOLE = ("vector",)  #: names of the tensors of vectors that have no parts
LEAST = 256  #: coordinates of a chunk, however many inputs there are


class Span(NamedTuple):
    """Where a tensor lies among the coordinates."""

    name: str
    begin: int
    end: int
    row: int  #: numbers in a row, its last dimension


class Chunk(NamedTuple):
    """Some coordinates of all inputs; they are of one tensor."""

    values: Tensor  #: [inputs, coordinates], fp32 or fp64
    begin: int  #: the first coordinate
    tensor: int  #: which of the spans


Scorer = Callable[[Tensor], float]


class Updates(ABC):
    """Vectors of all inputs.

    Args:
        ids: names of the inputs, each once.
        spans: tensors, one behind the other.
        has_base: whether zero is the base, and vectors are what inputs changed in it.
        weights: of the inputs, fp64 `[inputs, tensors]`; 1 where none were given.
        trusted: which input is known to be honest; None where nobody said.
        score: how good the combination with these weights `[inputs]` is, higher being better; None where nobody can say.
        densities: shares of their numbers that shall stay, fp64 `[inputs, tensors]`; NaN where an input did not say.

    """

    def __init__(
        self,
        ids: Sequence[str],
        spans: Sequence[Span],
        has_base: bool = True,
        weights: Tensor | None = None,
        trusted: int | None = None,
        score: Scorer | None = None,
        densities: Tensor | None = None,
    ) -> None:
        """Hold what is said of the inputs."""
        self.ids = tuple(ids)
        self.spans = tuple(spans)
        self.has_base = has_base
        self.weights = torch.ones(len(self.ids), len(self.spans), dtype=torch.float64) if weights is None else weights
        self.trusted = trusted
        self.score = score
        self.densities = torch.full_like(self.weights, torch.nan) if densities is None else densities

    @abstractmethod
    def chunks(self, whole_rows: bool = False, tensors: Sequence[int] | None = None) -> Iterator[Chunk]:
        """Yield all coordinates, or those of some tensors, in order; with `whole_rows` no row is cut."""

    @property
    def size(self) -> int:
        """Coordinates of a vector."""
        return self.spans[-1].end if self.spans else 0

    def density(self, members: Sequence[int]) -> Tensor:
        """Return the share of its numbers that stays of each input, in tensors that are looked at as one: fp64 `[inputs]`.

        It is NaN where an input did not say. Raises GymError where one said different shares of these tensors.
        """
        of = self.densities[:, list(members)]
        if not torch.equal(of.nan_to_num(-1), of[:, :1].nan_to_num(-1).expand_as(of)):
            why = "a density changes with the layer, and which numbers stay is seen in the whole change"
            raise GymError(why, key="inputs.density", fix="give one density, or `scope: tensor`")
        return of[:, 0]

    def drop_rates(self, default: float) -> Tensor:
        """Return the share of numbers that is dropped of each input, the default where it did not say: `[inputs, tensors]`."""
        return (1 - self.densities).nan_to_num(default)

    def scopes(self, scope: str) -> list[list[int]]:
        """Return groups of tensors that are looked at as one vector: all together (`model`), or one by one (`tensor`)."""
        return [list(range(len(self.spans)))] if scope == "model" else [[number] for number in range(len(self.spans))]

    def distances(self, scope: str = "model") -> list[Distances]:
        """Return squared distances between inputs, and to zero, for each of the `scopes`."""
        return self._of_model if scope == "model" else self._measured(scope)

    def lengths(self) -> Tensor:
        """Return the norm of each input, roughly: fp64 `[inputs]`. Not finite where a number, or its square, is not."""
        squares = torch.zeros(len(self.ids), dtype=torch.float64)
        for chunk in self.chunks():
            squares += torch.linalg.vector_norm(chunk.values, dim=1).double() ** 2
        return squares.sqrt()

    def mixed(self, matrix: Tensor) -> Updates:
        """Return combinations of the inputs: a row `[inputs]` of the fp64 matrix for each; zero has the rest of the weight."""
        return Mixed(self, matrix)

    @cached_property
    def _of_model(self) -> list[Distances]:
        return self._measured("model")

    def _measured(self, scope: str) -> list[Distances]:
        found = []
        for members in self.scopes(scope):
            sums = Sums(len(self.ids))
            for chunk in self.chunks(tensors=members):
                sums.add(chunk.values)
            found.append(sums.distances())
        return found


def steps(span: Span, inputs: int, whole_rows: bool, most: int = CHUNK) -> Iterator[tuple[int, int]]:
    """Yield where the chunks of a tensor begin and end, so that all inputs together have about `most` numbers."""
    width = max(LEAST, most // max(1, inputs))
    if whole_rows:
        row = max(1, span.row)  # of a tensor without numbers it has none
        width = max(row, width // row * row)
    for begin in range(span.begin, span.end, width):
        yield begin, min(begin + width, span.end)


class Vectors(Updates):
    """Vectors in memory: fp32 or fp64 `[inputs, coordinates]`."""

    def __init__(
        self,
        values: Tensor,
        ids: Sequence[str] | None = None,
        spans: Sequence[Span] = (),
        *,
        has_base: bool = True,
        weights: Tensor | None = None,
        trusted: int | None = None,
        evaluate: Callable[[Tensor], float] | None = None,
        densities: Tensor | None = None,
        most: int = CHUNK,
    ) -> None:
        """Hold a matrix; `evaluate` says how good a vector is, `most` how many numbers are looked at in a step."""
        count, width = values.shape
        score = None if evaluate is None else lambda mixture: evaluate(mixture.to(values.dtype) @ values)
        names = [str(number) for number in range(count)] if ids is None else ids
        lie = spans or (Span(WHOLE[0], 0, width, width),)
        super().__init__(names, lie, has_base, weights, trusted, score, densities)
        self.values = values
        self.most = most

    def lengths(self) -> Tensor:
        """Return the norms: whole rows, which lie in one piece."""
        return torch.linalg.vector_norm(self.values, dim=1).double()

    def chunks(self, whole_rows: bool = False, tensors: Sequence[int] | None = None) -> Iterator[Chunk]:
        """Yield columns of the matrix, without a copy."""
        for number in range(len(self.spans)) if tensors is None else tensors:
            for begin, end in steps(self.spans[number], len(self.ids), whole_rows, self.most):
                yield Chunk(self.values[:, begin:end], begin, number)


class Chosen(Updates):
    """Some inputs of others, by their numbers."""

    def __init__(self, source: Updates, rows: Sequence[int]) -> None:
        """Look at these rows of a source."""
        trusted = rows.index(source.trusted) if source.trusted in rows else None
        ids = [source.ids[row] for row in rows]
        weights, densities = source.weights[list(rows)], source.densities[list(rows)]
        super().__init__(ids, source.spans, source.has_base, weights, trusted, densities=densities)
        self.source, self.rows = source, torch.tensor(list(rows), dtype=torch.long)
        if (score := source.score) is not None:
            matrix = torch.eye(len(source.ids), dtype=torch.float64)[self.rows]
            self.score = lambda mixture: score(mixture.double() @ matrix)

    def chunks(self, whole_rows: bool = False, tensors: Sequence[int] | None = None) -> Iterator[Chunk]:
        """Yield those rows."""
        for chunk in self.source.chunks(whole_rows, tensors):
            yield chunk._replace(values=chunk.values[self.rows])


class Mixed(Updates):
    """Combinations of the inputs of others."""

    def __init__(self, source: Updates, matrix: Tensor) -> None:
        """Combine with an fp64 matrix `[combinations, inputs]`."""
        ids = source.ids if len(matrix) == len(source.ids) else [str(number) for number in range(len(matrix))]
        super().__init__(ids, source.spans, source.has_base)
        self.source, self.matrix = source, matrix

    def chunks(self, whole_rows: bool = False, tensors: Sequence[int] | None = None) -> Iterator[Chunk]:
        """Yield the combinations."""
        for chunk in self.source.chunks(whole_rows, tensors):
            yield self.chunk(chunk)

    def chunk(self, chunk: Chunk) -> Chunk:
        """Combine a chunk of the source."""
        return chunk._replace(values=combined(self.matrix, chunk.values))

    def distances(self, scope: str = "model") -> list[Distances]:
        """Follow from those of the source: nothing is read again."""
        return [each.mixed(self.matrix) for each in self.source.distances(scope)]

    def mixed(self, matrix: Tensor) -> Updates:
        """Combine combinations: one matrix for both."""
        return Mixed(self.source, matrix @ self.matrix)


class Changed(Updates):
    """The inputs of others with some numbers replaced, chunk by chunk."""

    def __init__(self, source: Updates, change: Callable[[Chunk], Tensor], whole_rows: bool = False) -> None:
        """Replace `chunk.values` by what `change` returns; with `whole_rows` it is given no row in pieces."""
        super().__init__(source.ids, source.spans, source.has_base, source.weights, source.trusted)
        self.source, self.change, self.whole_rows = source, change, whole_rows

    def chunks(self, whole_rows: bool = False, tensors: Sequence[int] | None = None) -> Iterator[Chunk]:
        """Yield them with the numbers replaced."""
        for chunk in self.source.chunks(whole_rows or self.whole_rows, tensors):
            yield chunk._replace(values=self.change(chunk))


def combined(matrix: Tensor, values: Tensor) -> Tensor:
    """Return `matrix @ values`, or `weights @ values`, as numbers of `values`; of few inputs, summed in fp64."""
    if len(values) <= EXACT:
        weights, found = matrix.double(), values.new_empty(*matrix.shape[:-1], values.shape[1])
        for begin in range(0, values.shape[1], BLOCK):
            found[..., begin : begin + BLOCK] = weights @ values[:, begin : begin + BLOCK].double()
        return found
    weights = matrix.to(values.dtype)
    if weights.ndim == 1:
        return weights @ values
    return (values.T @ weights.T).T  # columns in one piece each: faster, also for who sorts them
