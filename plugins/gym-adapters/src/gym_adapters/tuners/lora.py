"""LoRA (arXiv:2106.09685): `W + scaling B A`, where B is zero at first; alone, or beside others that do not train.

What is saved is one LoRA: all of them, side by side.

`scaling (B1 A1 + B2 A2) = scaling [B1 B2] [A1; A2]`, so as a LoRA of the sum of their ranks it needs nothing else.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_adapters.config.base import PartOptions, split
from gym_adapters.config.lora import LoRA
from gym_adapters.lora_base import LowRankAdapter
from gym_adapters.lora_checkpoint import WEIGHTS, LoraFile, adapter_at, check_beside, read_lora
from gym_adapters.peft_warnings import quiet
from gym_adapters.target_modules import within
from gym_core import Artifact, GymError
from gym_torch.model.adapted import LowRank, check_state
from gym_torch.model.dropout import dropouts

TRAINED = "default"  #: what peft calls the adapter that trains
BEFORE = "before"  #: begins the names of those that were there before
AGAIN = "again"  #: what the one that goes on training was, for when training is left out

Plain = TypeVar("Plain", bound=LoRA)


class LoraAdapter(LowRankAdapter[Plain]):
    """A low-rank update beside others that stay as they are: those that `adapter_name_or_path` of the options names."""

    initializes: ClassVar[bool] = False
    """Whether it finds first values of its own, in `initialize`."""

    def __init__(self, config: Plain, model: PreTrainedModel, seed: int = 0) -> None:
        """Put the layers into `model`, and what the adapters hold that are named.

        Raises GymError where a module is not in the model, or an adapter is no LoRA that fits, or has begun already.
        """
        if self.initializes and config.adapter_name_or_path and not config.create_new_adapter:
            raise GymError(
                "an adapter that goes on has begun already",
                key="adapter.create_new_adapter",
                fix="set create_new_adapter: true, or adapter: lora",
            )
        super().__init__(config, model, seed)
        self._parts: dict[str, int] = {}
        """The adapters beside the one that trains, by peft's name, and their ranks."""
        self._stay: list[str] = []
        """Those that still work when training is left out."""
        folders = [adapter_at(name) for name in config.begins_with()]
        kept = folders if config.create_new_adapter else folders[:-1]
        for number, folder in enumerate(kept):
            name, given = f"{BEFORE}{number}", read_lora(folder)
            self.attach(name, given.rank)
            self._fill(name, given)
            self._stay.append(name)
        if folders != kept:
            self._go_on(read_lora(folders[-1], goes_on=True))

    def attach(self, name: str, rank: int, works: bool = True) -> None:
        """Put another pair beside every layer, of zeros, which does not train and has the scaling of the one that does."""
        modules = sorted(cast(LoraConfig, self.peft_model.peft_config[TRAINED]).target_modules or ())
        options = LoraConfig(r=rank, target_modules=modules, task_type="CAUSAL_LM")
        with torch.random.fork_rng(), quiet():
            self.peft_model.add_adapter(name, options)
        if works:
            self._parts[name] = rank
        for layer in self.layers().values():
            layer.scaling[name] = layer.scaling[TRAINED]
            layer.set_adapter([*self._parts, TRAINED])  # last, so that others are rounded as they are without it
            for part in layer.r:
                for weight in pair(layer, part).values():
                    weight.requires_grad_(part == TRAINED)
            for weight in pair(layer, name).values():
                nn.init.zeros_(weight)

    def low_rank(self) -> dict[str, LowRank] | None:
        """Return the pairs; None with dropout, modules that train whole, adapted embeddings or other adapters that work."""
        layers = self.layers()
        chance = any(any(dropouts(layer)) for layer in layers.values())
        whole = chance or split(self.config.modules_to_save)
        others = any(len(layer.active_adapters) > 1 for layer in layers.values())
        if whole or others or any(layer.lora_embedding_A for layer in layers.values()):
            return None
        found = {name: (layer.lora_A[TRAINED].weight, layer.lora_B[TRAINED].weight) for name, layer in layers.items()}
        return {name: LowRank(*halves, float(layers[name].scaling[TRAINED])) for name, halves in found.items()}

    def state(self) -> dict[str, Tensor]:
        """Return the adapter by peft's names, and those beside it by the same names under their own."""
        found = self.trained()
        for part in self._parts:
            tensors = get_peft_model_state_dict(self.peft_model, adapter_name=part, save_embedding_layers=False)
            found |= {f"{part}.{name}": tensor for name, tensor in tensors.items()}
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy all of them back."""
        check_state(self.state(), state)
        taken = {part: _named(f"{part}.", state) for part in self._parts}
        self.load_trained(
            {name: tensor for name, tensor in state.items() if not name.startswith(tuple(f"{p}." for p in taken))}
        )
        for part, tensors in taken.items():
            set_peft_model_state_dict(self.peft_model, tensors, adapter_name=part)

    def save(self, path: Path, base: str, exact: bool = False) -> Artifact:
        """Write one plain LoRA for the base, of the sum of all ranks, which `peft.PeftModel.from_pretrained` loads."""
        if not self._parts:
            return super().save(path, base, exact)
        state = self.state()
        whole = self.trained()
        for name in whole:
            pieces = [state[f"{part}.{name}"] for part in self._parts if f"{part}.{name}" in state]
            whole[name] = torch.cat([whole[name], *pieces], dim=_side(name)) if pieces else whole[name]
        rank = self.config.rank + sum(self._parts.values())
        options = copy.deepcopy(cast(Any, self.peft_model.peft_config[TRAINED]))
        options.base_model_name_or_path, options.inference_mode = base, True
        options.target_modules = sorted(options.target_modules or ())
        options.r, options.lora_alpha, options.use_rslora = rank, self.scaling * rank, False
        path.mkdir(parents=True, exist_ok=True)
        options.save_pretrained(str(path))
        save_file(
            {name: tensor.contiguous() for name, tensor in whole.items()}, path / WEIGHTS, metadata={"format": "pt"}
        )
        return self.artifact(path, base)

    def read(self, path: Path) -> dict[str, Tensor]:
        """Take apart what `save` put together."""
        found, own = dict[str, Tensor](), self.state()
        for name, tensor in super().read(path).items():
            parts = [part for part in self._parts if f"{part}.{name}" in own]
            ranks = [self.config.rank, *(self._parts[part] for part in parts)]
            pieces = tensor.split(ranks, dim=_side(name)) if parts else (tensor,)
            found[name] = pieces[0]
            for part, piece in zip(parts, pieces[1:], strict=True):
                found[f"{part}.{name}"] = piece
        return found

    def artifact(self, path: Path, base: str) -> Artifact:
        """Return what a directory is that holds this adapter; one that holds others too is a LoRA like any."""
        if not self.config.adapter_name_or_path:
            return super().artifact(path, base)
        rank = self.config.rank + sum(self._parts.values())
        shared = self.config.model_dump(
            mode="json", include={"target_modules", "modules_to_save", *PartOptions.model_fields}
        )
        details = {"adapter": "gym_adapters:LoRA", "options": shared | {"rank": rank, "alpha": self.scaling * rank}}
        return Artifact(path, "adapter", base=base, details=details)

    @property
    def scaling(self) -> float:
        """What B A is multiplied by."""
        return float(next(iter(self.layers().values())).scaling[TRAINED])

    @contextmanager
    def _disabled(self) -> Iterator[None]:
        """Leave out what training changed; adapters that were there before stay."""
        if not self._stay:
            with super()._disabled():
                yield
            return
        marks = [(weight, weight.requires_grad) for weight in self.model.parameters()]
        whole = [module for module in self.model.modules() if isinstance(module, AuxiliaryTrainingWrapper)]
        try:
            self._switch(self._stay, whole, enabled=False)
            yield
        finally:
            self._switch([*self._parts, TRAINED], whole, enabled=True)
            for weight, trains in marks:
                weight.requires_grad_(trains)

    def _switch(self, parts: list[str], whole: list[AuxiliaryTrainingWrapper], enabled: bool) -> None:
        for layer in self.layers().values():
            layer.set_adapter(parts)
        for module in whole:
            module.enable_adapters(enabled)

    def _go_on(self, given: LoraFile) -> None:
        """Let the one that trains begin as a saved one, which is kept for when training is left out."""
        if given.rank != self.config.rank or not math.isclose(given.scaling, self.scaling, rel_tol=1e-6):
            by_root = cast(LoraConfig, self.peft_model.peft_config[TRAINED]).use_rslora
            alpha = given.scaling * (given.rank**0.5 if by_root else given.rank)
            raise GymError(
                f"the adapter to go on with has rank {given.rank} and scaling {given.scaling:g}, the recipe has "
                f"{self.config.rank} and {self.scaling:g}",
                where=str(given.path),
                key="adapter.rank",
                fix=f"set rank: {given.rank} and alpha: {alpha:g}, or create_new_adapter: true",
            )
        given = replace(given, beside=self._fill_whole(given))
        self._fill(TRAINED, given)
        self.attach(AGAIN, given.rank, works=False)
        self._fill(AGAIN, given)
        self._stay.append(AGAIN)

    @torch.no_grad()
    def _fill_whole(self, given: LoraFile) -> dict[str, Tensor]:
        """Let modules that train whole begin as a saved adapter has them, also when training is left out; return what is left.

        Raises GymError for one that trains whole there and not here, or has other rows.
        """
        left = dict(given.beside)
        whole = {name: each for name, each in self.model.named_modules() if isinstance(each, ModulesToSaveWrapper)}
        for name, module in whole.items():
            held = {key: left.pop(key) for key in given.beside if key.startswith(f"{name}.")}
            if held:
                trained = module.modules_to_save[TRAINED]
                own = trained.state_dict(prefix=f"{name}.")
                for key in sorted(own.keys() | held.keys()):
                    _check_shape(key, held.get(key), own.get(key), given.path)
                trained.load_state_dict({key.removeprefix(f"{name}."): tensor for key, tensor in held.items()})
                stored = next(module.original_module.parameters()).dtype
                module.original_module = copy.deepcopy(trained).to(stored).requires_grad_(False)
        lost = next((key for key in left if any(within(key, name) for name in given.saved)), None)
        if lost is not None:
            raise GymError(
                f"the adapter to go on with has trained {lost.rpartition('.')[0]} whole, which this one does not",
                where=str(given.path),
                key="adapter.modules_to_save",
                fix=f"set modules_to_save: {','.join(given.saved)}, or merge it into the model first: gym export",
            )
        return left

    @torch.no_grad()
    def _fill(self, part: str, given: LoraFile) -> None:
        """Copy a saved adapter; a layer that it leaves alone keeps its first values, which change nothing and may train.

        Raises GymError for a layer that is not adapted here, and where `check_beside` does.
        """
        check_beside(given.beside, self.model, given.path)
        layers = self.layers()
        strange = sorted(given.pairs.keys() - layers.keys())
        if strange:
            raise GymError(
                f"an adapter to begin with changes {strange[0]}, which this one does not",
                where=str(given.path),
                key="adapter.target_modules",
                fix=f"add {strange[0].rpartition('.')[2]} to `target_modules`",
            )
        for name, halves in given.pairs.items():
            for half, weight in pair(layers[name], part).items():
                tensor = halves.get(half, torch.zeros_like(weight))
                _check_shape(f"{half} of {name}", tensor, weight, given.path)
                weight.copy_(tensor * (given.scaling / self.scaling) if half.endswith("B") else tensor)


def pair(layer: LoraLayer, part: str) -> dict[str, Tensor]:
    """Return A and B of an adapter of a layer, by the names they have in files."""
    inside = {"lora_embedding_A": layer.lora_embedding_A, "lora_embedding_B": layer.lora_embedding_B}
    found: dict[str, Tensor] = {half: pairs[part] for half, pairs in inside.items() if part in pairs}
    return found or {"lora_A": layer.lora_A[part].weight, "lora_B": layer.lora_B[part].weight}


def _check_shape(name: str, saved: Tensor | None, own: Tensor | None, path: Path) -> None:
    """Raise GymError where a saved tensor has another shape than the model's."""
    there, here = ("missing" if each is None else str(list(each.shape)) for each in (saved, own))
    if there != here:
        raise GymError(
            f"{name} is {there} in it, and {here} for this model",
            where=str(path),
            key="adapter.adapter_name_or_path",
            fix="name an adapter of this model; one of a larger vocabulary has its tokenizer, and needs model.resize_vocab",
        )


def _named(mark: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(mark): tensor for name, tensor in state.items() if name.startswith(mark)}


def _side(name: str) -> int:
    """Return the dimension of the rank: the first of A, the second of B."""
    return 0 if {"lora_A", "lora_embedding_A"} & {*name.split(".")} else 1
