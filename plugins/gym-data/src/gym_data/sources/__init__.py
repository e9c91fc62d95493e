"""Where rows come from. These classes import nothing heavy; the readers are in the modules beside."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, SerializeAsAny

from gym_core import Format, Slot, Source

__all__ = ["File", "Hub", "Named"]


class Own(Source):
    """What the sources of this package have in common."""

    read_as: Annotated[SerializeAsAny[Format] | None, Slot("formats")] = None
    """Row format, such as `sharegpt` or `{name: alpaca, prompt: question}`; without it, told from the columns."""
    samples: PositiveInt | None = None
    """Rows drawn at random; more than there are repeats some."""


class File(Own):
    """A json, jsonl, csv, parquet, arrow or txt file, or a folder of files of one of these kinds."""

    target: ClassVar[str] = "gym_data.sources.files:FileRows"

    path: Annotated[str, Field(examples=["data/rows.jsonl"])]
    """File or folder."""
    text_unit: Literal["line", "paragraph", "file"] = "line"
    """What is one document of a txt file; paragraphs are parted by blank lines."""


class Hub(Own):
    """A dataset of the Hugging Face Hub, through `datasets`. No code of the dataset is run."""

    target: ClassVar[str] = "gym_data.sources.hub:HubRows"

    path: Annotated[str, Field(examples=["openai/gsm8k"])]
    """Hub id, such as `openai/gsm8k`."""
    subset: str | None = None
    """Configuration of the dataset."""
    split: str = "train"
    """Split of the dataset."""
    folder: str | None = None
    """Folder inside the repository."""
    revision: str | None = None
    """Branch, tag or commit."""


class Named(Own):
    """A name in `dataset_info.json` (LLaMA-Factory's schema), else a path, else a Hub id."""

    target: ClassVar[str] = "gym_data.sources.named:open_named"

    path: Annotated[str, Field(examples=["identity"])]
    """Name, path or Hub id."""
    directory: str | None = None
    """Folder of `dataset_info.json`; without it, `dataset_dir` of the section."""
