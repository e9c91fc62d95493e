"""Containers of videos and sounds, opened by PyAV. They come from anywhere: none makes it open another file or an address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Literal

import av
from av.container import InputContainer

from gym_vision.image_files import SENT
from gym_vision.media_files import first_line

#: Formats as FFmpeg names them. Others name further files: lists of parts, such as HLS, and what names its frames.
FORMATS = "mov,mp4,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,wav,w64,aiff,au,mp3,flac,aac,caf,amr"
OPTIONS = {"format_whitelist": FORMATS, "protocol_whitelist": "none"}
DECODERS = {"max_pixels": str(SENT)}  #: of a frame, which else is in memory before anyone sees how large it is


@contextmanager
def container_of(file: BinaryIO, medium: Literal["video", "audio"], name: str) -> Iterator[InputContainer]:
    """Open a container with a stream of this medium.

    Raises ValueError where there is none, and for what its decoders raise while it is open.
    """
    try:
        container = av.open(file, "r", options=DECODERS, container_options=OPTIONS, metadata_errors="replace")
    except (ValueError, OSError, EOFError, av.FFmpegError) as error:
        raise ValueError(f"the {medium} {name} cannot be read: it is none that is known, or damaged") from error
    try:
        with container:
            if not (container.streams.video if medium == "video" else container.streams.audio):
                raise ValueError(f"it has no {medium}")
            for stream in container.streams.video:
                stream.codec_context.options = {**DECODERS}
            yield container
    except (ValueError, OSError, EOFError, MemoryError, av.FFmpegError) as error:
        damaged = "it is damaged" if isinstance(error, av.FFmpegError) else first_line(error)
        raise ValueError(f"the {medium} {name} cannot be read: {damaged}") from error
