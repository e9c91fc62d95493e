"""A source by its name: its configuration, and what opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gym_data.kinds import Format, Source


class Named(Source):
    """A name in `dataset_info.json` (LLaMA-Factory's schema), else a path, else a Hub id."""

    target: ClassVar[str] = "gym_data.sources.named:open_named"

    path: Annotated[str, Field(examples=["data/rows.jsonl"])]
    """Name, path or Hub id."""
    directory: str | None = None
    """Folder of `dataset_info.json`; without it, `dataset_dir` of the section."""
    streaming: bool = False
    """Whether rows of a Hub dataset are fetched as they are read, and not kept on this disk."""

    @property
    def title(self) -> str:
        """Return the name."""
        return self.path

    def looked_up_in(self, directory: str | None) -> Named:
        """Return the name in this folder, where it has none of its own."""
        return self if self.directory is not None else self.model_copy(update={"directory": directory})

    def streamed(self) -> Named:
        """Return the name with `streaming`."""
        return self.model_copy(update={"streaming": True})

    def check(self) -> None:
        """Raise DataError where the name stands for nothing; what the Hub has is not asked."""
        self.resolve()[0].check()

    def resolve(self) -> tuple[Source, Format | None, int | None]:
        """Return the source that the name stands for, and the row format and number of rows that the registry states.

        Raises DataError where the name stands for nothing.
        """
        from gym_data.sources.dataset_info import find_source

        return find_source(self.path, Path(self.directory or "."))


def open_named(config: Named) -> Any:
    """Open the source that a name stands for (`gym_data.kinds.Source`). Raises DataError where it stands for nothing."""
    source, format, samples = config.resolve()
    located = source.streamed() if config.streaming else source
    return located.build(format=format, samples=samples)
