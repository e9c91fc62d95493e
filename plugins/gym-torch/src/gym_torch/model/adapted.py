"""What an adapter makes of a model: which weights train, and how they are saved, restored and merged.

`Adapted` is the promise every adapter keeps; `Full` keeps it for training weights of the model itself. Nothing here
knows about optimizers, checkpoints or recipes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from accelerate import init_empty_weights
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from gym_core import Artifact, Component, GymError, Recipe
from gym_torch.batch import Batch
from gym_torch.model.loading import read_weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Plain(NamedTuple):
    """One plain model that computes what an adapted one does, without being held in memory as a whole."""

    config: PretrainedConfig
    weights: Iterator[tuple[str, Tensor]]
    """What its `state_dict` holds, by name, one after another and each in the precision that the model came in."""


class Adapted(Protocol):
    """What `adapter.build(model=model, seed=seed)` returns."""

    @property
    def model(self) -> PreTrainedModel:
        """The causal language model to train; what trains has `requires_grad`, and is fp32."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what training changes, sharing memory with the model, tied weights once; and what else going on needs."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned, bit for bit. Raises `GymError` when it belongs to another model."""
        ...

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write a directory that transformers or peft load, without pickle.

        Trained weights go back to the precision the model came in; with `exact` they stay fp32, and
        `load(read(path))` then restores them bit for bit. `base` names the model that was trained. An adapter's artifact
        carries the entry-point value of its options under `adapter`, and themselves under `options`, in its details.
        """
        ...

    def read(self, path: Path) -> dict[str, Tensor]:
        """Return the `state` held by a directory that `save` wrote."""
        ...

    def merging(self) -> Plain:
        """Return one plain model that computes what `model` computes, leaving `model` untouched and trainable.

        Its weights are merged as they are asked for. Raises `GymError` where the options declare that nothing of the kind can
        be (`gym_core.Adapter.merges`), or where a weight has no room for the update.
        """
        ...

    def merged(self) -> PreTrainedModel:
        """Return that model in memory: what `assembled` makes of it."""
        ...

    @property
    def without(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What makes a context in which `model` computes what it did before anything was trained.

        None where training changes the weights of the model itself: only a second model then computes that.
        """
        ...


@runtime_checkable
class Uniform(Protocol):
    """What the options of an adapter may promise beside `build`, so that a plan for many layers adapts only a few."""

    def uniform(self) -> bool:
        """Whether layers that are alike stay so, however many there are."""
        ...


@runtime_checkable
class ForMixtures(Protocol):
    """What the options of an adapter declare beside `build` that works on models with experts alone."""

    mixtures: ClassVar[bool]
    """True."""


class First(NamedTuple):
    """A batch of the first step, and what computes its loss, as the loop will: undivided."""

    batch: Batch
    loss: Callable[[], Tensor]


@runtime_checkable
class Begins(Protocol):
    """What an adapter, or what trains beside the model, offers where first values are found: from weights or the first step.

    They are found once, before the first step, and never again: `load` restores them into what was not begun.
    """

    def begin(self, first: Iterable[First] = ()) -> None:
        """Find them. `first` are the batches of the first step, the same in every process.

        Taking one may run the model, for answers or what a reference says. Raises GymError where they cannot be found.
        """
        ...


@runtime_checkable
class TakesPart(Protocol):
    """What an adapter offers beside that has a part in every step."""

    def penalty(self) -> Tensor:
        """Return a scalar that is added to the loss of a step."""
        ...

    def stepped(self, step: int, total: int) -> None:
        """Be told that the weights were updated in step `step` of `total`, counted from 1; their gradients are still there."""
        ...


@runtime_checkable
class Described(Protocol):
    """What an adapter offers beside that a plan can describe."""

    def describe(self) -> str:
        """Return a line about what was put where, such as `rank 8, alpha 16: q_proj, v_proj`."""
        ...


class Full:
    """Trains weights of the model itself: all of them, or those that `trained` names."""

    without: Callable[[], AbstractContextManager[None]] | None = None

    def __init__(
        self,
        config: Component | None,
        model: PreTrainedModel,
        seed: int = 0,
        trained: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Mark what trains and make it fp32; `seed` is unused, for there is nothing to draw.

        Frozen weights keep their precision, so below fp32 a partly frozen model runs under autocast only.

        Raises:
            GymError: a weight to train is quantized.

        """
        self.model = model
        self._dtype = stored_dtype(model)
        self._stored = {
            name: self._dtype if weight.dtype == model.dtype else weight.dtype
            for name, weight in model.named_parameters(remove_duplicate=False)
        }
        for name, weight in model.named_parameters():
            chosen = trained(name)
            if chosen and not weight.is_floating_point():
                raise GymError(
                    f"{name} is quantized and cannot be trained",
                    key="adapter",
                    fix="set adapter: lora, or load the model unquantized",
                )
            weight.requires_grad_(chosen)
            if chosen:
                weight.data = weight.data.float()

    def state(self) -> dict[str, Tensor]:
        """Return the trained weights by parameter name."""
        return {name: weight.detach() for name, weight in self.model.named_parameters() if weight.requires_grad}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the weights back."""
        own = self.state()
        check_state(own, state)
        for name, weight in own.items():
            weight.copy_(state[name])

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write the whole model with `save_pretrained`; every weight back in its own precision unless `exact`."""
        weights = self.model.state_dict() if exact else self._as_stored()
        self.model.save_pretrained(path, state_dict=weights)
        if not exact:
            declare_dtype(path, self._dtype)
        stored = str(self._dtype).removeprefix("torch.")
        return Artifact(path, "model", details={"base": base, "dtype": stored})

    def read(self, path: Path) -> dict[str, Tensor]:
        """Load the directory with transformers and return the trained weights."""
        options = {"dtype": torch.float32, "local_files_only": True}
        saved = dict(read_weights(path, options, type(self.model)).named_parameters())
        return {name: saved[name].detach() for name in self.state()}

    def merging(self) -> Plain:
        """Return the model: its weights are the trained ones already."""
        return Plain(copy.deepcopy(self.model.config), iter(self._as_stored().items()))

    def _as_stored(self) -> dict[str, Tensor]:
        """Return every weight in its own precision."""
        weights = self.model.state_dict()
        # Tied names share memory and must share the cast tensor too, or they would be written twice.
        cast: dict[tuple[int, torch.dtype], Tensor] = {}
        for name, weight in weights.items():
            stored = self._stored.get(name, weight.dtype)
            weights[name] = cast.setdefault((weight.data_ptr(), stored), weight.to(stored))
        return weights

    def merged(self) -> PreTrainedModel:
        """Return the model: its weights are the trained ones already."""
        return self.model


@torch.no_grad()
def assembled(plain: Plain, kind: type[PreTrainedModel]) -> PreTrainedModel:
    """Return a plain model in memory; weights that no adapter changes share it with the model they come from."""
    model = skeleton(plain.config, kind)
    model.load_state_dict(dict(plain.weights), assign=True)
    model.tie_weights()
    return model.requires_grad_(False).eval()


def skeleton(config: PretrainedConfig, build: Callable[[PretrainedConfig], PreTrainedModel]) -> PreTrainedModel:
    """Return a model without weights: they are on the `meta` device, and say their names and shapes alone.

    `build` makes it of its configuration: its class, or `AutoModelForCausalLM.from_config`.
    """
    with init_empty_weights(include_buffers=False):
        return build(copy.deepcopy(config))


def adapt(model: PreTrainedModel, recipe: Recipe) -> Adapted:
    """Let the recipe's adapter choose what is trained; without one, everything is."""
    adapter, seed = recipe.adapter, recipe.train.seed
    adapted: Adapted = adapter.build(model=model, seed=seed) if adapter else Full(None, model, seed)
    return adapted


def check_state(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise `GymError` unless `state` has the names and shapes of `own`."""
    wrong = sorted(own.keys() ^ state.keys())
    wrong += [name for name in own if name in state and own[name].shape != state[name].shape]
    if wrong:
        raise GymError(
            f"the saved weights belong to another model or adapter: {wrong[0]} differs ({len(wrong)} in all)",
            fix="restore with the recipe that wrote them",
        )


def stored_dtype(model: PreTrainedModel, artifact: Artifact | None = None) -> torch.dtype:
    """Return the precision of the files a model came from, which may be lower than the one it was loaded in.

    Of what a run made it is that of the model which was trained: a checkpoint holds it in fp32.
    """
    if artifact and artifact.details.get("dtype") in _DTYPES:
        return _DTYPES[artifact.details["dtype"]]
    file = Path(model.name_or_path) / "config.json"
    if not file.is_file():
        return model.dtype
    config = json.loads(file.read_text(encoding="utf-8"))
    name = config.get("dtype") or config.get("torch_dtype")
    return _DTYPES.get(name, model.dtype)


def declare_dtype(path: Path, dtype: torch.dtype) -> None:
    """Write into `config.json` the precision that the weights beside it are stored in.

    `save_pretrained` declares that of the live model, whatever it was given to write.
    """
    file = path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["dtype"] = str(dtype).removeprefix("torch.")
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
