"""How rows name their images, in a column or in the contents of messages, and which rows are refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from image_rows import ROWS

from gym_core import DataError, load_recipe
from gym_data import DatasetConfig, File
from gym_data.prepare import prepare
from gym_vision import Vision

ASKED, ANSWERED = (
    {"role": "user", "content": "Compare <image> and <image>."},
    {"role": "assistant", "content": "Alike."},
)
IMAGES = ["blue.jpg", "noise.png"]


def read(model, rows, several, shape="conversation", **options):
    """Prepare rows that lie beside the images."""
    file = rows.with_name("others.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in several))
    given = {"media": Vision(), **options}
    return prepare(DatasetConfig(sources=[File(path=str(file))], **given), model("llava"), shape)


def parts(*contents):
    return {"messages": [{"role": "user", "content": list(contents)}, ANSWERED]}


BLUE, NOISE = ({"type": "image", "image": name} for name in IMAGES)
PLACE = {"type": "image"}


def text(words):
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    "row",
    [
        parts(text("Compare "), BLUE, text(" and "), NOISE, text(".")) | {"images": []},
        parts(text("Compare "), PLACE, text(" and "), PLACE, text(".")) | {"images": IMAGES},
        parts(text("Compare "), BLUE, text(" and "), PLACE, text(".")) | {"images": IMAGES[1:]},
        parts(text("Compare <image> and "), {"type": "image_url", "image_url": {"url": IMAGES[1]}}, text("."))
        | {"images": IMAGES[:1]},
        {"instruction": ASKED["content"], "output": "Alike.", "images": IMAGES},
        {
            "conversations": [{"from": "human", "value": ASKED["content"]}, {"from": "gpt", "value": "Alike."}],
            "images": IMAGES,
        },
    ],
    ids=["in the parts", "by place", "some by place", "mark and url", "alpaca", "sharegpt"],
)
def test_images_in_any_of_the_usual_ways_are_the_same(row, model, rows):
    (expected,) = read(model, rows, [ROWS[1]]).train
    (found,) = read(model, rows, [row]).train
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert found.media == expected.media


@pytest.mark.parametrize("column", ["image", "images"])
@pytest.mark.parametrize("kept", [lambda content: {"bytes": content, "path": None}, lambda content: content])
@pytest.mark.parametrize("listed", [True, False])
def test_images_in_tables_are_those_of_files(column, kept, listed, model, rows, tmp_path):
    asked = {"messages": [{"role": "user", "content": "Which?"}, ANSWERED]}
    image = kept((rows.parent / IMAGES[0]).read_bytes())
    pq.write_table(pa.Table.from_pylist([asked | {column: [image] if listed else image}]), tmp_path / "rows.parquet")
    config = DatasetConfig(sources=[File(path=str(tmp_path / "rows.parquet"))], media=Vision())
    (found,) = prepare(config, model("llava"), "conversation").train
    (expected,) = read(model, rows, [asked | {"images": IMAGES[:1]}]).train
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert [each["sha256"] for each in found.media] == [each["sha256"] for each in expected.media]


def test_images_without_a_place_stand_before_the_first_message(model, rows):
    marked = {"messages": [{"role": "user", "content": "<image><image>Which?"}, ANSWERED], "images": IMAGES}
    bare = {"messages": [{"role": "user", "content": "Which?"}, ANSWERED], "images": IMAGES}
    (expected,), (found,) = read(model, rows, [marked]).train, read(model, rows, [bare]).train
    np.testing.assert_array_equal(found.tokens, expected.tokens)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"messages": [ASKED, ANSWERED], "images": IMAGES[:1]}, "1 images for 2 places"),
        ({"messages": [ASKED, ANSWERED], "images": [*IMAGES, *IMAGES]}, "4 images for 2 places"),
        (
            {"messages": [ASKED, {"role": "assistant", "content": "This: <image>"}], "images": IMAGES},
            "an answer holds images",
        ),
        ({"messages": [ASKED, ANSWERED], "images": ["blue.jpg", "gone.png"]}, "there is no image"),
        ({"messages": [ASKED, ANSWERED], "images": ["blue.jpg", "others.jsonl"]}, "cannot be read"),
        ({"messages": [ASKED, ANSWERED], "images": [1, 2]}, "holds no images"),
        ({"messages": [ASKED, ANSWERED]}, "0 images for 2 places, `<image>` in a message"),
        ({"messages": [ASKED, ANSWERED], "videos": ["a.mp4"]}, "videos of `llava` are not read"),
        (parts({"type": "input_audio", "input_audio": {}}), "more than text, images, videos and sounds"),
    ],
)
def test_rows_whose_images_do_not_fit_are_bad_rows(row, why, model, rows):
    with pytest.raises(DataError, match=why):
        read(model, rows, [row])
    counted = read(model, rows, [ROWS[1], row], bad_rows="skip").report
    assert sum(counted["sources"][0]["bad"].values()) == 1


def test_without_the_option_rows_with_images_are_bad_rows(model, rows):
    with pytest.raises(DataError, match=r"data: \{media: vision\}"):
        read(model, rows, [ROWS[1]], media=None)


def test_a_row_whose_image_is_beyond_the_cutoff_is_left_out(model, rows):
    cut = read(model, rows, ROWS, cutoff=40)
    assert [example.media for example in cut.train] == [[]]
    assert cut.report["sources"][0]["dropped"] == {"an image, a video or a sound beyond the cutoff": 2}


def test_the_cache_knows_the_bounds_of_sizes(model, rows):
    keys = {
        read(model, rows, ROWS, media=Vision(**options)).key
        for options in ({}, {"max_pixels": 2000}, {"min_pixels": 2000})
    }
    assert len(keys) == 3


def test_streamed_rows_have_the_same_images(model, rows):
    whole = read(model, rows, ROWS)
    streamed = read(model, rows, ROWS, streaming=True)
    for one, other in zip(whole.train, streamed.train, strict=True):
        assert one.media == other.media
        np.testing.assert_array_equal(one.tokens, other.tokens)


def test_files_of_llamafactory_read_images_that_their_registry_names(model, rows, tmp_path):
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    columns = {"messages": "messages", "images": "images"}
    entry = {"file_name": rows.name, "formatting": "sharegpt", "columns": columns, "tags": tags}
    rows.with_name("dataset_info.json").write_text(json.dumps({"pictures": entry}))
    path = model("qwen2_5_vl")
    file = {
        "model_name_or_path": str(path),
        "dataset": "pictures",
        "dataset_dir": str(rows.parent),
        "template": "qwen2_vl",
        "image_max_pixels": 5000,
        "freeze_vision_tower": False,
        "output_dir": str(tmp_path / "out"),
    }
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(file))
    recipe = load_recipe(tmp_path / "file.yaml")
    assert recipe.adapter.parts() == ("language_model", "vision_tower")
    data = recipe.data
    assert data.media == Vision(folder=str(rows.parent), max_pixels=5000)
    theirs = data.build(tokenizer=path, rows="conversation", seed=0).train
    own = DatasetConfig(sources=[File(path=str(rows))], media=data.media, system="You are a helpful assistant.")
    for one, other in zip(theirs, prepare(own, path).train, strict=True):  # this model's own template writes the same
        np.testing.assert_array_equal(one.tokens, other.tokens)
        assert one.media == other.media


def test_rows_of_the_second_version_of_llamafactory_name_images_in_their_parts(model, rows, tmp_path):
    """Their files say nothing of images, so `media` does."""

    def second(row):
        """Yield the messages of a row as the second version has them."""
        images = iter(row["images"])
        for message in row["messages"]:
            texts = message["content"].split("<image>")
            told = [[{"type": "text", "value": text}] for text in texts]
            told[1:] = [[{"type": "image_url", "value": next(images)}, *text] for text in told[1:]]
            yield {"role": message["role"], "content": [part for each in told for part in each]}

    file = rows.with_name("second.jsonl")
    file.write_text("".join(json.dumps({"messages": list(second(row))}) + "\n" for row in ROWS))
    (tmp_path / "data.yaml").write_text(yaml.safe_dump({"it": {"path": str(file), "source": "local"}}))
    path = model("llava")
    keys = {"model": str(path), "model_class": "llm", "train_dataset": str(tmp_path / "data.yaml")}
    data = load_recipe(keys | {"output_dir": str(tmp_path / "out"), "media": "vision"}).data
    theirs = data.build(tokenizer=path, rows="conversation", seed=0).train
    for one, other in zip(theirs, read(model, rows, ROWS).train, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        assert one.media == other.media
