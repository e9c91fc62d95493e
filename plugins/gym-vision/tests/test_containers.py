"""What files of videos and sounds are read as, and what is refused: contents come from anywhere."""

from __future__ import annotations

import io
import struct
import wave
from fractions import Fraction

import av
import numpy as np
import pytest
from media_rows import sounding, written
from PIL import Image

from gym_vision import video_files
from gym_vision.media_files import located
from gym_vision.sound_files import samples_of
from gym_vision.video_files import Wanted, frames_of


def wanted_with(fps=2.0, most=128, min_pixels=16 * 16, max_pixels=256 * 256):
    return Wanted(fps, most, min_pixels, max_pixels)


WANTED = wanted_with()


def frames(content, wanted=WANTED):
    return frames_of(io.BytesIO(content), "x", wanted)


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (WANTED, [0, 4, 9, 13, 18, 23]),
        (wanted_with(most=2), [0, 23]),
        (wanted_with(fps=0.1), [0]),
        (wanted_with(fps=100.0), [*range(24)]),
    ],
)
def test_frames_are_drawn_evenly(wanted, numbers, videos):
    found = frames((videos / "moving.mp4").read_bytes(), wanted)
    assert (found.numbers, found.total, found.rate) == (numbers, 24, 8.0)
    with av.open(str(videos / "moving.mp4")) as container:
        every = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    np.testing.assert_array_equal(found.pixels, [every[number] for number in numbers])


@pytest.mark.parametrize(
    ("suffix", "codec"), [("mp4", "mpeg4"), ("avi", "mpeg4"), ("mkv", "mpeg4"), ("webm", "libvpx"), ("mov", "mpeg4")]
)
def test_containers_that_do_not_say_how_many_frames_they_hold_are_counted(suffix, codec, tmp_path):
    content = written(tmp_path / f"a.{suffix}", 16, 8, (32, 48), codec).read_bytes()
    found = frames(content)
    assert (found.total, found.numbers) == (16, [0, 5, 10, 15])
    assert found.rate == pytest.approx(8, rel=0.1)


def test_frames_that_a_cut_leaves_out_are_no_frames(tmp_path):
    whole = written(tmp_path / "whole.mp4", 32, 8, (32, 48))
    with av.open(str(whole)) as read, av.open(str(tmp_path / "cut.mp4"), "w") as cut:
        stream = cut.add_stream_from_template(read.streams.video[0])
        for packet in (each for each in read.demux(video=0) if each.dts is not None):
            late = int(1 / packet.time_base)  # one second, of which players show nothing
            packet.pts, packet.dts, packet.stream = packet.pts - late, packet.dts - late, stream
            cut.mux(packet)
    found = frames((tmp_path / "cut.mp4").read_bytes())
    assert (found.numbers, found.total, found.rate) == ([0, 4, 9, 13, 18, 23], 24, 8)


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_video_is_as_long_as_its_frames_and_not_as_its_sound(suffix, tmp_path):
    beside = sounding(tmp_path / "a.m4a", 6.0, codec="aac")
    silent = written(tmp_path / "a.mp4", 16, 8, (32, 48))
    path = tmp_path / f"both.{suffix}"
    with av.open(str(silent)) as video, av.open(str(beside)) as sound, av.open(str(path), "w") as both:
        streams = [(read, both.add_stream_from_template(read.streams[0])) for read in (video, sound)]
        for read, stream in streams:
            for packet in (each for each in read.demux() if each.dts is not None):
                packet.stream = stream
                both.mux(packet)
    found = frames(path.read_bytes())
    assert (found.numbers, found.total, found.rate) == ([0, 5, 10, 15], 16, pytest.approx(8, rel=1e-2))


@pytest.mark.parametrize(
    ("matrix", "turned"),
    [
        ((0, 1, -1, 0), lambda picture: np.rot90(picture, -1)),
        ((-1, 0, 0, -1), lambda picture: np.rot90(picture, 2)),
        ((0, -1, 1, 0), np.rot90),
        ((-1, 0, 0, 1), np.fliplr),
        ((1, 0, 0, -1), np.flipud),
        ((0, 0, 0, 0), lambda picture: picture),
    ],
    ids=["right", "over", "left", "mirrored", "upside down", "nothing"],
)
def test_frames_are_upright_as_their_camera_says(matrix, turned, videos):
    content = (videos / "moving.mp4").read_bytes()
    told = [
        struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
        for a, b, c, d in ((1, 0, 0, 1), matrix)
    ]
    at = content.index(told[0], content.index(b"tkhd"))
    found = frames(content[:at] + told[1] + content[at + len(told[1]) :])
    np.testing.assert_array_equal(found.pixels, [*map(turned, frames(content).pixels)])


@pytest.mark.parametrize(("bounds", "size"), [((1, 1536), (32, 48)), ((24576, 10**6), (128, 192))])
def test_sizes_of_frames_are_bounded_in_proportion(bounds, size, videos):
    wanted = wanted_with(min_pixels=bounds[0], max_pixels=bounds[1])
    assert frames((videos / "moving.mp4").read_bytes(), wanted).pixels.shape[1:3] == size


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no video",
        b"#EXTM3U\n#EXTINF:1,\nFILE\n",
        b"ffconcat version 1.0\nfile FILE\n",
        b'<?xml version="1.0"?><MPD><BaseURL>FILE</BaseURL></MPD>',
        b"RIFF" + bytes(400),
    ],
    ids=["empty", "text", "hls", "concat", "dash", "riff"],
)
def test_what_is_no_video_is_refused_and_opens_no_other_file(content, videos):
    for named in (videos / "moving.mp4", "http://127.0.0.1:9/a.mp4"):
        with pytest.raises(ValueError, match="the video x cannot be read"):
            frames(content.replace(b"FILE", str(named).encode()))


def test_a_video_that_is_cut_is_refused(tmp_path):
    for suffix in ("avi", "mp4"):
        content = written(tmp_path / f"a.{suffix}", 48, 8, (64, 96)).read_bytes()
        with pytest.raises(ValueError, match="cannot be read"):
            frames(content[: len(content) // 2])


def test_frames_that_are_too_large_are_refused(videos, monkeypatch):
    monkeypatch.setattr(video_files, "SENT", 1000)
    with pytest.raises(ValueError, match="96 x 64 pixels"):
        frames((videos / "moving.mp4").read_bytes())


def test_frames_larger_than_their_container_says_are_not_decoded(tmp_path, monkeypatch):
    picture = io.BytesIO()
    Image.new("L", (8192, 8192)).save(picture, "JPEG")
    with av.open(str(tmp_path / "a.avi"), "w") as container:
        stream = container.add_stream("mjpeg", rate=8)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuvj420p"
        packet = av.Packet(picture.getvalue())
        packet.stream, packet.pts, packet.dts, packet.time_base = stream, 0, 0, Fraction(1, 8)
        container.mux(packet)
    monkeypatch.setattr(video_files, "SENT", 2**40)
    with pytest.raises(ValueError, match="the video x cannot be read: it is damaged"):
        frames((tmp_path / "a.avi").read_bytes())


def test_a_sound_is_no_video_and_a_video_no_sound(tmp_path, videos):
    sound = sounding(tmp_path / "a.wav", 0.2).read_bytes()
    with pytest.raises(ValueError, match="it has no video"):
        frames(sound)
    with pytest.raises(ValueError, match="it has no audio"):
        samples_of((videos / "moving.mp4").open("rb"), "x", 16000, 30)


def test_of_a_long_video_no_more_frames_are_kept_than_are_shown(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(video_files, "resized", lambda image, *bounds: kept.append(image) or image)
    found = frames(written(tmp_path / "long.mp4", 600, 10, (32, 32)).read_bytes(), wanted_with(most=4))
    assert (found.numbers, found.total, len(kept)) == ([0, 199, 399, 599], 600, 4)


@pytest.mark.parametrize("name", ["https://example.org/a.mp4", "concat:a|b", "http://[::1]/a"])
def test_addresses_are_not_fetched(name, tmp_path):
    with pytest.raises(ValueError, match=r"fetch it first|there is no video"):
        located(name, tmp_path, "video")


@pytest.mark.parametrize(
    ("suffix", "codec"), [("wav", "pcm_s16le"), ("flac", "flac"), ("mp3", "libmp3lame"), ("m4a", "aac")]
)
@pytest.mark.parametrize("rate", [16000, 44100])
def test_sounds_are_heard_at_the_rate_of_the_model(suffix, codec, rate, tmp_path):
    path = sounding(tmp_path / f"a.{suffix}", 1.0, rate=rate, codec=codec)
    found = samples_of(path.open("rb"), "x", 16000, 30)
    assert found.dtype == np.float32 and found.shape == pytest.approx((16000,), abs=1600)
    spectrum = np.abs(np.fft.rfft(found[2000:14000]))
    assert np.argmax(spectrum) / 12000 * 16000 == pytest.approx(440, abs=2)
    assert np.abs(found[2000:14000]).max() == pytest.approx(0.25, rel=0.05)  # the mean of the tone and silence


@pytest.mark.parametrize("channels", [1, 6, 12])
def test_of_channels_the_mean_is_heard(channels, tmp_path):
    samples = np.random.default_rng(0).integers(-9999, 9999, (8000, channels), dtype=np.int16)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((channels, 2, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    found = samples_of((tmp_path / "a.wav").open("rb"), "x", 16000, 30)
    np.testing.assert_allclose(found, samples.mean(axis=1) / 2**15, rtol=0, atol=1e-6)


def test_sounds_that_a_model_would_not_hear_to_the_end_are_refused(tmp_path):
    path = sounding(tmp_path / "a.wav", 1.5)
    with pytest.raises(ValueError, match="more than the 1 seconds"):
        samples_of(path.open("rb"), "x", 16000, 1)


@pytest.mark.parametrize("content", [b"", b"no sound", b"RIFF" + bytes(60)])
def test_what_is_no_sound_is_refused(content):
    with pytest.raises(ValueError, match="the audio x cannot be read"):
        samples_of(io.BytesIO(content), "x", 16000, 30)
