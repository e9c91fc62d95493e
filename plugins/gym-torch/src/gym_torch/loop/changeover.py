"""A run begins as it is, and changes over to compiled layers before a step that its record names.

Compiling takes tens of seconds, and the same folder keeps the code for every later run. So where it is not there yet, a process
beside the run compiles a copy of the first layer, and the run changes over once that is done. A resumed run changes over at the
same step: its numbers are those of a run that nobody interrupted. A run that ends before does not wait. Several processes change
over before they begin.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from gym_core import GymError
from gym_core.record import RunRecord
from gym_torch.compiled.compiling import Trial
from gym_torch.compiled.layer_code import UnfitError
from gym_torch.console import say

RECORD = "compiled"  #: in run.json: false, or from which step on, and what the trial found


class Ahead(AbstractContextManager["Ahead"]):
    """What compiles the layers of a run before they are needed."""

    @abstractmethod
    def found(self) -> Trial | None:
        """Return what it found; None while it still works."""
        ...

    @abstractmethod
    def leave(self) -> None:
        """Have it finish by itself, for later runs."""
        ...


@dataclass
class Changeover:
    """Compiles the layers of a run before the first step that finds their code ready."""

    record: RunRecord
    #: Compiles the layers and returns what it took, in seconds; None: they stay as they are.
    compile: Callable[[], float | None]
    ahead: Ahead | None  #: None where the step is known, or there is none
    asked: bool | str  #: `model.compile`
    step: int | None = None  #: finished steps before it; None: not known yet
    done: bool = False  #: nothing is left to do

    def before(self, step: int) -> None:
        """Change over, if the time has come; `step` are the finished ones. Raises GymError where it must and cannot."""
        if self.done:
            return
        if self.step is None:
            assert self.ahead is not None
            found = self.ahead.found()
            if found is None:
                return
            if found.error or not (self.asked is True or found.pays):
                say(f"layers are not compiled: {found}")
                self.record.update(**{RECORD: False})
                self.done = True
                return
            self.step = step
            self.record.update(**{RECORD: {"from_step": step, **asdict(found)}})  # before a number depends on it
        if step >= self.step:
            self._change(step)

    def now(self, step: int) -> None:
        """Change over at once, if the run ever does: layers that are laid out over processes can no longer be looked at."""
        if self.step is not None and step < self.step and not self.done:
            self.step = step
            self.record.update(**{RECORD: {"from_step": step}})
        self.before(step)

    def _change(self, step: int) -> None:
        try:
            took = self.compile()
        except UnfitError as error:
            raise GymError(
                f"its layers are compiled from step {step + 1} on, and here they cannot be: {error}",
                key="model.compile",
                fix="install a compiler of C++, or set `model: {compile: false}` for a new run",
            ) from error
        self.done = True
        if took is None:  # a resumed run is not to try again
            self.record.update(**{RECORD: False})
            return
        self.record.update(**{RECORD: {"seconds_in_the_run": round(took, 2)}})
        say(f"layers are compiled from step {step + 1} on, which took {took:.1f} s of the run")

    def __enter__(self) -> Self:
        """Change over in the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """End what still compiles, unless the run asked for it and is over: later runs will ask for the same."""
        if self.ahead is None:
            return
        with self.ahead:
            if kind is None and not self.done and self.asked is True:
                self.ahead.leave()
                say(
                    "layers were not compiled: the run was over before their code was ready; a process goes on for later runs"
                )
