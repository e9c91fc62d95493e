"""Videos: frames are drawn evenly while the file is decoded, so that never more of them are in memory than a model is shown."""

from __future__ import annotations

import math
from typing import BinaryIO, NamedTuple

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.sidedata.sidedata import SideData
from PIL import Image

from gym_vision.containers import container_of
from gym_vision.image_files import SENT, SIDES, resized

LOST = 0.02  #: of its frames that a file may lack of what it says, as those do that were cut at no whole frame


class Frames(NamedTuple):
    """What is shown of a video."""

    pixels: npt.NDArray[np.uint8]  #: [frames, height, width, 3], RGB
    numbers: list[int]  #: of these frames in the video, from 0
    total: int  #: frames of the video
    rate: float  #: of them a second


class Wanted(NamedTuple):
    """Which frames are shown, and how large they are."""

    fps: float  #: frames shown for each second
    most: int
    min_pixels: int
    max_pixels: int


def frames_of(file: BinaryIO, name: str, wanted: Wanted) -> Frames:
    """Return frames of a video, upright as its camera says.

    Raises ValueError where the file is no video, holds none or frames that are too large, or ends before it says it does.
    """
    with container_of(file, "video", name) as container:
        _bounded(container.streams.video[0])
        count, rate = _told(container)
        drawn = _drawn(count, rate, wanted)
        found, decoded = _decoded(container, drawn, wanted)
        if len(found) < len(drawn):  # it was counted by what the container says, and decoders make less of some
            if count - decoded > 1 + LOST * count:
                raise ValueError(f"it ends after {decoded} of {count} frames")
            rate, count = rate * decoded / count, decoded
            found, _ = _decoded(container, _drawn(count, rate, wanted), wanted)
        if len({frame.size for frame in found.values()}) > 1:
            raise ValueError("its frames change their size")
        numbers = sorted(found)
        return Frames(np.stack([np.asarray(found[number]) for number in numbers]), numbers, count, rate)


def _told(container: InputContainer) -> tuple[int, float]:
    """Return how many frames a video has and how many a second, by its packets.

    What containers say counts frames that they tell players to leave out, and may be the time of another of their streams.
    """
    stream = container.streams.video[0]
    count, left_out, times, ends = 0, 0, (math.inf, -math.inf), -math.inf
    for packet in container.demux(stream):
        shown = packet.size > 0 and not packet.is_discard
        count, left_out = count + shown, left_out + packet.is_discard
        time = packet.dts if packet.pts is None else packet.pts
        if shown and time is not None:
            times, ends = (min(times[0], time), max(times[1], time)), max(ends, time + (packet.duration or 0))
    container.seek(0)
    frames = stream.frames - left_out if stream.frames else count
    if min(frames, count) < 1:
        raise ValueError("it has no frames")
    if ends == times[1]:  # no packet says how long it is shown
        ends += (ends - times[0]) / max(1, count - 1)
    span = (ends - times[0]) * float(stream.time_base or 0)
    seconds = span if span > 0 else (container.duration or 0) / av.time_base
    rate = count / seconds if seconds > 0 else float(stream.average_rate or 0)
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError("it does not say how long it is")
    return frames, rate


def _bounded(one: av.VideoStream | av.VideoFrame) -> None:
    """Raise ValueError where frames are too large, or too narrow."""
    if one.width * one.height > SENT:
        raise ValueError(f"it has {one.width} x {one.height} pixels, more than {SENT >> 20} Mi")
    if max(one.width, one.height) > SIDES * min(one.width, one.height):
        raise ValueError(f"it has {one.width} x {one.height} pixels: one side is more than {SIDES} times the other")


def _drawn(count: int, rate: float, wanted: Wanted) -> set[int]:
    """Return the numbers of the frames that are shown, the first and the last among them where there are two."""
    number = min(count, wanted.most, max(1, math.floor(count / rate * wanted.fps)))
    return set(np.linspace(0, count - 1, number).astype(np.int64).tolist())


def _decoded(container: InputContainer, drawn: set[int], wanted: Wanted) -> tuple[dict[int, Image.Image], int]:
    """Return the frames drawn by their numbers, and how many were decoded: all, where the last of these does not come."""
    container.seek(0)
    found, number = dict[int, Image.Image](), 0
    for number, frame in enumerate(container.decode(video=0), 1):
        _bounded(frame)
        if number - 1 in drawn:
            image = Image.fromarray(frame.to_ndarray(format="rgb24"))
            found[number - 1] = resized(_upright(image, frame), wanted.min_pixels, wanted.max_pixels)
        if number > max(drawn):
            break
    if not number:
        raise ValueError("it has no frames")
    return found, number


def _upright(image: Image.Image, frame: av.VideoFrame) -> Image.Image:
    """Return a frame turned by quarters, and mirrored, as its camera says."""
    said = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(said, SideData):
        return image
    # x is shown at a x + c y, and y at b x + d y
    (a, b, _), (c, d, _), _ = np.frombuffer(bytes(said), np.int32).reshape(3, 3).tolist()
    if abs(b) + abs(c) > abs(a) + abs(d):
        image, a, d = image.transpose(Image.Transpose.TRANSPOSE), c, b
    for sign, mirrored in ((a, Image.Transpose.FLIP_LEFT_RIGHT), (d, Image.Transpose.FLIP_TOP_BOTTOM)):
        image = image.transpose(mirrored) if sign < 0 else image
    return image
