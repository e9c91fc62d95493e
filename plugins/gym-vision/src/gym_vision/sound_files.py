"""Sounds: decoded, made one channel, at the rate that a model hears."""

from __future__ import annotations

from itertools import chain
from typing import BinaryIO

import av
import numpy as np
import numpy.typing as npt

from gym_vision.containers import container_of

LEAST = 0.1  #: seconds; what is shorter takes a token or none, which Qwen2-Audio takes for one that is not laid out yet


def samples_of(file: BinaryIO, name: str, rate: int, most: float) -> npt.NDArray[np.float32]:
    """Return the samples of a sound, the mean of its channels, so many a second.

    Raises ValueError where the file is no sound, holds none, or one of more than `most` seconds.
    """
    with container_of(file, "audio", name) as container:
        found, count = list[npt.NDArray[np.float32]](), 0
        # channels beside each other, for of more than 8 in planes of their own PyAV reads beyond memory
        resampler = av.AudioResampler(format="flt", rate=rate)
        for frame in chain(container.decode(audio=0), [None]):
            for each in resampler.resample(frame):
                channels = each.to_ndarray().reshape(-1, each.layout.nb_channels)
                found.append(channels.mean(axis=1, dtype=np.float32))
                count += len(found[-1])
            if count > most * rate:
                raise ValueError(f"it has more than the {most:g} seconds that the model hears: cut it")
        if count < LEAST * rate:
            raise ValueError(f"it has {count / rate:g} seconds, and fewer than {LEAST:g} are no sound")
        whole = np.concatenate(found)
        if not np.isfinite(whole).all():
            raise ValueError("it holds numbers that are none")
        return whole
