"""What all users share: one frozen model in memory, room for their pairs, and what their runs are made of."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from gym_core import Recipe, RecipeError, Run
from gym_core.hooks import manager_for
from gym_core.record import RunRecord
from gym_optim.promises import promised
from gym_personalization.grouped_lora import GroupedLora
from gym_personalization.user_policy import HALVES
from gym_torch.distributed.accelerator import new_accelerator
from gym_torch.distributed.ddp import Replicated
from gym_torch.kinds import Adapter, part
from gym_torch.loop import checks
from gym_torch.memory.gradient_checkpointing import LONG, recompute_layers
from gym_torch.model import fingerprint
from gym_torch.model.adapted import AdaptedModel, LowRank, adapt
from gym_torch.model.dropout import dropouts
from gym_torch.model.load_balancing import balance_of
from gym_torch.model.loading import LoadedModel
from gym_torch.model.parameter_groups import groups_of
from gym_torch.packing import ALONE
from gym_torch.policy import Policy

RECORD = "personalization.json"  #: in the directory of all users, what was found out of the base
FIX = "train such users with `gym train`"


class AloneError(RecipeError):
    """Users cannot share this; a run of its own can do it, as `gym train` makes one."""


class Base:
    """A frozen model, and room beside it for the pairs of so many users."""

    def __init__(self, recipe: Recipe, output: Path, slots: int) -> None:
        """Load the model of a recipe. Raises GymError for what cannot be shared, by its key."""
        self.recipe, self.output, self.slots = recipe, output, slots
        self._settings = recipe.settings()
        output.mkdir(parents=True, exist_ok=True)
        record = RunRecord(output / RECORD)
        self.run = Run(recipe, output, record, resuming=bool(record.read()))
        if recipe.quantization:
            recipe.quantization.check()  # before anybody is trained for what it would refuse
        check_shared(recipe)
        loaded = manager_for(recipe.hooks).hook.load_model(run=self.run)
        self.loaded: LoadedModel = promised(loaded, LoadedModel, recipe.model or "the hook load_model", "model")
        self.accelerator = new_accelerator()
        if self.accelerator.num_processes > 1:
            raise RecipeError("users train together in one process", key="distributed", fix="start one")
        self.spread = Replicated(self.accelerator)
        model = self.loaded.model.requires_grad_(False)
        self.spread.place(model)
        _check_model(self.loaded)
        self.fingerprint = fingerprint.of_model(self.loaded.path)
        self._bare = _sharing(model)  # nobody watches its layers
        self._shell: tuple[str, AdaptedModel] | None = None
        adapted = self.adapted(recipe)
        self.pairs = pairs_of(adapted, recipe)  # first: who trains alone may hold embeddings that were added
        checks.adapter(adapted, self.loaded)
        self._groups = _template(adapted.model, self.pairs)
        recompute_layers(model, recipe.train.gradient_checkpointing)
        self.policy: Policy[Any] = Policy(model, self.loaded.precision)
        self.lora = GroupedLora(model, self.pairs, slots)
        self.policy.train()

    @property
    def model(self) -> PreTrainedModel:
        """The model, whose layers add the updates of whoever is given to `lora`."""
        return self.policy.model

    def adapted(self, recipe: Recipe) -> AdaptedModel:
        """Return what the adapter of a recipe builds beside a copy of the model, which shares its weights."""
        return adapt(_sharing(self._bare), recipe)

    def shell(self, recipe: Recipe) -> AdaptedModel:
        """Return the same, with whatever values: the last one again for another user with these options."""
        adapter = part(recipe, Adapter)
        assert adapter is not None
        key = f"{type(adapter).__qualname__} {adapter.model_dump_json()}"
        if self._shell is None or self._shell[0] != key:
            self._shell = key, self.adapted(recipe)
        return self._shell[1]

    def check_fits(self, recipe: Recipe, adapted: AdaptedModel) -> None:
        """Raise GymError where a user's recipe asks for another model; AloneError for another precision or shape of adapter."""
        own, shared = recipe.settings(), self._settings
        fixed = ("model.", "train.precision", "train.gradient_checkpointing")
        for key in sorted(own.keys() | shared.keys()):
            if key.startswith(fixed) and own.get(key) != shared.get(key):
                kind = RecipeError if key.startswith("model.") else AloneError
                raise kind(
                    f"{own.get(key)!r} for one user, and {shared.get(key)!r} for all",
                    key=key,
                    fix="leave it to the shared recipe",
                )
        found = pairs_of(adapted, recipe)
        if {name: _shape(pair) for name, pair in found.items()} != {n: _shape(p) for n, p in self.pairs.items()}:
            raise AloneError(
                "the adapter has other layers, another rank or another scaling than that of the first",
                key="adapter",
                fix="leave it to the shared recipe",
            )

    def groups(self, weights: dict[tuple[str, str], nn.Parameter]) -> list[dict[str, Any]]:
        """Return the parameters of one user in groups by role, as an optimizer is told those of a run of its own."""
        return [
            {**group, "params": [(name, weights[where]) for name, where in group["params"]]} for group in self._groups
        ]


def pairs_of(adapted: AdaptedModel, recipe: Recipe) -> dict[str, LowRank]:
    """Return the pairs of an adapter. Raises AloneError where it is more than pairs."""
    found = adapted.low_rank()
    if not found:
        raise AloneError(
            f"what {type(part(recipe, Adapter)).__name__} trains here is more than a low-rank update of linear layers",
            key="adapter",
            fix=f"set `adapter: lora` without dropout, modules_to_save and embeddings, or {FIX}",
        )
    return dict(found)


def _shape(pair: LowRank) -> tuple[Any, ...]:
    return tuple(pair.first.shape), tuple(pair.second.shape), pair.scaling


def check_shared(recipe: Recipe) -> None:
    """Raise AloneError for what a recipe says that no two users can share."""
    if part(recipe, Adapter) is None:
        raise AloneError("users share one model, and each trains an adapter", key="adapter", fix="set `adapter: lora`")
    if recipe.settings().get("model.init") == "random":
        raise AloneError(
            "random weights are those of one seed, and each user has its own", key="model.init", fix="leave it out"
        )
    if recipe.export:
        raise AloneError("exports are written by the run of one user", key="export", fix=f"take it out, or {FIX}")
    trainers = manager_for(recipe.hooks).hook.build_trainer.get_hookimpls()
    if names := [each.plugin_name for each in trainers if each.plugin_name != "defaults"]:
        why = f"{names[0]} is asked for the trainer of one user"
        raise AloneError(why, key="hooks", fix=f"take it out, or {FIX}")
    if recipe.train.gradient_checkpointing in LONG:
        why = "a layer over a slice of a row does not know whose tokens these are"
        raise AloneError(why, key="train.gradient_checkpointing", fix="set `gradient_checkpointing: true`")


def _check_model(loaded: LoadedModel) -> None:
    """Raise AloneError for a model in which what one user is given would depend on the others."""
    chance = next(iter(dropouts(loaded.model)), None)
    wrong = {
        "model.neftune_noise_alpha": (loaded.neftune_noise_alpha, "noise is drawn for a whole batch"),
        "model": (loaded.layout is ALONE, "the model computes samples one by one"),
        "model.router_aux_loss_coef": (
            balance_of(loaded.model, loaded.router_aux_loss_coef),
            "the load of experts is balanced over a whole batch",
        ),
        "model.path": (chance, f"the model drops out at random ({chance and type(chance[0]).__name__})"),
    }
    for key, (found, why) in wrong.items():
        if found:
            raise AloneError(f"{why}, and a batch is of many users", key=key, fix=f"take it out, or {FIX}")


def _sharing(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the modules of a model over the same weights."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, memo)


def _template(model: PreTrainedModel, pairs: dict[str, LowRank]) -> list[dict[str, Any]]:
    """Return the groups of what trains, with the place of each parameter in `pairs` for itself."""
    whole = nn.Module()
    whole.model = model  # the names are those that the parameters of a run have
    places = {id(getattr(pair, half)): (path, half) for path, pair in pairs.items() for half in HALVES}
    return [
        {**group, "params": [(name, places[id(weight)]) for name, weight in group["params"]]}
        for group in groups_of(model, whole)
    ]
