"""What `gym merge` reads: a file that names a merger, the inputs and where the result goes. No torch is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    SerializeAsAny,
    field_validator,
    model_validator,
)

from gym_core.component import Config, Slot
from gym_deltasoup.config import mergekit
from gym_deltasoup.config.by_layer import ByLayer
from gym_deltasoup.config.mixing import ByzantineRobust
from gym_deltasoup.config.options_file import read_options
from gym_deltasoup.config.vocabulary import TokenizerOptions, as_mapping
from gym_deltasoup.kinds import Merger


class StackOptions(Config):
    """Some layers of a whole model."""

    path: Annotated[str, Field(min_length=1)]
    """Directory of a run, of a checkpoint or of a model, or the Hub id of one."""
    layers: tuple[NonNegativeInt, PositiveInt]
    """The first layer, counted from 0, and the one behind the last. `layer_range` in mergekit."""


class InputOptions(Config):
    """One input."""

    path: str = ""
    """Directory of a run, of a checkpoint, of a model or of an adapter, or the Hub id of one. `model` in mergekit."""
    stack: Annotated[list[StackOptions], Field(min_length=1)] | None = None
    """In place of `path`: layers of one or more models, one upon the other. Embeddings are those of the first, the last norm and
    the head those of the last. `slices` in mergekit."""
    name: str = ""
    """What the report calls it; by default its path."""
    weight: ByLayer[float] | None = None
    """Weight, for mergers that take weights; 1 where others have one. As `density` and `t` of `slerp`, it is a number, or
    numbers along the layers, or values for weights whose name has a part."""
    density: ByLayer[Annotated[float, Field(gt=0, le=1)]] | None = None
    """Share of its numbers that stays, for `ties`, `dare`, `della` and `breadcrumbs`; by default that of the merger."""

    @model_validator(mode="after")
    def _one(self) -> InputOptions:
        if bool(self.path) == bool(self.stack):
            raise ValueError("has either `path` or `stack`")
        return self


class MergeRecipe(Config):
    """A merge."""

    merger: Annotated[SerializeAsAny[Merger], Slot("mergers", default="byzantine_robust")] = ByzantineRobust()
    """What combines the inputs. `merge_method` in mergekit."""
    inputs: Annotated[list[InputOptions], Field(min_length=1)]
    """What is merged: paths, or mappings with `path` or `stack`, and `name`, `weight` and `density`. `models` in mergekit."""
    output: Annotated[str, Field(min_length=1)]
    """Directory that is written."""
    base: str | None = None
    """The model that the inputs were trained from: a family, a folder or a Hub id. `base_model` in mergekit."""
    hostile: Annotated[int | None, Field(ge=0)] = None
    """How many inputs may hold anything; by default `byzantine_threshold` of them, with mergers that tolerate any."""
    byzantine_threshold: Annotated[float, Field(ge=0, lt=0.5)] = 0.3
    """Share of hostile inputs that is expected where `hostile` is not given, rounded down."""
    trusted: str | None = None
    """Name of an input that is known to be honest, for mergers that compare with one."""
    evaluate: Annotated[str | None, Field(pattern=r".:.")] = None
    """`package.module:function` that is given a `gym_core.Artifact` and returns how good it is, for mergers that ask."""
    rank: PositiveInt | None = None
    """Rank of the adapter that is written; by default the largest of the inputs."""
    dtype: Literal["keep", "fp32", "bf16", "fp16"] = "keep"
    """Number format of the model that is written; by default that of the inputs."""
    tokenizer: Annotated[TokenizerOptions | None, BeforeValidator(as_mapping)] = None
    """Which tokenizer the result has: `base`, `union` or a path, or a mapping with `source`, `tokens` and `pad_to_multiple_of`.
    By default all inputs must have one. `tokenizer_source` and `tokenizer` in mergekit."""
    chat_template: Annotated[str, Field(min_length=1)] | None = None
    """Chat template of the result: its text, its name, such as `chatml`, or `auto` for the one that most inputs have; by default
    that of the first input, or of the tokenizer."""

    @field_validator("inputs", mode="before")
    @classmethod
    def _paths(cls, said: Any) -> Any:
        return [{"path": each} if isinstance(each, str) else each for each in said] if isinstance(said, list) else said


def load_merge(path: Path, overrides: Sequence[str] = ()) -> MergeRecipe:
    """Read a file, also one of mergekit, and apply `key=value` overrides.

    Raises RecipeError with every problem, each with its line.
    """
    return read_options(
        MergeRecipe,
        path,
        overrides,
        lambda data, found: mergekit.translated(data, found) if mergekit.MARK in data else data,
    )
