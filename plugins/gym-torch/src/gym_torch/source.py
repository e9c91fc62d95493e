"""Sources of optimizer steps.

Which samples a step holds follows from the recipe alone: not from processes, not from how a step is cut into batches,
not from where an earlier process stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Generic, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor
from typing_extensions import TypeVar

from gym_core import DataError, RecipeError, Train
from gym_torch.batch import Example
from gym_torch.console import say
from gym_torch.packing import PACKED, Ints, Layout
from gym_torch.sample_order import in_turn, order

E = TypeVar("E", bound=Example, default=Example)
E_co = TypeVar("E_co", bound=Example, default=Example, covariant=True)
MOST_STEPS = 10**8  #: of a run over samples that are there: where each step begins is in memory
LOOKED_AT = 10**6  #: samples, the first of a run, among which its largest steps are looked for


class Examples(Protocol[E_co]):
    """Tokenized samples that can be indexed, as gym-data prepares them."""

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens of each sample."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> E_co:
        """Return one sample."""
        ...


@dataclass(frozen=True)
class Step(Generic[E_co]):
    """What one process works on in one optimizer step."""

    batches: Sequence[Sequence[E_co]]
    epoch: float  #: passes over the data completed after this step
    spare: int = 0  #: batches at the end that only keep this process in step with the others, and count for nothing
    metrics: Mapping[str, float] = field(default_factory=dict)
    """To be logged beside the loss; the same in every process."""
    idle: bool = False  #: nothing in it is to be trained on; the same in every process
    only_beside: bool = False
    """Only what is trained beside the model moves, `gym_torch.policy.Policy.auxiliary`; the model rests. The same in every
    process. No optimizer can take it that works in the backward pass."""


class Source(ABC):
    """A run's worth of optimizer steps."""

    total: int  #: optimizer steps of the whole run
    tokens: int = 0  #: of the whole run, as far as they are known before it

    def extend(self, state: Mapping[str, Any], step: int) -> None:  # noqa: B027
        """Plan on from `step`, where a run with fewer steps wrote a checkpoint: `state_dict` returned `state` there."""

    @abstractmethod
    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        """Yield the steps from number `start` (counted from 0) on, as process `rank` of `world` sees them."""

    def largest(self, count: int) -> Sequence[int]:
        """Return the numbers of so many steps that are likely to hold the most tokens, ascending; by default the first."""
        return range(min(count, self.total))

    def state_dict(self) -> dict[str, Any]:
        """Return, as plain data, what a checkpoint must hold to go on or to notice that it cannot."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold besides, by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Take up what `state_dict` and `tensors` returned. Raises DataError when the samples are others."""


class Dataset(Source, Generic[E]):
    """Steps over a prepared dataset, epoch after epoch, each in an order of its own."""

    def __init__(
        self,
        examples: Examples[E],
        train: Train,
        fingerprint: str = "",
        layout: Layout = PACKED,
        whole_epochs: bool = False,
    ) -> None:
        """Plan the whole run. `fingerprint` names the data in error messages and in checkpoints.

        With `whole_epochs` the last step of an epoch ends with it. Raises DataError where that cannot be.
        """
        if not len(examples):
            raise DataError(
                "there is no sample to train on",
                key="data",
                fix="`gym data preview` shows what became of the rows",
            )
        if whole_epochs and train.batch_tokens is not None:
            raise DataError(
                "steps of so many tokens do not end with an epoch",
                key="data.whole_epochs",
                fix="leave it out, or give `train.batch_size` in place of `train.batch_tokens`",
            )
        self.examples, self.train, self.fingerprint, self.layout = examples, train, fingerprint, layout
        self.whole_epochs = whole_epochs
        self.lengths = np.asarray(examples.lengths, dtype=np.int64)
        self.bounds = self._bounds()
        self.total = len(self.bounds) - 1
        self.ended: list[tuple[int, int]] = []  #: steps and samples with which shorter plans ended, to go on behind
        self.tokens = round(int(self.bounds[-1]) * float(self.lengths.mean()))

    def steps(self, start: int, rank: int = 0, world: int = 1) -> Iterator[Step[E]]:
        """Yield the steps from number `start` on."""
        for first, end in zip(self.bounds[start:-1], self.bounds[start + 1 :], strict=True):
            yield share(
                self.examples,
                self.samples(int(first), int(end)),
                self.train,
                self.layout,
                rank,
                world,
                round(int(end) / len(self.examples), 6),
            )

    def largest(self, count: int) -> Sequence[int]:
        """Return the steps whose samples have the most tokens."""
        bounds = self.bounds[: np.searchsorted(self.bounds, LOOKED_AT) + 1]
        tokens = np.add.reduceat(self.lengths[self.samples(0, int(bounds[-1]))], bounds[:-1])
        found: list[int] = np.sort(np.argsort(-tokens, kind="stable")[:count]).tolist()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what names the samples and their order."""
        counted = {"samples": len(self.examples), "steps": self.total, "end": int(self.bounds[-1])}
        return {"fingerprint": self.fingerprint, **counted, "ended": [list(plan) for plan in self.ended]}

    def extend(self, state: Mapping[str, Any], step: int) -> None:
        """Go on behind the last sample of shorter plans that were carried out, whose last steps the data may have cut short."""
        ended = list(state.get("ended", ()))
        if step == state["steps"]:
            ended.append((step, state["end"]))
        for steps, end in ended:
            if steps < self.total and int(self.bounds[steps]) != end:
                self.bounds = np.concatenate([self.bounds[:steps], self._bounds(end, steps)])
                self.total = len(self.bounds) - 1
                self.ended.append((steps, end))
                if steps == step:
                    say(
                        f"step {steps:,} ended with the data of the shorter run, before it was full, and stays as it was: "
                        "steps after it hold other samples than in a run that was planned for this length"
                    )

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Check that the samples are those of the checkpoint, and that there are at least as many steps."""
        check_continued(state, self.total, {"fingerprint": self.fingerprint, "samples": len(self.examples)})

    def _bounds(self, gone: int = 0, taken: int = 0) -> Ints:
        """Return the number of samples gone by at the start of each step and at the end: `[total + 1]`.

        `gone` samples went by in `taken` steps before the first of them.
        """
        train = self.train
        if self.whole_epochs:
            return self._epoch_bounds(train.batch_size * train.accumulate)[taken:]
        samples = max(1, round(train.epochs * len(self.examples))) - gone
        most = train.max_steps and train.max_steps - taken
        _check_length(train, most or samples // (train.batch_size * train.accumulate))
        if isinstance(train.batch_tokens, int):
            return gone + self._token_bounds(train.batch_tokens * train.accumulate, gone, samples, most)
        size = train.batch_size * train.accumulate
        ends = np.arange((most or ceil(samples / size)) + 1, dtype=np.int64) * size
        return gone + (ends if most else np.minimum(ends, samples))

    def _epoch_bounds(self, size: int) -> Ints:
        """Let each epoch end a step: of its steps the last alone may be smaller than `size` samples."""
        samples, train = len(self.examples), self.train
        each = ceil(samples / size)
        _check_length(train, train.max_steps or train.epochs * each)
        epochs, within = np.divmod(np.arange((train.max_steps or ceil(train.epochs * each)) + 1, dtype=np.int64), each)
        return epochs * samples + np.minimum(within * size, samples)

    def _token_bounds(self, budget: int, gone: int, samples: int, most: int | None) -> Ints:
        """Give each step as many samples in a row as fit into `budget` tokens, and at least one."""
        if most:  # no step is longer than the budget or its one sample
            samples = len(self.lengths) * (
                ceil(most * max(budget, int(self.lengths.max())) / int(self.lengths.sum())) + bool(gone)
            )
        ends = np.cumsum(self.lengths[self.samples(gone, gone + samples)])
        bounds = [0]
        while bounds[-1] < samples and len(bounds) != (most or -1) + 1:
            begun = ends[bounds[-1] - 1] if bounds[-1] else 0
            bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends, begun + budget, side="right"))))
        return np.array(bounds, dtype=np.int64)

    def samples(self, first: int, end: int) -> Ints:
        """Return the samples at positions `first` to `end` of the endless sequence of epochs."""
        size = len(self.examples)
        epochs = range(first // size, (end - 1) // size + 1)
        taken = np.concatenate([self._order(epoch) for epoch in epochs])
        return taken[first - epochs[0] * size : end - epochs[0] * size]

    def _order(self, epoch: int) -> Ints:
        return (
            order(self.train.seed, int(epoch), len(self.examples))
            if self.train.shuffle
            else in_turn(len(self.examples))
        )


def _check_length(train: Train, steps: float) -> None:
    """Raise RecipeError where a run has more steps than there is room to plan."""
    if steps > MOST_STEPS:
        key = "max_steps" if train.max_steps else "epochs"
        raise RecipeError(
            f"a run of {steps:.3g} steps has too many to plan, more than {MOST_STEPS:,}",
            key=f"train.{key}",
            fix="name fewer: a run that is finished can be made longer",
        )


def check_continued(state: Mapping[str, Any], total: int, named: Mapping[str, object]) -> None:
    """Check that a run of `total` steps goes on from a state: no shorter than it was, and over the samples that `named` names.

    Raises DataError where it does not.
    """
    if total < state["steps"]:
        raise DataError(
            f"the run had {state['steps']} steps when the checkpoint was written, and has {total}",
            key="train.max_steps",
            fix="a run can be made longer, not shorter; its checkpoints can be exported: gym export RUN/checkpoints/...",
        )
    for name, value in named.items():
        if state[name] != value:
            raise DataError(
                f"the data changed since the checkpoint: {name} was {state[name]}, is {value}",
                key="data",
                fix="bring the old data back, or start over in another `output`",
            )


def once(examples: Examples[E], train: Train, layout: Layout, rank: int = 0, world: int = 1) -> Step[E]:
    """Return all samples as one step, for an evaluation."""
    return share(examples, in_turn(len(examples)), train, layout, rank, world, 1.0)


def share(
    examples: Examples[E], chosen: Ints, train: Train, layout: Layout, rank: int, world: int, epoch: float
) -> Step[E]:
    """Distribute samples over batches, and return those of one process: number `rank`, `rank + world`, ..."""
    cut = layout.cut(np.asarray(examples.lengths, dtype=np.int64)[chosen], train)
    mine, spare = dealt([chosen[rows] for rows in cut], rank, world)
    return Step([[examples[int(index)] for index in batch] for batch in mine], epoch, spare)


def dealt(batches: list[Ints], rank: int, world: int) -> tuple[list[Ints], int]:
    """Return the batches of one process, and how many of them at the end count for nothing."""
    batches = _enough(batches, world)
    mine = batches[rank::world]
    spare = ceil(len(batches) / world) - len(mine)
    return mine + batches[:1] * spare, spare


def _enough(batches: list[Ints], world: int) -> list[Ints]:
    """Halve the batch of most samples until every process has one, as far as there are samples."""
    while len(batches) < world and max(map(len, batches)) > 1:
        at = max(range(len(batches)), key=lambda number: len(batches[number]))
        half = (len(batches[at]) + 1) // 2
        batches[at : at + 1] = [batches[at][:half], batches[at][half:]]
    return batches
