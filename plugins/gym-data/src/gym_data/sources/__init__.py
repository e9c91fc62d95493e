"""Where rows come from. These classes import nothing heavy; the readers are in the modules beside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gym_data.kinds import Source

__all__ = ["File", "Hub", "Named"]


class File(Source):
    """A json, jsonl, csv, parquet, arrow or txt file, or a folder of files of one of these kinds."""

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
        from gym_data.sources.files import find_files

        find_files(Path(self.path).expanduser())


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
    folder: str | None = None
    """Folder inside the repository."""
    revision: str | None = None
    """Branch, tag or commit."""

    @property
    def title(self) -> str:
        """Return the Hub id."""
        return self.path


class Named(Source):
    """A name in `dataset_info.json` (LLaMA-Factory's schema), else a path, else a Hub id."""

    target: ClassVar[str] = "gym_data.sources.dataset_info:open_named"

    path: Annotated[str, Field(examples=["data/rows.jsonl"])]
    """Name, path or Hub id."""
    directory: str | None = None
    """Folder of `dataset_info.json`; without it, `dataset_dir` of the section."""

    @property
    def title(self) -> str:
        """Return the name."""
        return self.path

    def looked_up_in(self, directory: str | None) -> Named:
        """Return the name in this folder, where it has none of its own."""
        return self if self.directory is not None else self.model_copy(update={"directory": directory})

    def check(self) -> None:
        """Raise DataError where the name stands for nothing; what the Hub has is not asked."""
        from gym_data.sources.dataset_info import check_named

        check_named(self)
