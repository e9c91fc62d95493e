"""Configurations of files and of datasets of the Hub. They import nothing heavy; the readers are in the modules beside."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gym_core.files import expanded
from gym_data.kinds import Source


class File(Source):
    """A json, jsonl, csv, tsv, txt, parquet or arrow file, texts also as `.gz` or `.zst`, or a folder of one of these kinds.

    A folder that `save_to_disk` of `datasets` wrote is one too; of its splits `train` is read, or that whose folder is named.
    """

    target: ClassVar[str] = "gym_data.sources.files:FileRows"

    path: Annotated[str, Field(examples=["data/rows.jsonl"])]
    """File or folder."""
    text_unit: Literal["line", "paragraph", "file"] = "line"
    """What is one document of a txt file; paragraphs are parted by blank lines."""

    @property
    def title(self) -> str:
        """Return the path."""
        return self.path

    def check(self) -> None:
        """Raise DataError where there are no files to read."""
        from gym_data.sources.readers import find_files

        find_files(expanded(self.path))


class Hub(Source):
    """A dataset of the Hugging Face Hub, through `datasets`. No code of the dataset is run."""

    target: ClassVar[str] = "gym_data.sources.hub:HubRows"
    outside: ClassVar[str] = "the Hugging Face Hub"

    path: Annotated[str, Field(examples=["openai/gsm8k"])]
    """Hub id, such as `openai/gsm8k`."""
    subset: str | None = None
    """Configuration of the dataset."""
    split: str = "train"
    """Split of the dataset."""
    files: tuple[str, ...] = ()
    """Files inside the repository, such as `data/part-1.jsonl`; without them, those that the dataset names."""
    folder: str | None = None
    """Folder inside the repository."""
    revision: str | None = None
    """Branch, tag or commit."""
    streaming: bool = False
    """Whether rows are fetched as they are read, and not kept on this disk."""

    @property
    def title(self) -> str:
        """Return the Hub id."""
        return self.path

    def streamed(self) -> Hub:
        """Return the dataset with `streaming`."""
        return self.model_copy(update={"streaming": True})
