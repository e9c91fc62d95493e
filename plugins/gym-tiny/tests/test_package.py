import json
import re
import string
from pathlib import Path

import pytest

from gym_tiny import Tiny
from gym_tiny.family import MODEL, locate
from gym_tiny.tasks import generate

MEGABYTE = 1_000_000


def test_the_family_is_a_folder_in_the_package():
    assert locate(Tiny()) == MODEL
    names = {file.name for file in MODEL.iterdir()}
    assert names == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_the_package_is_small():
    files = [file for file in MODEL.parent.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert sum(file.stat().st_size for file in files) <= 10 * MEGABYTE


def test_the_weights_are_bf16_and_one_to_five_million():
    with (MODEL / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    assert {entry["dtype"] for entry in tensors} == {"BF16"}
    bytes_held = sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in tensors)
    assert 1_000_000 <= bytes_held // 2 <= 5_000_000


def test_special_tokens_stand_where_the_configuration_says():
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    settings = json.loads((MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    assert config["eos_token_id"] == added[settings["eos_token"]]["id"] == added["<|im_end|>"]["id"]
    assert config["pad_token_id"] == added[settings["pad_token"]]["id"] == added["<|endoftext|>"]["id"]
    assert config["vocab_size"] == len(tokenizer["model"]["vocab"]) + len(added)
    assert {name for name, token in added.items() if token["special"]} == {
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    }
    assert set(added) > {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    }


def test_tokens_hold_one_digit_at_most():
    vocabulary = json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert not [token for token in vocabulary if re.search(r"\d.|.\d", token)]
    assert set(string.digits) <= set(vocabulary)


@pytest.mark.parametrize("file", sorted(Path(__file__).parents[1].glob("src/**/*.py")), ids=lambda file: file.name)
def test_nothing_heavy_is_imported(file):
    heavy = r"^\s*(?:import|from) (?:torch|numpy|transformers|tokenizers|jinja2)\b"
    assert not re.search(heavy, file.read_text(encoding="utf-8"), re.MULTILINE)


def test_prompts_are_short():
    assert max(len(task.messages[0]["content"]) for task in generate(None, 700)) < 120
