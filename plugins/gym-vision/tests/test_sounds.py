"""Training on sounds is what transformers computes of the same samples, with the whole processor of the model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from media_rows import sounding
from torch.nn import functional
from transformers import AutoModelForMultimodalLM, AutoProcessor

from gym_core import DataError, GymError, execute, load_recipe
from gym_data import DatasetConfig, File
from gym_data.prepare import prepare
from gym_data.rows import Named
from gym_sft import SFT
from gym_sft.objective import NextToken
from gym_testkit.vision_models import HEARD
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.packing import ALONE
from gym_torch.policy import Policy
from gym_vision import Sound, Vision
from gym_vision.media_reader import ProcessorMedia

ROWS = [
    {
        "messages": [
            {"role": "user", "content": "<audio>What is it?"},
            {"role": "assistant", "content": "A tone."},
            {"role": "user", "content": "And <audio>?"},
            {"role": "assistant", "content": "Another."},
        ],
        "audios": ["long.flac", "short.wav"],
    },
    {
        "messages": [{"role": "user", "content": "Hear: <audio>"}, {"role": "assistant", "content": "Short."}],
        "audios": ["short.wav"],
    },
]


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sounds")
    sounding(folder / "short.wav", 0.4)
    sounding(folder / "long.flac", 1.7, rate=44100, codec="flac")
    sounding(folder / "endless.wav", 2.5)
    return folder


def prepared(path, folder, rows=ROWS, shape="conversation", media=None, **options):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return prepare(DatasetConfig(sources=[File(path=str(file))], media=media or Sound(), **options), path, shape)


def reference(path, folder, row):
    """Return what transformers makes of a row whose sounds are these samples."""
    reader = ProcessorMedia(Sound(), path)
    heard = [reader.opened(reader.found(Named("audio", name), folder)) for name in row["audios"]]
    left = iter(heard)
    messages = []
    for message in row["messages"]:
        first, *others = message["content"].split("<audio>")
        parts = [{"type": "text", "text": first}] if first else []
        for text in others:
            parts += [{"type": "audio", "audio": next(left)}, *([{"type": "text", "text": text}] if text else [])]
        messages.append({"role": message["role"], "content": parts})
    processor = AutoProcessor.from_pretrained(path)
    text = processor.apply_chat_template(messages, chat_template=reader.processor.tokenizer.chat_template)
    return processor(text=[text], audio=heard, sampling_rate=16000, add_special_tokens=False, return_tensors="pt")


@pytest.mark.parametrize("family", HEARD)
def test_tokens_inputs_loss_and_gradient_are_those_of_transformers(family, model, sounds):
    path = model(family)
    found = prepared(path, sounds).train
    policy = Policy(AutoLanguageModel.from_pretrained(path, dtype=torch.float32))
    exact = AutoModelForMultimodalLM.from_pretrained(path).double().train()
    loss, _ = NextToken(SFT(), ALONE).loss(policy, NextToken(SFT(), ALONE).collate(list(found)))
    loss.backward()
    total = torch.zeros((), dtype=torch.float64)
    for example, row in zip(found, ROWS, strict=True):
        given = reference(path, sounds, row)
        np.testing.assert_array_equal(example.tokens, given["input_ids"][0])
        own = example.model_inputs()
        assert own.keys() == given.keys() - {"input_ids", "attention_mask"}
        for name, value in own.items():
            torch.testing.assert_close(torch.from_numpy(value), given[name], rtol=0, atol=0)
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


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({**ROWS[1], "audios": []}, "0 audios for 1 places"),
        ({**ROWS[1], "audios": ["gone.wav"]}, "there is no audio"),
        ({**ROWS[1], "audios": ["rows.jsonl"]}, "cannot be read"),
        ({**ROWS[1], "audios": ["endless.wav"]}, "more than the 2 seconds that the model hears"),
        ({**ROWS[1], "audios": ["https://example.org/a.wav"]}, "fetch it first"),
        ({**ROWS[1], "videos": ["a.mp4"]}, "the model reads no videos"),
    ],
)
def test_rows_whose_sounds_do_not_fit_are_bad_rows(row, why, model, sounds):
    with pytest.raises(DataError, match=why):
        prepared(model("qwen2_audio"), sounds, [row])


def test_a_reader_and_a_model_of_other_media_do_not_go_together(model, sounds):
    with pytest.raises(GymError, match="audios of `llava` are not read"):
        prepared(model("llava"), sounds)
    with pytest.raises(GymError):
        prepared(model("qwen2_audio"), sounds, media=Vision())


def test_pairs_and_prompts_may_have_sounds(model, sounds):
    path = model("qwen2_audio")
    asked = {"prompt": ROWS[1]["messages"][:1], "audios": ["short.wav"]}
    (pair,) = prepared(path, sounds, [{**asked, "chosen": "Yes.", "rejected": "No."}], "preference").train
    (prompt,) = prepared(path, sounds, [{**asked, "answer": "Yes."}], "prompt").train
    for found in (pair, prompt):
        assert found.media[0]["medium"] == "audio"
        assert "input_features" in found.model_inputs()


def test_files_of_llamafactory_train_on_sounds(model, sounds, tmp_path):
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    columns = {"messages": "messages", "audios": "audios"}
    entry = {"file_name": "rows.json", "formatting": "sharegpt", "columns": columns, "tags": tags}
    (sounds / "rows.json").write_text(json.dumps(ROWS))
    (sounds / "dataset_info.json").write_text(json.dumps({"heard": entry}))
    path = model("qwen2_audio")
    recipe = load_recipe(
        {
            "model_name_or_path": str(path),
            "stage": "sft",
            "do_train": True,
            "finetuning_type": "lora",
            "dataset": "heard",
            "dataset_dir": str(sounds),
            "template": "qwen2_audio",
            "audio_sampling_rate": 16000,
            "max_steps": 1,
            "output_dir": str(tmp_path / "out"),
        }
    )
    assert recipe.data.media == Sound(folder=str(sounds))
    found = recipe.data.build(tokenizer=path, rows="conversation", seed=0).train
    assert "Hear: <|audio_bos|><|AUDIO|><|AUDIO|>" in recipe.data.tokenizer(path).decode(found[1].tokens)
    execute(replace(recipe, model=recipe.model.model_copy(update={"compile": False})))
    trained = (tmp_path / "out").rglob("*.safetensors")
    assert [each.name for each in trained]
