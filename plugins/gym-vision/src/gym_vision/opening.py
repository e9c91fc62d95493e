"""Media that were found, opened as processors are given them: images, frames with what is said of them, samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from transformers import ProcessorMixin
from transformers.video_utils import VideoMetadata

from gym_data.media import Medium
from gym_vision import Sound, Vision
from gym_vision import image_files as images
from gym_vision.media_files import decoded


def opened(one: Medium, config: Vision | Sound, processor: ProcessorMixin) -> Any:
    """Return a medium as a processor is given it. Raises ValueError where its file is not what it was, or cannot be read."""
    if "url" in one:
        return _image(BytesIO(decoded(one["url"])), "that was sent", config, processor, images.SENT)
    name = f"the {one['medium']} {one['path']}"
    try:
        with Path(one["path"]).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != one["sha256"]:
                raise ValueError(f"{name} has changed since it was prepared")
            file.seek(0)
            return _OPENED[one["medium"]](file, one["path"], config, processor)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error


def _image(file: BinaryIO, name: str, config: Any, processor: ProcessorMixin, largest: int = images.PIXELS) -> Any:
    return images.opened(file.read(), name, config.min_pixels, config.max_pixels, largest)


def _video(file: BinaryIO, name: str, config: Any, processor: ProcessorMixin) -> Any:
    """Return frames, and which they are."""
    from gym_vision.video_files import Wanted, frames_of  # the library that decodes them need not be installed

    wanted = Wanted(config.video_fps, config.video_max_frames, config.video_min_pixels, config.video_max_pixels)
    frames = frames_of(file, name, wanted)
    height, width = frames.pixels.shape[1:3]
    told = VideoMetadata(
        total_num_frames=frames.total,
        fps=frames.rate,
        width=width,
        height=height,
        duration=frames.total / frames.rate,
        frames_indices=frames.numbers,
    )
    return frames.pixels, told


def _sound(file: BinaryIO, name: str, config: Any, processor: ProcessorMixin) -> Any:
    """Return the samples of one channel, at the rate of the model."""
    from gym_vision.sound_files import samples_of

    heard = processor.feature_extractor
    return samples_of(file, name, heard.sampling_rate, heard.chunk_length)


_OPENED: dict[str, Callable[..., Any]] = {"image": _image, "video": _video, "audio": _sound}
