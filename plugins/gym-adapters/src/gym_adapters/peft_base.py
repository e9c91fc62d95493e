"""The base of every adapter that peft puts into a model."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_adapters.config.base import PeftOptions, split
from gym_adapters.fitting_layers import require_layers, unfit_layers
from gym_adapters.lora_checkpoint import PREFIX, WEIGHTS, artifact, check_beside
from gym_adapters.peft_warnings import quiet
from gym_adapters.target_modules import ends, require
from gym_core import Artifact, GymError
from gym_torch.checkpoints.peft_folder import TWICE
from gym_torch.console import warn
from gym_torch.model.adapted import AdaptedModel, Plain, check_state
from gym_torch.model.mapped_weights import release
from gym_torch.model.vocabulary import vocabulary_modules
from gym_torch.quantization.weights import plain_state, stored_modules

Options = TypeVar("Options", bound=PeftOptions)
CHANGED = (BaseTunerLayer, AuxiliaryTrainingWrapper)  #: what peft puts in the place of a module


class PeftAdapter(AdaptedModel, Generic[Options]):
    """A model with layers of peft inside. A subclass says with `peft_config` which; the rest is the same for all."""

    target_types: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)
    """Kinds of module that `target_modules` may name."""

    def __init__(self, config: Options, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the layers into `model`, in place; `seed` alone determines their first values.

        Raises GymError where a module to adapt is not in the model, or an update beside it would be lost.
        """
        self.config = config
        modules, extra = split(config.target_modules), split(config.modules_to_save)
        fitting, unfit = self.matching(model), self.unfit(model)
        require_layers(() if modules == ("all",) else modules, fitting, unfit)
        require(extra, [name for name, _ in model.named_modules() if name], "adapter.modules_to_save")
        targets = self.all_modules(model) if modules == ("all",) else ends(modules, fitting, unfit)
        options = self.peft_config(targets, list(extra) or None)
        with torch.random.fork_rng(), quiet(), targets_of(model, options) as modules:
            torch.manual_seed(seed)
            try:
                self.peft_model = PeftModel(modules, options)
            except ValueError as error:  # of layers that peft cannot change
                why = f"peft: {' '.join(str(error).split())}"
                raise GymError(why, key="adapter.target_modules", fix="name other layers") from error
        # The layers now sit inside the model itself, so whatever works on a transformers model works on this one.
        self.model: PreTrainedModel = model
        for weight in self.model.parameters():
            if weight.requires_grad:
                weight.data = weight.data.float()

    @abstractmethod
    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return what peft is to put into modules whose paths end so; the modules named `modules_to_save` train whole beside
        it.
        """

    def matching(self, model: PreTrainedModel) -> list[str]:
        """Return the paths of what `target_modules` may name. Default: what is of a kind in `target_types`, and is called."""
        unfit = self.unfit(model)
        found = [name for name, each in model.named_modules() if isinstance(each, self.target_types)]
        return [name for name in found if name not in unfit]

    def unfit(self, model: PreTrainedModel) -> dict[str, str]:
        """Return the paths of layers that are not to be adapted, and why."""
        return unfit_layers(model, self.config.parts())

    def all_modules(self, model: PreTrainedModel) -> list[str]:
        """Return what `target_modules: all` means. Default: all linear layers but the head. Raises GymError where there is none.

        peft's own `all-linear` would take routers and experts of some mixtures too, and experts with twice the rank. What takes
        weights apart leaves out gates of one output, as a shared expert has, for they have no rank but one.
        """
        head, layers = model.get_output_embeddings(), {name: model.get_submodule(name) for name in self.matching(model)}
        found = [
            name
            for name, layer in layers.items()
            if not isinstance(layer, nn.Embedding) and layer is not head
            if not (self.starts_from_weights and isinstance(layer, nn.Linear) and layer.out_features == 1)
        ]
        if not found:
            kinds = " or ".join(kind.__name__ for kind in self.target_types)
            raise GymError(
                f"{type(model).__name__} has no layers that this adapter can change: none is {kinds}",
                key="adapter.target_modules",
                fix="set adapter: lora, or freeze",
            )
        return found

    def trained(self) -> dict[str, Tensor]:
        """Return what trains by peft's names, in fp32, sharing memory with the model."""
        return dict(get_peft_model_state_dict(self.peft_model, save_embedding_layers=False))

    def load_trained(self, trained: Mapping[str, Tensor]) -> None:
        """Copy what trains back. Raises `GymError` where it belongs to another model or adapter."""
        check_state(self.trained(), trained)
        set_peft_model_state_dict(self.peft_model, dict(trained))

    def holds(self, module: nn.Module) -> bool:
        """Return whether a module trains whole."""
        return isinstance(module, ModulesToSaveWrapper)

    def state(self) -> dict[str, Tensor]:
        """Return the adapter: what trains. A subclass that needs more to go on overrides this, `load`, `save` and `read`."""
        return self.trained()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy the adapter back."""
        self.load_trained(state)

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write what `peft.PeftModel.from_pretrained` loads. It is small, so it stays fp32 and exact in any case.

        `PeftModel.save_pretrained` writes the same, and a card without contents, which took two thirds of the time.
        """
        options = copy.deepcopy(cast(Any, self.peft_model.peft_config["default"]))
        options.base_model_name_or_path, options.inference_mode = base, True
        options.target_modules = sorted(options.target_modules or ())  # a set's order differs between processes
        path.mkdir(parents=True, exist_ok=True)
        options.save_pretrained(str(path))
        save_file(_apart(self.trained()), path / WEIGHTS, metadata={"format": "pt"})
        return self.artifact(path, base)

    def artifact(self, path: Path, base: str) -> Artifact:
        """Return what a directory is that holds this adapter: it says what opens it again. Warns where peft cannot."""
        if misread(self.peft_model.peft_config["default"], self.model):
            kind = type(self.model).__name__
            warn(
                f"peft takes layers of {kind} for its experts and opens a part of this; Gym opens it, `gym export` merges it"
            )
        return artifact(self.config, path, base)

    def read(self, path: Path) -> dict[str, Tensor]:
        """Return the adapter of a directory that `save` wrote, or peft, which copies embeddings and head beside some.

        Raises GymError where those are not the ones of this model, but for what is under a module that trained whole.
        """
        found = {name: each for name, each in load_file(path / WEIGHTS).items() if not {*name.split(".")} & TWICE}
        places = vocabulary_modules(self.model)
        copied = {f"{PREFIX}{place}{layer}.weight" for place in places for layer in ("", ".base_layer")}
        beside = {name: found.pop(name) for name in found.keys() & copied - self.trained().keys()}
        check_beside({name.removeprefix(PREFIX): copy for name, copy in beside.items()}, self.model, path)
        return found

    def merged_weights(self) -> Plain:
        """Return the model with the update added to its weights, one layer at a time.

        Tied embeddings come apart where the adapter changed one side: the update of the input embedding is no update
        of the head, and adding it to the weight they share would change both.

        The update of a quantized layer is added to the weights that it computes with, decoded. Raises GymError where a weight is
        quantized by somebody else: it has no room for the update.
        """
        changed = {name: layer for name, layer in self.model.named_modules() if isinstance(layer, CHANGED)}
        outermost = {name: layer for name, layer in changed.items() if not _inside(name, changed)}
        for name, layer in changed.items():
            if isinstance(layer, BaseTunerLayer):
                check_floating(name, layer.get_base_layer(), "merged into")
        config = copy.deepcopy(self.model.config)
        ends = (self.model.get_output_embeddings(), self.model.get_input_embeddings())
        tied = config.to_dict().get("tie_word_embeddings")  # some configurations do not have it
        if tied and any(isinstance(end, CHANGED) for end in ends):
            config.tie_word_embeddings = False
        return Plain(config, self._weights(outermost))

    def _weights(self, changed: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
        for name, weight in plain_state(self.model, lambda name: not _inside(name, changed)):
            yield name, weight
        for name, layer in changed.items():
            yield from _merged(layer, self.model.dtype).state_dict(prefix=f"{name}.").items()

    @property
    def disable_adapter(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What leaves the update out for a while, and the modules trained whole too."""
        return self._disabled

    def describe(self) -> str:
        """Return the kinds of module that are adapted, and those that train whole."""
        tuned = [
            name.rpartition(".")[2] for name, layer in self.model.named_modules() if isinstance(layer, BaseTunerLayer)
        ]
        whole = [f"{name} whole" for name in split(self.config.modules_to_save)]
        return ", ".join(dict.fromkeys(tuned + whole))

    @contextmanager
    def _disabled(self) -> Iterator[None]:
        marks = [(weight, weight.requires_grad) for weight in self.model.parameters()]
        try:
            with self.peft_model.disable_adapter():
                yield
        finally:
            for weight, trains in marks:  # peft marks what it enables
                weight.requires_grad_(trains)


def misread(options: PeftConfig, model: PreTrainedModel) -> bool:
    """Return whether peft would take names of layers for the experts of a mixture, which once were called so."""
    if not isinstance(options, LoraConfig):
        return False
    read = copy.deepcopy(options)
    convert_peft_config_for_transformers(read, model, None)
    return bool({*(read.target_parameters or ())} - {*(options.target_parameters or ())})


@contextmanager
def targets_of(model: PreTrainedModel, *options: PeftConfig) -> Iterator[nn.Module]:
    """Yield what peft is to put layers into: the model, or where it would misread names, a module with the same ones inside.

    It translates names by the configuration of a model, which that module does not have. What peft puts in the place of its
    children is then put into the model.
    """
    if not any(misread(each, model) for each in options):
        yield model
        return
    modules = nn.Module()
    for name, child in model.named_children():
        modules.add_module(name, child)
    yield modules
    for name, child in modules.named_children():
        setattr(model, name, child)


def check_floating(name: str, layer: nn.Module, done: str) -> None:
    """Raise GymError where a layer holds its weight quantized, which cannot be `done` to it."""
    for weight in layer.parameters(recurse=False):
        if not weight.is_floating_point():
            raise GymError(
                f"{name} is quantized ({str(weight.dtype).removeprefix('torch.')}) and cannot be {done}",
                key="adapter",
                fix="load the model unquantized",
            )


@torch.no_grad()
def _merged(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return the plain layer that computes what one with an adapter inside does, which stays as it is.

    One that is quantized becomes one with a weight in `dtype`: the weight that it computes with, and the update added.
    """
    alone: Any = copy.deepcopy(layer)
    for weight in layer.parameters():
        release(weight.detach())
    for part in list(alone.modules()):
        if isinstance(part, BaseTunerLayer):
            for place, base in stored_modules(part).items():
                part.set_submodule(place, base.plain(torch.float32))
            part.get_base_layer().float()  # so that the sum is rounded once
    try:
        with quiet():
            if hasattr(alone, "unload_and_optionally_merge_module"):  # what peft asks of layers inside one another
                plain = alone.unload_and_optionally_merge_module(merge=True, safe_merge=True, adapter_names=None)
            else:
                alone.merge(safe_merge=True)
                plain = alone.get_base_layer()
    except ValueError as error:
        if "NaN" not in str(error):
            raise
        why = "with the adapter added a weight holds NaN or infinity: the adapter, or its base, is broken"
        raise GymError(why, key="adapter", fix="take a checkpoint from before: RUN/checkpoints/step-...") from error
    before: Any = layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else cast(Any, layer).original_module
    stored = {name: weight.dtype for name, weight in before.named_parameters()}
    for name, weight in plain.named_parameters():
        weight.data = weight.data.to(stored.get(name, dtype))
    return cast(nn.Module, plain)


def _inside(name: str, modules: Mapping[str, nn.Module]) -> bool:
    """Return whether a module or weight of this path lies in one of the modules."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in modules for end in range(1, len(parts)))


def _apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that a file can hold: contiguous, and each with numbers of its own where some share them."""
    found, seen = dict[str, Tensor](), set[int]()
    for name, tensor in state.items():
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone(memory_format=torch.contiguous_format) if place in seen else tensor.contiguous()
        seen.add(place)
    return found
