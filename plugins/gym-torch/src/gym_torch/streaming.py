"""Steps over samples that are streamed in windows: each window is shuffled separately, and at most two are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gym_core import Train
from gym_torch.config import endless
from gym_torch.packing import Layout
from gym_torch.sample_order import order
from gym_torch.source import E, E_co, Examples, Source, Step, check_continued, share

BEGIN: Mapping[str, Any] = {"window": None, "place": 0}


class Window(Protocol[E_co]):
    """Samples that are in memory together."""

    @property
    def examples(self) -> Examples[E_co]:
        """The samples, at least one."""
        ...

    @property
    def number(self) -> int:
        """Windows before it, by which it is shuffled."""
        ...

    @property
    def epoch(self) -> int:
        """Passes over the rows before it."""
        ...

    @property
    def last(self) -> bool:
        """Whether a pass over the rows ends with it."""
        ...

    @property
    def state(self) -> Mapping[str, Any]:
        """Plain data by which the stream begins with it again, exactly, or says that it cannot."""
        ...


@runtime_checkable
class Windows(Protocol[E_co]):
    """Samples without an end."""

    def windows(self, state: Mapping[str, Any] | None = None) -> Iterator[Window[E_co]]:
        """Yield windows for ever, from the first on, or from that of this state."""
        ...


class Taken(NamedTuple, Generic[E]):
    """A sample, and where it stands."""

    example: E
    tokens: int
    window: Window[E]
    place: int  #: in the order of its window, from 0

    @property
    def ends_pass(self) -> bool:
        """Whether no sample of the pass comes behind it."""
        return self.window.last and self.place + 1 == len(self.window.examples)


class Together(Sequence[E], Generic[E]):
    """The samples of one step."""

    def __init__(self, taken: Sequence[Taken[E]]) -> None:
        """Hold them."""
        self._examples = [each.example for each in taken]
        self.lengths: npt.NDArray[np.integer] = np.array([each.tokens for each in taken], dtype=np.int64)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._examples)

    def __getitem__(self, index: Any) -> Any:
        """Return one of them."""
        return self._examples[index]


class Streamed(Source, Generic[E]):
    """Steps over windows of samples. The order follows from the seed and the number of the window alone."""

    def __init__(
        self,
        stream: Windows[E],
        train: Train,
        fingerprint: str,
        layout: Layout,
        whole_epochs: bool = False,
        mean_tokens: float = 0.0,
    ) -> None:
        """Plan the run. `fingerprint` names what makes samples of rows; `mean_tokens` is what a sample has, about.

        With `whole_epochs` the last step of a pass ends with it. Raises RecipeError where nothing says when the run ends.
        """
        if train.max_steps is None:
            raise endless()
        self.stream, self.train, self.fingerprint, self.layout = stream, train, fingerprint, layout
        self.whole_epochs = whole_epochs
        self.total = train.max_steps
        size = train.batch_tokens if isinstance(train.batch_tokens, int) else train.batch_size * mean_tokens
        self.tokens = round(self.total * train.accumulate * size)
        self._places: dict[int, Mapping[str, Any]] = {0: BEGIN}  #: where the last steps begin

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step[E]]:
        """Yield the steps from number `start` on: the first, or one that a checkpoint was written before."""
        place = self._places[start] if start else BEGIN
        samples, waiting = self._samples(place), list[Taken[E]]()
        for number in range(start, self.total):
            taken, waiting = self._taken(waiting, samples)
            last = taken[-1]
            after = {"window": last.window.state, "place": last.place + 1}
            self._places = {number: place, number + 1: after}
            place, epoch = after, float(last.window.epoch + last.ends_pass)
            chosen = np.arange(len(taken), dtype=np.int64)
            yield share(Together(taken), chosen, self.train, self.layout, rank, world, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return what names the samples, and where the step begins that was taken last, and the next."""
        places = [[step, dict(place)] for step, place in self._places.items()]
        return {"fingerprint": self.fingerprint, "steps": self.total, "places": places}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Check that samples are made as they were, and note where steps begin. Raises DataError where they are not."""
        check_continued(state, self.total, {"fingerprint": self.fingerprint})
        self._places = {int(step): place for step, place in state["places"]}

    def _taken(self, waiting: list[Taken[E]], samples: Iterator[Taken[E]]) -> tuple[list[Taken[E]], list[Taken[E]]]:
        """Return the samples of a step, and one that was looked at and did not fit."""
        taken = waiting or [next(samples)]
        while not self._full(taken):
            following = next(samples)
            if not self._fits(taken, following):
                return taken, [following]
            taken.append(following)
        return taken, []

    def _full(self, taken: Sequence[Taken[E]]) -> bool:
        if self.whole_epochs and taken[-1].ends_pass:
            return True
        by_number = not isinstance(self.train.batch_tokens, int)
        return by_number and len(taken) >= self.train.batch_size * self.train.accumulate

    def _fits(self, taken: Sequence[Taken[E]], following: Taken[E]) -> bool:
        if self.whole_epochs and following.window.epoch != taken[-1].window.epoch:
            return False  # the window that ended the pass held nothing to learn
        budget = self.train.batch_tokens
        if not isinstance(budget, int):
            return True
        return sum(each.tokens for each in taken) + following.tokens <= budget * self.train.accumulate

    def _samples(self, begin: Mapping[str, Any]) -> Iterator[Taken[E]]:
        """Yield samples for ever, from a place on."""
        place = begin["place"]
        for window in self.stream.windows(begin["window"]):
            examples, lengths = window.examples, window.examples.lengths
            count = len(examples)
            chosen = order(self.train.seed, window.number, count) if self.train.shuffle else range(count)
            for at in range(place, count):
                index = int(chosen[at])
                yield Taken(examples[index], int(lengths[index]), window, at)
            place = 0
