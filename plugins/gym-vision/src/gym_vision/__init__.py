"""Images, videos and sounds in conversations, for models that take them beside text. This module imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt, model_validator

from gym_data.kinds import Media

__all__ = ["Sound", "Vision"]


class Vision(Media):
    """Reads images and videos as the processor of the model in transformers does, from local files."""

    target: ClassVar[str] = "gym_vision.media_reader:ProcessorMedia"
    reads: ClassVar[tuple[str, ...]] = ("image", "video")

    folder: str | None = None
    """Folder in which relative paths of images and videos begin; without it, the folder of the file that names them
    (`media_dir` in LLaMA-Factory)."""
    max_pixels: PositiveInt = 768 * 768
    """Most pixels of an image; a larger one is made smaller before the processor of the model sees it
    (`image_max_pixels` in LLaMA-Factory)."""
    min_pixels: PositiveInt = 32 * 32
    """Fewest pixels of an image; a smaller one is made larger (`image_min_pixels` in LLaMA-Factory)."""
    video_fps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    """Frames of a video that are shown for each of its seconds, evenly spread."""
    video_max_frames: PositiveInt = 128
    """Most frames of a video that are shown, then fewer for each second (`video_maxlen` in LLaMA-Factory)."""
    video_max_pixels: PositiveInt = 256 * 256
    """Most pixels of a frame; a larger one is made smaller before the processor of the model sees it."""
    video_min_pixels: PositiveInt = 16 * 16
    """Fewest pixels of a frame; a smaller one is made larger."""

    @model_validator(mode="after")
    def _some_between(self) -> Vision:
        if self.min_pixels > self.max_pixels:
            raise ValueError("min_pixels is more than max_pixels")
        if self.video_min_pixels > self.video_max_pixels:
            raise ValueError("video_min_pixels is more than video_max_pixels")
        return self


class Sound(Media):
    """Reads sounds as the processor of the model in transformers does, from local files: WAV, MP3, FLAC, Ogg, M4A."""

    target: ClassVar[str] = "gym_vision.media_reader:ProcessorMedia"
    reads: ClassVar[tuple[str, ...]] = ("audio",)

    folder: str | None = None
    """Folder in which relative paths of sounds begin; without it, the folder of the file that names them (`media_dir` in
    LLaMA-Factory)."""
