"""The `data` section of a recipe."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PositiveInt, SerializeAsAny, model_validator

from gym_core import DataError, Recipe, Slot
from gym_core.component import load_object
from gym_data.kinds import Asked, Data, DataAlgorithm, Format, Media, Source, Template
from gym_data.new_tokens import folder_of

MOST = 4  #: processes by default; more would wait for the one that reads, tokenizes and writes
ROWS = 16384  #: of a window by default, as LLaMA-Factory has it
Option = str | bool | int | float


def _day(value: str | None) -> str | None:
    return value if value is None else datetime.date.fromisoformat(value).isoformat()


class DatasetConfig(Data):
    """Rows from one or several sources, as tokens with a mask of what is trained."""

    target: ClassVar[str] = "gym_data.prepare:prepare"
    changeable: ClassVar[frozenset[str]] = frozenset({"processes", "rebuild"})

    sources: Annotated[
        list[Annotated[SerializeAsAny[Source], Slot("sources", default="named", bare="path")]], Field(min_length=1)
    ]
    """Where rows come from: a name in `dataset_info.json`, a path, a Hub id, or a source with options; or a list."""
    dataset_dir: str = "data"
    """Folder of `dataset_info.json` and of the files it names."""
    format: Annotated[SerializeAsAny[Format] | None, Slot("formats")] = None
    """Shape of the rows of sources that do not say it themselves; without it, told from the columns."""
    template: Annotated[SerializeAsAny[Template] | None, Slot("templates")] = None
    """Chat template; without it, the model's own."""
    template_options: dict[str, Option] = {}
    """Values handed to the chat template, such as `enable_thinking: false`."""
    date: Annotated[str | None, AfterValidator(_day)] = None
    """Day that the chat template is told where it asks, such as `2025-12-31`; without it, the day on which the run began."""
    media: Annotated[SerializeAsAny[Media] | None, Slot("media")] = None
    """How images, videos or sounds of rows are read, such as `vision`; without it, rows that have any are bad rows."""
    system: str | None = None
    """System message of conversations that have none."""
    split_special_tokens: bool = True
    """Whether special tokens that rows spell out (`<|im_end|>`, `<fim_middle>`) are split like any text; `false` reads them as
    these tokens: for texts that are rendered chats, or that leave gaps to fill in the middle."""
    variables: dict[str, str] = {}
    """What `{{name}}` in a row becomes; a name that is not here stays as it is."""
    cutoff: PositiveInt = 2048
    """Most tokens of one example, and the size of a block of plain text (`max_length` in TRL, `max_seq_length` in Unsloth,
    `cutoff_len` in LLaMA-Factory, `sequence_len` in axolotl)."""
    overlong: Literal["truncate", "drop"] = "truncate"
    """What happens to an example of more tokens than `cutoff`: its end is cut off, or it is left out."""
    max_samples: PositiveInt | None = None
    """Most rows of each source, from its beginning."""
    validation: Annotated[float, Field(ge=0)] = 0.0
    """Rows kept for evaluation: a share when below 1, rounded up, else a number. Equal rows stay on one side
    (`val_size` in LLaMA-Factory, `val_set_size` in axolotl)."""
    validation_sources: list[Annotated[SerializeAsAny[Source], Slot("sources", default="named", bare="path")]] = []
    """Sources of their own for evaluation, read and mixed as those of `sources` are, in place of `validation`."""
    validation_apart: bool = False
    """Whether what is held out of each source is measured by itself as well, as `eval_NAME_loss`."""
    mix: Literal["concat", "interleave_under", "interleave_over", "interleave_once"] = "concat"
    """One source after the other, or in turns: until the first is used up (`under`), until all are, shorter ones
    repeating (`over`), or until each example came once (`once`); the order is that of `datasets.interleave_datasets`."""
    mix_weights: list[Annotated[float, Field(gt=0)]] | None = None
    """How often each source has its turn when interleaving, as relative weights; without them, strictly in turn."""
    train_on: Literal["assistant", "last", "all"] = "assistant"
    """What of a conversation is trained on: every answer, the last answer, or all of it (`assistant_only_loss`,
    `completion_only_loss` in TRL, `train_on_prompt` in LLaMA-Factory, `train_on_inputs` in axolotl)."""
    split: Literal["blocks", "documents"] = "blocks"
    """Plain text: documents joined and cut into blocks of `cutoff` tokens, or one example each."""
    bad_rows: Literal["stop", "skip"] = "stop"
    """What happens at a row that cannot be trained on (no answer, two user turns in a row...): an error, or it is left
    out and counted."""
    whole_epochs: bool = False
    """Whether the last optimizer step of an epoch ends with it, and may be smaller; else the next epoch fills it up."""
    streaming: bool = False
    """Whether rows are read while training goes on, `buffer_size` at a time, each window in an order of its own, and from the
    beginning again where they end; `train.max_steps` says when it ends. Nothing is cached."""
    buffer_size: PositiveInt = ROWS
    """Rows of a window, where rows are streamed: what is in memory at a time, and what is shuffled."""
    processes: PositiveInt | None = None
    """Processes that render chat templates, by default four; never more than there are processors. The result is the same."""
    rebuild: bool = False
    """Whether to tokenise again although the cache holds the result."""

    @property
    def rendering_processes(self) -> int:
        """How many processes render chat templates."""
        return min(self.processes or MOST, os.cpu_count() or 1)

    def located(self) -> list[Source]:
        """Return the sources, those for evaluation last; names are looked up in `dataset_dir` where they say no folder."""
        return self._located(self.sources) + self._located(self.validation_sources)

    def _located(self, sources: Sequence[Source]) -> list[Source]:
        found = (source.looked_up_in(self.dataset_dir) for source in sources)
        return [source.streamed() if self.streaming else source for source in found]

    def preview(self, recipe: Recipe, count: int) -> dict[str, Any]:
        """Return examples as the model will see them, and counts, as plain data."""
        algorithm = recipe.algorithm
        if not isinstance(algorithm, DataAlgorithm):
            why = f"{type(algorithm).__name__} does not say which rows it learns from"
            raise DataError(why, key="algorithm", fix="name another, or subclass gym_data.kinds.DataAlgorithm")
        model = recipe.canonical(everything=True).get("model", {})
        if "path" not in model:
            raise DataError("no model says how to tokenise", key="model.path", fix="add, for example, `model: tiny`")
        path = folder_of(model, weights=False)
        tokenised = load_object("gym_data.preview:tokenised")
        asked = path, algorithm.rows, recipe.train.seed, count, algorithm.branches, algorithm.tools()
        found: dict[str, Any] = tokenised(self, *asked)
        return found

    def prompts(self, seed: int) -> tuple[Sequence[Asked], Sequence[Asked]]:
        """Return the prompts of the sources, mixed, drawn and held out as for training."""
        found: tuple[Sequence[Asked], Sequence[Asked]] = load_object("gym_data.prompts:prompts")(self, seed)
        return found

    def check(self) -> None:
        """Raise DataError where a source is not there."""
        for number, source in enumerate(self.located()):
            try:
                source.check()
            except DataError as error:
                key = self._key(number)
                raise DataError([replace(problem, key=problem.key or key) for problem in error.problems]) from None

    def _key(self, number: int) -> str:
        """Return the key of one of the sources."""
        place = number - len(self.sources)
        if place >= 0:
            return f"data.validation_sources[{place}]"
        return f"data.sources[{number}]" if len(self.sources) > 1 else "data"

    @model_validator(mode="after")
    def _consistent(self) -> DatasetConfig:
        if self.validation >= 1 and self.validation != int(self.validation):
            raise ValueError("validation is a share below 1 or a whole number of examples")
        if self.validation and self.validation_sources:
            raise ValueError("validation and validation_sources exclude each other: give one")
        if not self.streaming and self.buffer_size != ROWS:
            raise ValueError("buffer_size counts where rows are streamed: set streaming too, or leave it out")
        if self.streaming and 0 < self.validation < 1:
            raise ValueError("a share of rows without an end is not known: let validation be a number of rows")
        if self.streaming and self.validation_apart:
            raise ValueError("validation_apart is for rows that are read first: leave it out, or streaming")
        if self.streaming and any(source.samples for source in self.sources):
            raise ValueError("rows are drawn by `samples` where all are read first: leave it out, or streaming")
        if self.mix_weights is not None:
            if self.mix == "concat":
                raise ValueError("mix_weights needs one of the interleave_* values of mix")
            if len(self.mix_weights) != len(self.sources):
                raise ValueError(f"mix_weights holds {len(self.mix_weights)} numbers for {len(self.sources)} sources")
            if len(self.validation_sources) not in (0, len(self.sources)):
                raise ValueError(
                    "mix_weights holds for validation_sources too, of which there must be as many as of sources"
                )
        return self

    def tokenizer(self, path: Path) -> Any:
        """Return the tokenizer with the configured template."""
        return load_object("gym_data.prepare:open_tokenizer")(self, path)

    def chat_template(self, path: Path) -> str | None:
        """Return the text of the configured template, for a model in this directory."""
        text: str | None = load_object("gym_data.prepare:template_text")(self.template, path) if self.template else None
        return text

    def steps_end_with_epochs(self) -> bool:
        """Return `whole_epochs`."""
        return self.whole_epochs

    def streams(self) -> bool:
        """Return `streaming`."""
        return self.streaming

    def in_memory(self) -> DatasetConfig:
        """Return it without `streaming`."""
        return self.model_copy(update={"streaming": False})

    def answers_alone(self) -> DatasetConfig:
        """Return it without what `train_on: all` adds."""
        return self.model_copy(update={"train_on": "assistant"}) if self.train_on == "all" else self

    def measures_apart(self) -> bool:
        """Return `validation_apart`."""
        return self.validation_apart

    def knows_positions(self) -> bool:
        """Lengths and segments say it."""
        return True

    def longest(self) -> int:
        """Return `cutoff`."""
        return self.cutoff

    def brings_inputs(self) -> bool:
        """Images, videos or sounds are read."""
        return self.media is not None

    def reads_media(self) -> Media | None:
        """Return `media`."""
        return self.media
