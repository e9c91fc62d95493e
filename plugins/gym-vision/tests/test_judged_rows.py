"""Images of pairs, labelled answers, judged steps and prompts: how rows have them, and which are refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from asked_images import reference
from judged_rows import ASK, BAD, GOOD, IMAGES, LEARNT, PAIRS, SIDES, asked, conversation, said, url

from gym_core import DataError, load_recipe
from gym_data import DatasetConfig, File
from gym_data.formats import Feedback, Messages
from gym_data.prepare import prepare
from gym_data.preview import tokenised
from gym_data.prompts import prompts
from gym_vision import Vision

GUESS = {"name": "python", "environment": "gym_rl.environments.guess_number:GuessNumber"}


def read(model, rows, several, shape, **options):
    file = rows.with_name("judged.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in several))
    config = DatasetConfig(sources=[File(path=str(file))], **{"media": Vision(), **options})
    return prepare(config, model("llava"), shape)


@pytest.mark.parametrize("row", PAIRS.values(), ids=PAIRS)
def test_pairs_in_any_of_the_usual_ways_are_what_the_processor_makes_of_both_sides(row, model, rows):
    (pair,) = read(model, rows, [row], "preference").train
    middle = pair.shared + pair.chosen
    for answer, rest in ((GOOD, pair.tokens[pair.shared : middle]), (BAD, pair.tokens[middle:])):
        expected = reference(model("llava"), rows, conversation(IMAGES[0], answer))
        tokens = np.concatenate([pair.tokens[: pair.shared], rest])
        np.testing.assert_array_equal(tokens, expected["input_ids"][0])
        np.testing.assert_array_equal(pair.model_inputs(tokens)["pixel_values"], expected["pixel_values"])


@pytest.mark.parametrize("shape", LEARNT)
def test_each_shape_knows_its_images(shape, model, rows):
    found = read(model, rows, LEARNT[shape], shape)
    assert [each.media[0]["path"].rpartition("/")[2] for each in found.train] == list(IMAGES)
    assert len({each.inputs_key for each in found.train}) == len(IMAGES)
    assert all(each.model_inputs()["pixel_values"].shape[0] == 1 for each in found.train)


@pytest.mark.parametrize(
    ("shape", "row", "why"),
    [
        ("text", {"text": "Words.", "images": [IMAGES[0]]}, "not read here"),
        ("preference", {"prompt": ASK, "chosen": "<image>", "rejected": BAD, "images": [IMAGES[0]]}, "only text is answered"),
        ("preference", {"prompt": asked(), "chosen": [{"role": "assistant", "content": [url(IMAGES[1])]}], "rejected": said(BAD)},
         "only text is answered"),
        ("preference", {"chosen": asked(url(IMAGES[0])) + said(GOOD), "rejected": asked(url(IMAGES[1])) + said(BAD)},
         "different media"),
        ("preference", {"prompt": asked({"type": "image"}), **SIDES, "images": list(IMAGES)}, "3 images for 1 places"),
        ("prompt", {"prompt": ASK, "images": ["gone.png"]}, "there is no image"),
        ("feedback", {"prompt": ASK, "completion": GOOD, "label": True, "images": ["judged.jsonl"]}, "cannot be read"),
        ("stepwise", LEARNT["stepwise"][0] | {"images": ["gone.png"]}, "there is no image"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_bad_rows(shape, row, why, model, rows):
    with pytest.raises(DataError, match=why) as found:
        read(model, rows, [row], shape)
    assert len(str(found.value).splitlines()) <= 4
    if shape != "text":
        counted = read(model, rows, [*LEARNT[shape], row], shape, bad_rows="skip").report
        assert sum(counted["sources"][0]["bad"].values()) == 1


@pytest.mark.parametrize("images", [[IMAGES[0]], []])
def test_a_text_that_spells_out_a_part_of_an_image_is_a_bad_row(images, model, rows):
    """Its token would stand for a part of an image that is not there, which ends the run when the row is drawn."""
    row = {**PAIRS["trl, no place"], "rejected": said("a <image_soft_token>"), "images": images}
    file = rows.with_name("judged.jsonl")
    file.write_text(json.dumps(row))
    config = DatasetConfig(sources=[File(path=str(file))], media=Vision(), split_special_tokens=False)
    with pytest.raises(DataError, match="spells out `<image_soft_token>`"):
        prepare(config, model("gemma3"), "preference")
    (pair,) = prepare(config.model_copy(update={"split_special_tokens": True}), model("gemma3"), "preference").train
    assert len(pair.media) == len(images)


@pytest.mark.parametrize("shape", LEARNT)
def test_without_the_option_rows_with_images_are_bad_rows(shape, model, rows):
    with pytest.raises(DataError, match=r"data: \{media: vision\}"):
        read(model, rows, LEARNT[shape], shape, media=None)


@pytest.mark.parametrize("shape", ["preference", "feedback", "stepwise"])
def test_a_row_whose_image_is_beyond_the_cutoff_is_left_out(shape, model, rows):
    words = {
        **LEARNT[shape][0],
        "images": [],
        "prompt": "?" if shape == "stepwise" else [{"role": "user", "content": "?"}],
    }
    cut = read(model, rows, [*LEARNT[shape], words], shape, cutoff=16)
    assert [each.media for each in cut.train] == [[]]
    assert cut.report["sources"][0]["dropped"] == {"an image, a video or a sound beyond the cutoff": len(IMAGES)}


def test_a_row_that_goes_to_rewards_names_the_files_of_images_in_bytes(model, rows, tmp_path):
    image = {"bytes": (rows.parent / IMAGES[0]).read_bytes(), "path": None}
    pq.write_table(
        pa.Table.from_pylist([{"prompt": ASK, "images": [image], "answer": GOOD}]), tmp_path / "rows.parquet"
    )
    config = DatasetConfig(sources=[File(path=str(tmp_path / "rows.parquet"))], media=Vision())
    (prompt,) = prepare(config, model("llava"), "prompt").train
    assert prompt.row["images"] == [prompt.media[0]["path"]]
    assert prompt.row["answer"] == GOOD


@pytest.mark.parametrize("column", ["images", "image", "pictures"])
def test_a_row_that_goes_to_rewards_names_whole_paths_of_images(column, model, rows):
    """A reward runs elsewhere than the file of the row lies; a text that is named like an image stays what it is."""
    listed, (name, *_) = column != "image", IMAGES
    row = {
        "prompt": asked({"type": "image"}),
        column: [name] if listed else name,
        "answer": name,
        "seen": [name, "nothing"],
    }
    (prompt,) = read(model, rows, [row], "prompt", format=Messages(messages="prompt", images=column)).train
    whole = str(rows.parent / name)
    assert prompt.row[column] == ([whole] if listed else whole)
    assert (prompt.row["answer"], prompt.row["seen"]) == (name, [name, "nothing"])
    (told,) = read(
        model, rows, [{"messages": [{"role": "user", "content": [url(name)]}], "answer": name}], "prompt"
    ).train
    assert told.row["messages"][0]["content"][0]["image_url"]["url"] == whole


def test_what_is_asked_of_a_server_has_no_images(rows):
    with pytest.raises(DataError, match="is text"):
        prompts(DatasetConfig(sources=[File(path=str(rows))], media=Vision()), 0)


@pytest.mark.parametrize("shape", LEARNT)
def test_a_preview_shows_the_tokens_of_images(shape, model, rows):
    file = rows.with_name("judged.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in LEARNT[shape]))
    config = DatasetConfig(sources=[File(path=str(file))], media=Vision())
    shown = tokenised(config, model("llava"), shape, 0, 1)["examples"][0]
    assert "<image> x16" in shown["runs"][0]["text"]


def test_streamed_pairs_have_the_same_images(model, rows):
    whole = read(model, rows, LEARNT["preference"], "preference")
    streamed = read(model, rows, LEARNT["preference"], "preference", streaming=True)
    for one, other in zip(whole.train, streamed.train, strict=True):
        assert one.media == other.media
        np.testing.assert_array_equal(one.tokens, other.tokens)


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        ({"rollouts": "vllm"}, "this engine takes text alone"),
        (
            {"environment": {"name": "python", "environment": "gym_rl.environments.guess_number:GuessNumber"}},
            "goes on with text alone",
        ),
        ({"routing_replay": True}, "experts are recorded of text alone"),
    ],
)
def test_what_is_not_done_of_prompts_with_images_is_refused_before_anything_is_loaded(algorithm, why, rows):
    recipe = {
        "model": "tiny",
        "data": {"sources": [str(rows)], "media": "vision"},
        "algorithm": {"name": "grpo", "rewards": [{"name": "length", "maximum": 2, "slack": 14}], **algorithm},
    }
    with pytest.raises(Exception, match=why) as found:
        load_recipe(recipe).check()
    assert len(str(found.value).splitlines()) <= 4


LLAMAFACTORY = {
    "dpo": (
        "preference",
        {"ranking": True, "columns": {"chosen": "chosen", "rejected": "rejected"}},
        PAIRS["llamafactory"],
    ),
    "kto": (
        "feedback",
        {"columns": {"kto_tag": "tag"}},
        {
            "conversations": [{"from": "human", "value": "<image>" + ASK}, {"from": "gpt", "value": GOOD}],
            "tag": True,
            "images": [IMAGES[0]],
        },
    ),
}


@pytest.mark.parametrize("stage", LLAMAFACTORY)
def test_files_of_llamafactory_read_images_of_judged_rows(stage, model, rows, tmp_path):
    shape, entry, row = LLAMAFACTORY[stage]
    columns = {"messages": "conversations", "images": "images", **entry["columns"]}
    told = {"file_name": "theirs.json", "formatting": "sharegpt", **entry, "columns": columns}
    rows.with_name("theirs.json").write_text(json.dumps([row]))
    rows.with_name("dataset_info.json").write_text(json.dumps({"judged": told}))
    path = model("qwen2_5_vl")
    file = {
        "model_name_or_path": str(path),
        "stage": stage,
        "dataset": "judged",
        "dataset_dir": str(rows.parent),
        "template": "qwen2_vl",
        "output_dir": str(tmp_path / "out"),
    }
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(file))
    data = load_recipe(tmp_path / "file.yaml").data
    (theirs,) = data.build(tokenizer=path, rows=shape, seed=0).train
    own = {"media": data.media, "system": "You are a helpful assistant."}
    format = Feedback(label="tag") if stage == "kto" else None
    config = DatasetConfig(sources=[File(path=str(rows.with_name("theirs.json")))], format=format, **own)
    (found,) = prepare(config, path, shape).train
    np.testing.assert_array_equal(theirs.tokens, found.tokens)  # the model's own template writes the same
    assert theirs.media == found.media != ()
    with pytest.raises(DataError, match="an image, a video or a sound beyond the cutoff"):
        prepare(data.model_copy(update={"cutoff": 12}), path, shape)
