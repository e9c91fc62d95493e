"""A small tokenizer with a chat template, made on the spot, and a cache folder of its own for every test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).parent))  # under `--import-mode=importlib` tests cannot import their neighbours
from data_cases import MARKED

WORDS = "the cat sat on a mat and said hello to you . What is two plus two ? Four . system user assistant "
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A model directory with tokenizer files alone."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 20, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>", "<tool_call>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "chat_template.jinja").write_text(MARKED)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def with_template(model, tmp_path):
    """A function that returns a model directory whose own chat template is the one given."""

    def make(text: str) -> Path:
        folder = tmp_path / "other-model"
        folder.mkdir(exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((model / name).read_bytes())
        (folder / "chat_template.jinja").write_text(text)
        return folder

    return make


@pytest.fixture
def write(tmp_path):
    """A function that writes rows as JSON lines and returns the path."""

    def make(rows, name="rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return make


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of public data sets that lies beside the checkout."""
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("GYM_DATA") or beside)
    if not (folder / "dataset_info.json").is_file():
        pytest.skip(f"no real data at {folder}; set GYM_DATA")
    return folder
