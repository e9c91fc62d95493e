"""Training on videos is what transformers computes of the same frames, with the whole processor of the model."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from media_rows import ROWS
from torch.nn import functional
from transformers import AutoModelForImageTextToText, AutoProcessor

from gym_core import DataError, execute, load_recipe
from gym_data import DatasetConfig, File
from gym_data.prepare import prepare
from gym_data.rows import Named
from gym_sft import SFT
from gym_sft.objective import NextToken
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.packing import ALONE
from gym_torch.policy import Policy
from gym_vision import Vision
from gym_vision.media_reader import ProcessorMedia

pytestmark = pytest.mark.skipif(find_spec("torchvision") is None, reason="videos are resized by torchvision")
FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_next_video"]
EVERY = pytest.mark.parametrize("family", FAMILIES)
ALIKE = [{**ROWS[0], "videos": ["moving.mp4", "moving.mp4"]}, ROWS[1]]  # of as many frames, which that family asks for
READ = Vision(video_max_pixels=3000, video_fps=3)
MIXED = {
    "messages": [
        {"role": "user", "content": "<video> or <image>?"},
        {"role": "assistant", "content": "Both."},
    ],
    "images": ["still.png"],
    "videos": ["short.avi"],
}


def prepared(path, folder, rows=ROWS, shape="conversation", **options):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return prepare(DatasetConfig(sources=[File(path=str(file))], media=READ, **options), path, shape)


def reference(path, folder, row):
    """Return what transformers makes of a row whose videos are these frames."""
    reader = ProcessorMedia(READ, path)
    opened = [reader.opened(reader.found(Named("video", name), folder)) for name in row["videos"]]
    messages = []
    for message in row["messages"]:
        first, *others = message["content"].split("<video>")
        parts = [{"type": "text", "text": first}] if first else []
        for text in others:
            parts += [{"type": "video"}, *([{"type": "text", "text": text}] if text else [])]
        messages.append({"role": message["role"], "content": parts})
    processor = AutoProcessor.from_pretrained(path)
    text = processor.apply_chat_template(messages, chat_template=reader.processor.tokenizer.chat_template)
    return processor(
        text=[text],
        videos=[pixels for pixels, _ in opened],
        video_metadata=[told for _, told in opened],
        do_sample_frames=False,
        add_special_tokens=False,
        return_tensors="pt",
    )


@EVERY
def test_tokens_inputs_loss_and_gradient_are_those_of_transformers(family, model, videos):
    path, rows = model(family), ALIKE if family == "llava_next_video" else ROWS
    found = prepared(path, videos, rows).train
    assert len(found) == len(rows)
    policy = Policy(AutoLanguageModel.from_pretrained(path, dtype=torch.float32))
    exact = AutoModelForImageTextToText.from_pretrained(path).double().train()
    loss, _ = NextToken(SFT(), ALONE).loss(policy, NextToken(SFT(), ALONE).collate(list(found)))
    loss.backward()
    total = torch.zeros((), dtype=torch.float64)
    for example, row in zip(found, rows, strict=True):
        given = reference(path, videos, row)
        np.testing.assert_array_equal(example.tokens, given["input_ids"][0])
        own = example.model_inputs()
        assert own.keys() == given.keys() - {"input_ids", "attention_mask"}
        for name, value in own.items():
            torch.testing.assert_close(torch.from_numpy(value), torch.as_tensor(given[name]), rtol=0, atol=0)
        given = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
        labels = torch.where(torch.from_numpy(example.trained.copy()), given["input_ids"], -100)
        logits = exact(**given, use_cache=False).logits
        total = total + functional.cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum")
    total.backward()
    torch.testing.assert_close(loss.double(), total, rtol=1e-5, atol=0)
    weights = dict(exact.named_parameters())
    compared = 0
    for name, weight in policy.model.named_parameters():
        if weight.grad is not None and weights[name].grad is not None:
            compared += 1
            off = (weight.grad.double() - weights[name].grad).norm()
            assert off <= 1e-4 * weights[name].grad.norm() + 1e-6, name
    assert compared > 10


@EVERY
def test_a_conversation_may_have_images_and_videos(family, model, videos, rows):
    (videos / "still.png").write_bytes((rows.parent / "red.png").read_bytes())
    path = model(family)
    (found,) = prepared(path, videos, [MIXED]).train
    assert sorted(each["medium"] for each in found.media) == ["image", "video"]
    policy = Policy(AutoLanguageModel.from_pretrained(path, dtype=torch.float32))
    loss, _ = NextToken(SFT(), ALONE).loss(policy, NextToken(SFT(), ALONE).collate([found]))
    given = {name: torch.from_numpy(value) for name, value in found.model_inputs().items()}
    assert {"pixel_values", "pixel_values_videos"} <= given.keys()
    ids = torch.from_numpy(found.tokens.astype(np.int64))[None]
    logits = AutoModelForImageTextToText.from_pretrained(path).train()(input_ids=ids, **given, use_cache=False).logits
    labels = torch.where(torch.from_numpy(found.trained.copy()), ids, -100)
    expected = functional.cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=-100, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)


def test_rows_whose_videos_do_not_fit_are_bad_rows(model, videos):
    path = model("qwen2_vl")
    for row, why in (
        ({**ROWS[1], "videos": []}, "0 videos for 1 places"),
        ({**ROWS[1], "videos": ["short.avi", "moving.mp4"]}, "2 videos for 1 places"),
        ({**ROWS[1], "videos": ["gone.mp4"]}, "there is no video"),
        ({**ROWS[1], "videos": ["https://example.org/a.mp4"]}, "fetch it first"),
        ({**ROWS[1], "videos": ["rows.jsonl"]}, "cannot be read"),
    ):
        with pytest.raises(DataError, match=why):
            prepared(path, videos, [row])
    cut = prepared(path, videos, ROWS, cutoff=30)
    assert cut.report["sources"][0]["dropped"] == {"an image, a video or a sound beyond the cutoff": 1}


def test_pairs_and_prompts_may_have_videos(model, videos):
    path = model("qwen2_5_vl")
    asked = {"prompt": ROWS[1]["messages"][:1], "videos": ["short.avi"]}
    (pair,) = prepared(path, videos, [{**asked, "chosen": "Yes.", "rejected": "No."}], "preference").train
    (prompt,) = prepared(path, videos, [{**asked, "answer": "Yes."}], "prompt").train
    for found in (pair, prompt):
        assert found.media[0]["medium"] == "video"
        assert "pixel_values_videos" in found.model_inputs()


def test_files_of_llamafactory_train_on_videos(model, videos, tmp_path):
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    columns = {"messages": "messages", "videos": "videos"}
    entry = {"file_name": "rows.json", "formatting": "sharegpt", "columns": columns, "tags": tags}
    (videos / "rows.json").write_text(json.dumps(ROWS))
    (videos / "dataset_info.json").write_text(json.dumps({"shown": entry}))
    for family, template in (("qwen2_5_vl", "qwen2_vl"), ("qwen3_vl", "qwen3_vl_nothink")):
        recipe = load_recipe(
            {
                "model_name_or_path": str(model(family)),
                "stage": "sft",
                "do_train": True,
                "finetuning_type": "lora",
                "dataset": "shown",
                "dataset_dir": str(videos),
                "template": template,
                "video_max_pixels": 3000,
                "video_maxlen": 4,
                "max_steps": 1,
                "output_dir": str(tmp_path / family),
            }
        )
        assert recipe.data.media == Vision(folder=str(videos), video_max_pixels=3000, video_max_frames=4)
        found = recipe.data.build(tokenizer=model(family), rows="conversation", seed=0).train
        text = recipe.data.tokenizer(model(family)).decode(found[1].tokens)
        assert text.count("<|video_pad|>") == len(found[1].tokens[found[1].tokens == 2051])
        shown = "Look: <0.0 seconds><|vision_start|>" if family == "qwen3_vl" else "Look: <|vision_start|><|video_pad|>"
        assert shown in text
    execute(replace(recipe, model=recipe.model.model_copy(update={"compile": False})))
    assert (tmp_path / family).exists()
