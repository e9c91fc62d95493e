"""What the options of several adapters have in common."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from gym_adapters.lean_imports import import_peft
from gym_torch.kinds import Adapter

Names = str | tuple[str, ...]  #: a list, or one string with commas between


def split(names: Names) -> tuple[str, ...]:
    """Return the names of a list, or of a string with commas between."""
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(part.strip() for part in parts if part.strip())


def _some(names: Names) -> Names:
    if not split(names):
        raise ValueError("no module is named: name some, such as q_proj, or all")
    return names


SomeNames = Annotated[Names, AfterValidator(_some)]  #: at least one


def numbered(names: Names) -> bool:
    """Whether a name singles out a layer by its number."""
    return any(letter.isdigit() for name in names for letter in name)


class PartOptions(Adapter):
    """The options of what trains other parts of a model of images and text than its language model."""

    freeze_vision_tower: bool = True
    """Whether the vision tower of a model of images and text stays as it is."""
    freeze_multi_modal_projector: bool = True
    """Whether the projector stays as it is: what lies between vision tower and language model, or the `merger` of the tower."""
    freeze_language_model: bool = False
    """Whether the language model of a model of images and text stays as it is, with its embeddings and its head."""

    @model_validator(mode="after")
    def _some_part(self) -> Self:
        if not self.parts():
            raise ValueError("vision tower, projector and language model are all frozen: nothing is left to train")
        return self

    def parts(self) -> tuple[str, ...]:
        """Return the parts that train, as `gym_torch.language_part.in_parts` names them."""
        frozen = {
            "language_model": self.freeze_language_model,
            "vision_tower": self.freeze_vision_tower,
            "multi_modal_projector": self.freeze_multi_modal_projector,
        }
        return tuple(name for name, stays in frozen.items() if not stays)


class TargetOptions(Adapter):
    """The option of everything that adapts linear layers."""

    target_modules: SomeNames = "all"
    """Target modules: linear layers to adapt, or what they are in, such as `q_proj,mlp`; `all` is every one but the
    language-model head (`lora_target` in LLaMA-Factory, `lora_target_modules` in axolotl)."""

    def uniform_layers(self) -> bool:
        """No name singles out a layer by its number."""
        return not numbered(self.target_modules)


class PeftOptions(TargetOptions):
    """Trains a little beside some modules of a model, and leaves the model itself alone. `target` is a `PeftAdapter`.

    The class must be importable from the package it belongs to under its own name, and be an entry point by that:
    `gym_adapters:LoRA`. What it makes says so, and is opened again by it.
    """

    modules_to_save: Names = ()
    """Modules to save: trained whole beside the adapter and saved in it, such as `embed_tokens`."""

    def parts(self) -> tuple[str, ...]:
        """Return the parts of a model of images and text that it is for. Default: the language model."""
        return ("language_model",)

    def build(self, **context: Any) -> Any:
        """Put it into the model."""
        import_peft()
        return super().build(**context)

    def uniform_layers(self) -> bool:
        """No name singles out a layer by its number."""
        return super().uniform_layers() and not numbered(self.modules_to_save)

    def with_modules(self, names: tuple[str, ...]) -> Self:
        """Return options with these as `modules_to_save`, unless that names some."""
        return self if self.modules_to_save else self.model_copy(update={"modules_to_save": names})


class RankOptions(PeftOptions):
    """The options that every low-rank update has."""

    rank: PositiveInt = 8
    """Rank of the update (`r` in peft, `lora_rank` in LLaMA-Factory, `lora_r` in axolotl)."""
    alpha: PositiveFloat | None = None
    """LoRA alpha: the update is scaled by alpha / rank; without it alpha is twice the rank
    (`lora_alpha` in peft)."""

    @property
    def scaled_by(self) -> float:
        """Return alpha, or what stands for it."""
        return self.alpha or 2 * self.rank


class LowRankOptions(RankOptions):
    """The options that every low-rank update of linear layers has."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout: share of a layer's inputs that the update does not see in a training step (`lora_dropout` in peft)."""


class VirtualTokenOptions(Adapter):
    """Base of what trains virtual tokens, which no weight of a model can compute."""

    starts_unchanged: ClassVar[bool] = False
    merges: ClassVar[bool] = False

    num_virtual_tokens: Annotated[PositiveInt, Field(examples=[4])] = 20
    """Number of virtual tokens."""
