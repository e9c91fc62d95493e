"""The interface of adapted models: which weights train, and how they are saved, restored and merged.

`AdaptedModel` is the base of what every adapter builds; `Full` is that of training weights of the model itself. Nothing here
knows about optimizers, checkpoints or recipes.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from gym_core import Artifact, Component, GymError, Recipe
from gym_optim.promises import promised
from gym_torch.kinds import Adapter, TorchBackend, no_quantized_model, part
from gym_torch.language_part import LANGUAGE, in_parts
from gym_torch.model.read_weights import read_weights
from gym_torch.model.stored_precisions import declare_dtype, exceptions, named_dtype, stored_dtype
from gym_torch.model.vocabulary import vocabulary_modules
from gym_torch.quantization.weights import plain_state, stored_modules
from gym_torch.trained_part import TrainedPart


class Plain(NamedTuple):
    """One plain model that computes what an adapted one does, without being held in memory as a whole."""

    config: PretrainedConfig
    weights: Iterator[tuple[str, Tensor]]
    """What its `state_dict` holds, by name, one after another and each in the precision that the model came in."""


class LowRank(NamedTuple):
    """The update of one linear layer: it adds `scaling B A x` to what the layer computes of x."""

    first: Tensor  #: A `[rank, in]`
    second: Tensor  #: B `[out, rank]`
    scaling: float


class AdaptedModel(TrainedPart, ABC):
    """Base of what `adapter.build(model=model, seed=seed)` returns: a model that trains in part or as a whole."""

    model: PreTrainedModel
    """The causal language model to train; what trains has `requires_grad`, and is fp32."""
    artifact_kind: ClassVar[str] = "adapter"
    """What `save` makes: `adapter`, or `model` where it writes all weights."""
    starts_from_weights: ClassVar[bool] = False
    """Whether its first values follow from the weights of the model. It then belongs to those very weights: made for a quantized
    base it is merged into what that computes with, and never into the base as it was before."""

    @property
    def disable_adapter(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What makes a context in which `model` computes what it did before anything was trained.

        Default: None, where training changes the weights of the model itself: only a second model then computes that.
        """
        return None

    @property
    def at_start(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What makes a context in which a `model` that begins as something else than its base computes what it did then.

        Default: None, where only a second model computes that.
        """
        return None

    def low_rank(self) -> Mapping[str, LowRank] | None:
        """Return the updates by the path that their layer has in the bare model, A and B being the parameters that train.

        Default: None. It promises that nothing else trains, is added or is left to chance, in training too: whoever adds these
        updates to the bare model computes what this one does.
        """
        return None

    def holds(self, module: nn.Module) -> bool:
        """Return whether a module of `model` trains as a whole, and `save` writes all of it by peft's names.

        The module may then have other rows than that of the base, as embeddings and head of a larger vocabulary. Default: no.
        """
        return False

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return what training changes, sharing memory with the model, tied weights once; and what else going on needs."""

    @abstractmethod
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned, bit for bit. Raises `GymError` when it belongs to another model."""

    @abstractmethod
    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write a directory that transformers or peft load, without pickle.

        Trained weights go back to the precision the model came in; with `exact` they stay fp32, and
        `load(read(path))` then restores them bit for bit. `base` names the model that was trained. An adapter's artifact
        carries the entry-point value of its options under `adapter`, and themselves under `options`, in its details.
        """

    @abstractmethod
    def read(self, path: Path) -> dict[str, Tensor]:
        """Return the `state` held by a directory that `save` wrote."""

    @abstractmethod
    def merged_weights(self) -> Plain:
        """Return one plain model that computes what `model` computes, leaving `model` untouched and trainable.

        Its weights are merged as they are asked for. Raises `GymError` where the options declare that nothing of the kind can
        be (`gym_torch.kinds.Adapter.merges`), or where a weight has no room for the update.
        """

    def merged(self) -> PreTrainedModel:
        """Return that model in memory; it shares with this one what the adapter leaves alone."""
        return assembled(self.merged_weights(), type(self.model))

    def describe(self) -> str:
        """Return a line for plans about what was put where, such as `rank 8, alpha 16: q_proj, v_proj`. Default: nothing."""
        return ""


class Full(AdaptedModel):
    """Full fine-tuning: trains weights of the model itself, all of them, or those that `trained` names.

    Of a model with other senses those of its language model alone, or of the parts that are named.
    """

    artifact_kind: ClassVar[str] = "model"

    def __init__(
        self,
        config: Component | None,
        model: PreTrainedModel,
        seed: int = 0,
        trained: Callable[[str], bool] = lambda name: True,
        parts: Collection[str] = (LANGUAGE,),
    ) -> None:
        """Mark what trains and make it fp32; `seed` is unused, for there is nothing to draw. `parts` are those of `in_parts`.

        Frozen weights keep their precision, so below fp32 a partly frozen model runs under autocast only.

        Raises:
            GymError: a weight to train is quantized, or the model has no such parts.

        """
        self.model = model
        self._dtype = stored_dtype(model)
        own = exceptions(model, Path(model.name_or_path), self._dtype)
        self._own = {name: held.dtype for name, held in own.items()}
        self._stored = {
            name: self._dtype if weight.dtype == model.dtype else weight.dtype
            for name, weight in model.named_parameters(remove_duplicate=False)
        } | self._own
        inside = in_parts(model, parts)
        for name, weight in model.named_parameters():
            chosen = trained(name) and inside(name)
            if chosen and not weight.is_floating_point():
                raise GymError(
                    f"{name} is quantized and cannot be trained",
                    key="adapter",
                    fix="set adapter: lora, or load the model unquantized",
                )
            weight.requires_grad_(chosen)
            if chosen:
                weight.data = weight.data.float()
        quantized = next(iter(stored_modules(model)), None)
        if quantized and any(weight.requires_grad for weight in model.parameters()):
            raise no_quantized_model(quantized)

    def state(self) -> dict[str, Tensor]:
        """Return the trained weights by parameter name."""
        return {name: weight.detach() for name, weight in self.model.named_parameters() if weight.requires_grad}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the weights back."""
        copy_state(self.state(), state)

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write the whole model with `save_pretrained`; every weight back in its own precision unless `exact`."""
        weights = self.model.state_dict() if exact else self._as_stored()
        self.model.save_pretrained(path, state_dict=weights)
        if not exact:
            declare_dtype(path, self._dtype)
        details: dict[str, Any] = {"base": base, "dtype": named_dtype(self._dtype)}
        if self._own:
            details["dtypes"] = {name: named_dtype(dtype) for name, dtype in self._own.items()}
        return Artifact(path, "model", details=details)

    def read(self, path: Path) -> dict[str, Tensor]:
        """Load the directory with transformers and return the trained weights."""
        options = {"dtype": torch.float32, "local_files_only": True}
        saved = dict(read_weights(path, options, type(self.model)).named_parameters())
        return {name: saved[name].detach() for name in self.state()}

    def merged_weights(self) -> Plain:
        """Return the model: its weights are the trained ones already. Those that are held in a few bits are decoded."""
        held = stored_modules(self.model)
        weights = plain_state(self.model) if held else iter(self._as_stored().items())
        return Plain(copy.deepcopy(self.model.config), weights)

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

    `build` makes it of its configuration: its class, or `AutoLanguageModel.from_config`.
    """
    with init_empty_weights(include_buffers=False):
        return build(copy.deepcopy(config))


def adapt(model: PreTrainedModel, recipe: Recipe) -> AdaptedModel:
    """Let the recipe's adapter choose what is trained; without one, everything is. Raises what `build_adapter` does."""
    adapter, backend, seed = part(recipe, Adapter), part(recipe, TorchBackend), recipe.train.seed
    if adapter is None:
        return Full(None, model, seed)
    if backend and backend.resizes_vocabulary():
        adapter = adapter.with_modules(tuple(name.rpartition(".")[2] for name in vocabulary_modules(model)))
    return build_adapter(adapter, model, seed)


def build_adapter(adapter: Adapter, model: PreTrainedModel, seed: int = 0) -> AdaptedModel:
    """Build an adapter into a model. Raises PluginError where it returns something else than its kind promises."""
    return promised(adapter.build(model=model, seed=seed), AdaptedModel, adapter, "adapter")  # type: ignore[type-abstract]


@torch.no_grad()
def copy_state(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy the tensors of `state` into those of `own`. Raises `GymError` unless it has their names and shapes."""
    check_state(own, state)
    for name, weight in own.items():
        weight.copy_(state[name])


def check_state(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise `GymError` unless `state` has the names and shapes of `own`."""
    wrong = sorted(own.keys() ^ state.keys())
    wrong += [name for name in own if name in state and own[name].shape != state[name].shape]
    if wrong:
        raise GymError(
            f"the saved weights belong to another model or adapter: {wrong[0]} differs ({len(wrong)} in all)",
            fix="restore with the recipe that wrote them",
        )
