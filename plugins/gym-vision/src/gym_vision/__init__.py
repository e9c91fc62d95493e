"""Images in conversations, for models that read images and text. This module imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt, model_validator

from gym_data.kinds import Images

__all__ = ["Vision"]


class Vision(Images):
    """Reads images as the processor of the model in transformers does: JPEG, PNG, WebP, GIF, BMP and TIFF, from local files."""

    target: ClassVar[str] = "gym_vision.image_reader:ProcessorImages"

    folder: str | None = None
    """Folder in which relative paths of images begin; without it, the folder of the file that names them
    (`media_dir` in LLaMA-Factory)."""
    max_pixels: PositiveInt = 768 * 768
    """Most pixels of an image; a larger one is made smaller before the processor of the model sees it
    (`image_max_pixels` in LLaMA-Factory)."""
    min_pixels: PositiveInt = 32 * 32
    """Fewest pixels of an image; a smaller one is made larger (`image_min_pixels` in LLaMA-Factory)."""

    @model_validator(mode="after")
    def _some_between(self) -> Vision:
        if self.min_pixels > self.max_pixels:
            raise ValueError("min_pixels is more than max_pixels")
        return self
