"""Rows with videos or sounds, and files of these."""

from __future__ import annotations

import av
import numpy as np

ROWS = [
    {
        "messages": [
            {"role": "user", "content": "<video>What moves?"},
            {"role": "assistant", "content": "A square."},
            {"role": "user", "content": "And here: <video>?"},
            {"role": "assistant", "content": "None."},
        ],
        "videos": ["moving.mp4", "short.avi"],
    },
    {
        "messages": [{"role": "user", "content": "Look: <video>"}, {"role": "assistant", "content": "Short."}],
        "videos": ["short.avi"],
    },
]


def written(path, frames, rate, size, codec="mpeg4", **options):
    """Write a video of noise in which a square moves."""
    height, width = size
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            picture = noise.copy()
            picture[:16, number % width : number % width + 16] = 10 * number % 256
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def sounding(path, seconds, rate=8000, channels=2, codec="pcm_s16le"):
    """Write a sound: a tone of 440 Hz to the left, silence in other channels."""
    time = np.arange(int(seconds * rate)) / rate
    left = (0.5 * np.sin(2 * np.pi * 440 * time) * 32767).astype(np.int16)
    samples = np.zeros((len(left), channels), dtype=np.int16)
    samples[:, 0] = left
    layout = "stereo" if channels == 2 else "mono"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        resampler = av.AudioResampler(format=stream.format, layout=layout, rate=rate, frame_size=1024)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout=layout)
        frame.sample_rate = rate
        for each in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(each))
        container.mux(stream.encode())
    return path
