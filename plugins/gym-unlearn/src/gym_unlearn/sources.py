"""Sources that say of all rows of another source whether they are to be forgotten. Import nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, SerializeAsAny, model_validator

from gym_core import Slot
from gym_data.kinds import Source


class Labelled(Source):
    """Base of both: the rows of a source, all with one label."""

    target: ClassVar[str] = "gym_unlearn.labelled_rows:LabelledRows"
    label: ClassVar[bool]

    source: Annotated[
        SerializeAsAny[Source], Slot("sources", default="named", bare="path"), Field(examples=["data/rows.jsonl"])
    ]
    """Where the rows come from: a file, a name in `dataset_info.json`, a Hub id, or a source with options, such as `read_as`."""

    @property
    def title(self) -> str:
        """Return that of the source."""
        return self.source.title

    def looked_up_in(self, directory: str | None) -> Self:
        """Return it around the source that is read there."""
        return self.model_copy(update={"source": self.source.looked_up_in(directory)})

    def streamed(self) -> Self:
        """Return it around the source that fetches rows as they are read."""
        return self.model_copy(update={"source": self.source.streamed()})

    def check(self) -> None:
        """Raise DataError where the source is not there."""
        self.source.check()

    @model_validator(mode="after")
    def _within(self) -> Self:
        if self.read_as is not None:
            raise ValueError("how rows are read is said of the source within: `source: {path: ..., read_as: ...}`")
        return self


class Forget(Labelled):
    """Rows that a model is to forget: conversations of another source, labelled false."""

    label: ClassVar[bool] = False


class Retain(Labelled):
    """Rows that a model is to keep: conversations of another source, labelled true."""

    label: ClassVar[bool] = True
