"""What rows may name as an image, and what is refused: names, sizes and contents come from anywhere."""

from __future__ import annotations

import base64
import hashlib
import io
import os

import numpy as np
import pytest
from PIL import Image

from gym_core import DataError
from gym_data.rows import Named
from gym_vision import Vision, media_files
from gym_vision.image_files import opened
from gym_vision.media_files import hashed, located
from gym_vision.media_reader import ProcessorMedia


def encoded(width=8, height=6, kind="PNG", **options) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (width, height), (9, 90, 200)).save(content, kind, **options)
    return content.getvalue()


def test_paths_bytes_and_data_urls_name_the_same_image(tmp_path):
    (tmp_path / "a b ü.png").write_bytes(encoded())
    url = "data:image/png;base64," + base64.b64encode(encoded()).decode()
    names = ["a b ü.png", str(tmp_path / "a b ü.png"), f"file://{tmp_path / 'a b ü.png'}", {"path": "a b ü.png"}]
    names += [{"bytes": encoded(), "path": None}, encoded(), url]
    assert {hashed(located(name, tmp_path)) for name in names} == {hashlib.sha256(encoded()).hexdigest()}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none.png", "there is no image"),
        ("", "neither a path nor bytes"),
        ("a\0b", "neither a path nor bytes"),
        ({"bytes": b"", "path": None}, "no bytes"),
        ({}, "neither a path nor bytes"),
        (7, "neither a path nor bytes"),
        ("https://example.org/a.png", "fetch it first"),
        ("http://169.254.169.254/latest", "fetch it first"),
        ("data:image/png;base64,%%%", "not base64"),
        (".", "there is no image"),
    ],
)
def test_what_is_no_file_is_refused(name, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        located(name, tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not an image", encoded()[:40], b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>"],
    ids=["empty", "text", "cut", "eps", "svg"],
)
def test_what_is_no_image_is_refused(content):
    with pytest.raises(ValueError, match="the image x cannot be read"):
        opened(content, "x", 1, 10**6)


def test_a_small_file_that_holds_a_huge_image_is_refused_before_it_is_decoded():
    header = bytearray(encoded())
    header[16:24] = (60_000).to_bytes(4, "big") * 2  # width and height in the header of a PNG
    with pytest.raises(ValueError, match="cannot be read"):
        opened(bytes(header), "x", 1, 10**6)


def test_files_are_not_read_without_bound(tmp_path, monkeypatch):
    monkeypatch.setitem(media_files.BYTES, "image", 1 << 20)
    (tmp_path / "large").write_bytes(bytes(2 << 20))
    with pytest.raises(ValueError, match="2 MiB, more than 1"):
        hashed(tmp_path / "large")


@pytest.mark.parametrize(
    ("kind", "options"), [("JPEG", {}), ("PNG", {}), ("WEBP", {}), ("GIF", {}), ("BMP", {}), ("TIFF", {})]
)
def test_formats_are_read_in_colour(kind, options):
    image = opened(encoded(kind=kind, **options), "x", 1, 10**6)
    assert (image.mode, image.size) == ("RGB", (8, 6))


def test_an_image_is_turned_as_its_camera_says():
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    assert opened(encoded(8, 6, "JPEG", exif=exif), "x", 1, 10**6).size == (6, 8)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK"])
def test_images_of_other_modes_become_colour(mode):
    content = io.BytesIO()
    Image.new(mode, (5, 4)).save(content, "TIFF" if mode == "CMYK" else "PNG")
    assert opened(content.getvalue(), "x", 1, 10**6).mode == "RGB"


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_an_image_that_would_become_white_is_refused(mode):
    content = io.BytesIO()
    Image.new(mode, (5, 4), 300).save(content, "TIFF")
    with pytest.raises(ValueError, match="more than 8 bits a channel"):
        opened(content.getvalue(), "x", 1, 10**6)


@pytest.mark.parametrize(("size", "bounds"), [((300, 200), (1, 6000)), ((3, 2), (600, 6000)), ((30, 20), (1, 6000))])
def test_sizes_are_bounded_in_proportion(size, bounds):
    image = opened(encoded(*size), "x", *bounds)
    pixels = image.width * image.height
    assert 0.8 * bounds[0] <= pixels <= bounds[1]
    assert image.width / image.height == pytest.approx(1.5, rel=0.1)


def test_a_strip_is_refused():
    with pytest.raises(ValueError, match="one side is more than 200 times the other"):
        opened(encoded(1, 300), "x", 1, 10**6)


def test_bytes_are_kept_once_and_whole(tmp_path):
    first, second = (located({"bytes": encoded()}, tmp_path) for _ in range(2))
    assert first == second
    assert os.listdir(first.parent) == [first.name]


def test_an_image_that_changed_after_it_was_prepared_is_an_error(model, tmp_path):
    reader = ProcessorMedia(Vision(), model("llava"))
    (tmp_path / "a.png").write_bytes(encoded())
    image = reader.found(Named("image", "a.png"), tmp_path)
    (tmp_path / "a.png").write_bytes(encoded(9, 9))
    with pytest.raises(DataError, match="has changed since it was prepared"):
        reader.inputs([image], np.zeros(1, dtype=np.int32))


def test_bounds_of_pixels_must_leave_room():
    with pytest.raises(ValueError, match="more than max_pixels"):
        Vision(min_pixels=100, max_pixels=10)
