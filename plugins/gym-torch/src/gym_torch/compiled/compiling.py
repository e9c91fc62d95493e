"""Compiled decoder layers: one piece of code for all that are alike, for rows of any length and any segments."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_torch.compiled import ahead_of_time, compiled_code, just_in_time
from gym_torch.compiled.layer_calls import ROWS, Alike, Forward, calls, gradients
from gym_torch.compiled.layer_code import Everywhere, UnfitError
from gym_torch.compiled.layer_description import Description, made_by
from gym_torch.console import warn
from gym_torch.kernels.precision_probe import milliseconds, remembered
from gym_torch.memory.gradient_checkpointing import LONG, Policy, recomputable
from gym_torch.packing import Layout

WORTH = 1.05  #: the compiled layer must be so many times as fast
_WAYS = {"cpu": ahead_of_time}  #: by device; on all others layers are compiled where they are used
_KEEPING = (*LONG, "selective")  #: policies of gradient checkpointing that say more than which layers compute again


@dataclass(frozen=True)
class Trial:
    """What a forward and backward pass of one layer took, in milliseconds, and what it took to compile it, in seconds."""

    eager_ms: float
    compiled_ms: float
    seconds: float
    error: str = ""  #: why it cannot be compiled

    @property
    def pays(self) -> bool:
        """Return whether to compile where nobody says."""
        return not self.error and self.eager_ms > WORTH * self.compiled_ms

    def __str__(self) -> str:
        """Say what was found in a few words."""
        if self.error:
            return f"layers cannot be compiled: {self.error}"
        return f"{self.compiled_ms:.3g} ms a layer against {self.eager_ms:.3g} ms"


@dataclass(frozen=True)
class Layers:
    """The layers of a model in training, as what compiles them needs to know them."""

    model: PreTrainedModel
    layout: Layout
    precision: str
    recomputed: Policy = False  #: what they compute again, as `recompute_layers` was told

    def placed(self, device: torch.device) -> bool:
        """Whether they are on the kind of device that they train on: for another they would be compiled for nothing."""
        return self.model.device.type == device.type

    @cached_property
    def what(self) -> str:
        """What tells the layers from others: what they are made of and by whose code, and what they compute again."""
        description = Description()
        layers = [description.layer(layer) for layer in recomputable(self.model)]
        made_of = [self.model.config.to_dict(), layers, made_by(description.code)]
        return json.dumps([*made_of, self.layout.name, self.precision, self.recomputed], default=str)

    def eager_ms(self) -> float:
        """Return what a pass of one layer takes on this machine as it is."""

        def measure() -> dict[str, float]:
            usual = _usual(self._calls())
            return {"ms": self._taken(usual, usual.layers[0])[0]}

        return float(remembered("layer", self.what, measure)["ms"])

    def tried(self) -> Trial:
        """Return what was found when the layers were compiled, whose code is left in the folder; noted there, it is made once."""
        if found := compiled_code.known(self.what):
            return Trial(**found["trial"])
        try:
            found = compiled_code.keep(self.what, partial(self._make, time.monotonic()))
        except Exception as error:  # compilers of graphs and of C++, at whatever a stranger's layer may compute
            return Trial(0.0, 0.0, 0.0, (str(error).strip().splitlines() or [type(error).__name__])[0][:200])
        return Trial(**found["trial"])

    def compile(self, everywhere: Everywhere = list) -> float | None:
        """Have all layers compute by their code; return what it took in seconds, or None where they stay as they are.

        Code that computes something else than the layers do, in any process, is made again; they stay as they are in all
        processes if that does too. `everywhere` joins the lists of these. Raises UnfitError where the code cannot be made.
        """
        began = time.monotonic()
        for outcome in ("are compiled again", "stay as they are"):
            if (found := self.tried()).error:
                raise UnfitError(found.error)
            try:
                self._install(everywhere)
            except UnfitError as error:
                compiled_code.drop(self.what)
                everywhere([])  # before one makes it again: they may have one folder
                warn(f"layers {outcome}: {error}")
            else:
                return time.monotonic() - began
        return None

    def _install(self, everywhere: Everywhere) -> None:
        note = compiled_code.known(self.what)
        assert note is not None
        folder = compiled_code.folder_of(self.what)
        self._way.install(recomputable(self.model), self.precision, note["codes"], folder, self._calls, everywhere)

    @property
    def _way(self) -> Any:
        return _WAYS.get(self.model.device.type, just_in_time)

    def _calls(self, rows: tuple[tuple[int, int], ...] = ROWS) -> list[Alike]:
        return calls(self.model, self.layout, self.precision, rows)

    def _make(self, began: float, folder: Path) -> Mapping[str, Any]:
        if self.recomputed in _KEEPING:
            raise UnfitError(f"`train.gradient_checkpointing: {self.recomputed}` keeps what compiled layers do not")
        groups = self._calls()
        forwards = self._way.make(groups, self.precision, folder)
        seconds = time.monotonic() - began
        usual = _usual(groups)
        sides = usual.layers[0], forwards[groups.index(usual)]
        eager, compiled = self._taken(usual, *sides)
        trial = Trial(eager, compiled, round(seconds, 1))
        codes = [
            number
            for layer in recomputable(self.model)
            for number, alike in enumerate(groups)
            if any(layer is each for each in alike.layers)
        ]
        return {"codes": codes, "trial": asdict(trial)}

    def _taken(self, alike: Alike, *forwards: Forward) -> list[float]:
        """Return the milliseconds that each of some ways to compute a layer takes."""

        def passed(forward: Forward) -> Tensor:
            return gradients(forward, alike.layers[0], alike, self.precision)[0]

        with torch.random.fork_rng():
            return milliseconds(*(partial(passed, forward) for forward in forwards))


def _usual(groups: list[Alike]) -> Alike:
    """Return the kind of which most layers are."""
    return max(groups, key=lambda alike: len(alike.layers))
