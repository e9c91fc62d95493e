"""The rows of a source, each with whether it is to be kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from gym_core.loading import load_component
from gym_data.formats import Feedback
from gym_data.kinds import Format
from gym_data.opened_source import registered
from gym_unlearn.sources import Labelled

LABEL = "retain"  #: column of the label, in place of one that the rows may have


class LabelledRows:
    """Rows with a column that says whether they are to be kept, read as judged conversations."""

    def __init__(self, config: Labelled, **context: Any) -> None:
        """Open the source within. Raises what opening it raises."""
        self.config, source = config, config.source
        self.within = source.build()
        told = registered(self.within)
        found = source.read_as or (told.format if told else None)
        if found is None and source.format:
            found = cast(Format, load_component("formats", source.format)[1]())
        self.format: Format | None = Feedback(conversation=found, label=LABEL)
        self.samples = source.samples or (told.samples if told else None)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows with their label."""
        for row in self.within.rows():
            yield {**row, LABEL: self.config.label}

    def fingerprint(self) -> str:
        """Return what names the rows and their label."""
        return f"{self.within.fingerprint()} {self.config.label}"
