"""The kinds that this package reads or brings: what data, sources, row formats, chat templates and families promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

from pydantic import PositiveInt, SerializeAsAny

from gym_core import Algorithm, Component, GymError, Slot


class Asked(NamedTuple):
    """A prompt as it is asked, and the row that it comes from."""

    messages: Sequence[Mapping[str, Any]]  #: roles and contents
    row: Mapping[str, Any]  #: all columns, for whoever judges answers; what the row holds as its answer is in `answer`


class Data(Component):
    """Turns sources into examples. Section `data`. `build(run=Run, ...)` is between the data plugin and its readers."""

    kind: ClassVar[str] = "data"

    def preview(self, recipe: Any, count: int) -> dict[str, Any]:
        """Return what `gym data preview` shows of a `Recipe`: so many examples, and what became of all rows, as plain data."""
        raise GymError(f"{type(self).__name__} shows no preview of its examples", key="data")

    def prompts(self, seed: int) -> tuple[Sequence[Asked], Sequence[Asked]]:
        """Return the prompts to learn from and those held out, as rows of shape `prompt` without tokens or a template."""
        raise GymError(f"{type(self).__name__} shows no prompts", key="data")

    def tokenizer(self, path: Path) -> Any | None:
        """Return the tokenizer in `path` with the chat template of the conversations; None where it renders none."""
        return None

    def chat_template(self, path: Path) -> str | None:
        """Return the text of that template, to lie beside what is trained; None where it is the model's own, or none.

        `path` is the directory of the model.
        """
        return None

    def steps_end_with_epochs(self) -> bool:
        """Whether the last optimizer step of an epoch ends with it, and may be smaller; else the next epoch fills it up."""
        return False

    def streams(self) -> bool:
        """Whether samples come window by window while training goes on: what it builds then has a `stream` of windows as well
        (`gym_torch.streaming.Windows`), of which `train` is the first.
        """
        return False

    def in_memory(self) -> Data:
        """Return the section with all rows in memory, where it streams them window by window. Default: itself."""
        return self

    def answers_alone(self) -> Data:
        """Return the section under which answers alone are learnt: samples then tell where answers begin. Default: itself."""
        return self

    def measures_apart(self) -> bool:
        """Whether what is held out is measured part by part as well: what it builds then has `validation_parts`, by name."""
        return False

    def knows_positions(self) -> bool:
        """Whether samples know how many positions they take, which is less than their tokens where they branch: what it builds
        then holds samples with `positions(numbers)` (`gym_torch.loop.sample_positions.PlacedExamples`).
        """
        return False

    def longest(self) -> int | None:
        """Return the most tokens that a sample can have; None where nobody knows."""
        return None

    def brings_inputs(self) -> bool:
        """Whether samples may have more than tokens for the model, such as images (`gym_torch.inputs_beside.WithInputs`)."""
        return False

    def reads_media(self) -> Media | None:
        """Return what reads images, videos or sounds of rows, and of whoever asks the model later; None where nothing does."""
        return None


class DataAlgorithm(Algorithm):
    """Base of every algorithm that learns from examples: what it says of them, and of what becomes of them."""

    rows: ClassVar[str] = "conversation"
    """Shape of the rows it learns from: `conversation`, `text`, `preference`, `feedback`, `stepwise` or `prompt`; or
    `module:name` of a `gym_data.shapes.Shape` that its package brings."""
    branches: ClassVar[bool] = False
    """Whether a sample may be several sequences, what they begin with laid out once (`gym_data.examples.Branched`). For a loss of
    labels and the segment of each; a segment without labels counts for nothing."""
    streams: ClassVar[bool] = False
    """Whether it takes samples that come window by window, each of which is seen when its turn comes and not before."""
    measures_apart: ClassVar[bool] = False
    """Whether it can measure parts of what is held out by themselves."""
    measure: ClassVar[str] = "loss"
    """Key of `metrics.jsonl` that training improves."""
    better: ClassVar[str] = "lower"
    """Which way `measure` improves: `lower` or `higher`."""
    likelier: ClassVar[bool] = True
    """Whether training makes what its rows show as good likelier, measured against what they show as bad; false to unlearn."""

    def evaluation_metrics(self) -> Mapping[str, str]:
        """Return what evaluations give beside `measure` that its users look at, each with what is better, `lower` or `higher`.

        It is drawn, and a recipe may tell the best checkpoint by it. Default: the loss.
        """
        return {"loss": "lower"}

    def shown(self) -> str:
        """Return the key of `metrics.jsonl` that the screen shows. Default: `measure`."""
        return self.measure

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the functions that prompts offer whose rows offer none, as OpenAI describes functions. Default: none."""
        return ()

    def generated(self) -> int:
        """Return the most tokens that are generated behind a sample of the data and trained on; 0 where none are."""
        return 0

    def before_loading(self) -> None:
        """Raise GymError where code of the user that the run will call cannot be used. Default: there is none.

        Asked once, in the main process, before a model is loaded. Unlike `check`, it may run that code.
        """


class Format(Component):
    """Reads rows of one shape. `build()` returns `convert(row) -> Example` of the data plugin."""

    kind: ClassVar[str] = "formats"
    example: ClassVar[Mapping[str, Any]] = {}
    """A row that the default options read."""

    def for_messages(self, column: str) -> Format | None:
        """Return the format of a list of messages in this column, written as this one reads them; None where it reads none.

        What it builds has `read(row)`, which returns the messages as they are, in whatever order.
        """
        return None


class Source(Component):
    """Where rows come from. `build()` returns an object with `rows() -> Iterator[dict]` and `fingerprint() -> str`.

    The two options that every source has are the business of whoever reads it; a source need not look at them.
    """

    kind: ClassVar[str] = "sources"
    format: ClassVar[str] = ""
    """Row format of what it yields, where that is fixed; empty where the recipe or the rows decide."""

    read_as: Annotated[SerializeAsAny[Format] | None, Slot("formats")] = None
    """Row format, such as `sharegpt` or `{name: alpaca, prompt: question}`; without it, told by the source or the columns."""
    samples: PositiveInt | None = None
    """Rows drawn at random; where there are fewer, each is taken as often as any other, or once more."""

    @property
    def title(self) -> str:
        """What messages and examples call it, such as a path; empty: its name in recipes."""
        return ""

    def looked_up_in(self, directory: str | None) -> Source:
        """Return the source that is read where `dataset_dir` is this folder; only one that is a name there differs."""
        return self

    def streamed(self) -> Source:
        """Return the source that fetches rows as they are read; only one that would fetch all of them before differs."""
        return self


class Template(Component):
    """A named chat template, a jinja file. `build()` returns its text; None, with `encoders`, where that is the model's own."""

    kind: ClassVar[str] = "templates"
    needs: ClassVar[tuple[str, ...]] = ()
    """Special tokens that the tokenizer must have: as they are written, or by role (`bos_token`, `eos_token`)."""
    stands_in: ClassVar[bool] = False
    """Whether its text knows less than models' own, such as nothing of tools: a model that has one which writes the same turns
    keeps that. For templates with `encoders`."""

    @property
    def title(self) -> str:
        """What a preview calls it; empty: its name in recipes."""
        return ""

    def lacking(self, has: Callable[[str], bool]) -> list[str]:
        """Return the tokens that it needs and a tokenizer does not have, which says so by `has(token)`."""
        return [token for token in self.needs if not has(token)]

    def dated(self) -> bool:
        """Whether its `encoders` write the day. That a text asks for it is seen."""
        return False

    def encoders(self) -> Mapping[str, Callable[[Any, Any], Iterator[Any]]]:
        """Return, by shape of the rows, what makes sequences of them where its text is not what does it.

        Each is called with the reader of the rows and the tokenizer, as those of `gym_data.encodings.encoders` are, which
        stand in for the shapes that are not here.
        """
        return {}


class Media(Component):
    """Reads images, videos or sounds. `build(path=Path)` returns a `gym_data.media.MediaReader` for the model that is there."""

    kind: ClassVar[str] = "media"


class Family(Component):
    """A model that a package brings along. `build()` returns the `pathlib.Path` of a local model directory."""

    kind: ClassVar[str] = "families"


class Rows(Protocol):
    """What a source builds."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in a fixed order."""
        ...

    def fingerprint(self) -> str:
        """Return a string that changes when the rows do."""
        ...
