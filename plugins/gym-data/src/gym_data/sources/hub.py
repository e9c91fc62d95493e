"""Rows of a dataset of the Hugging Face Hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gym_core import DataError
from gym_data.kinds import Format
from gym_data.sources.arrow_values import as_written

if TYPE_CHECKING:
    from gym_data.sources.config import Hub

BATCH = 1000  #: rows hashed at a time


class HubRows:
    """The rows of one split."""

    def __init__(self, config: Hub, format: Format | None = None, samples: int | None = None) -> None:
        """Download what is not there yet, unless rows are streamed; `format` and `samples` are what a registry says.

        Raises DataError when that fails.
        """
        self.format, self.samples = format, samples
        import datasets  # it takes a second to import, and local files do not need it

        try:
            self._dataset = datasets.load_dataset(
                config.path,
                name=config.subset,
                split=config.split,
                data_dir=config.folder,
                data_files=list(config.files) or None,
                revision=config.revision,
                streaming=config.streaming,
            )
        except (
            Exception
        ) as error:  # the libraries below raise errors of their own kinds for network, id, split and format
            reason = (str(error).strip().splitlines() or ["no message"])[0][:160]
            raise DataError(
                f"the Hub dataset cannot be loaded: {type(error).__name__}: {reason}",
                where=f"{config.path} ({config.split})",
                fix="check the id, the split and the network; a local copy can be named by its path",
            ) from error

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as plain Python values."""
        for row in self._dataset:
            yield {name: as_written(value) for name, value in row.items()}

    def fingerprint(self) -> str:
        """Return the SHA-256 of the rows' Arrow batches."""
        digest = hashlib.sha256(str(self._dataset.features).encode())
        for batch in self._dataset.with_format("arrow").iter(batch_size=BATCH):
            for chunk in batch.combine_chunks().to_batches():
                digest.update(chunk.serialize())
        return digest.hexdigest()
