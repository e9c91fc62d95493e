"""What the benchmarks train: a 30M-parameter Qwen3 with random weights, a tokenizer of the data, and its samples."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from gym_core import load_recipe
from gym_tiny.family import MODEL as TINY
from peers.shape import SHAPE, SMALL

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("GYM_DATA", ROOT.parent / "shared" / "data"))
SPECIAL = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]


def write_model(
    into: Path,
    vocabulary: int,
    *data: str,
    ends: int = 1,
    shape: Mapping[str, Any] = SHAPE,
    half: bool = False,
    device: str = "cpu",
) -> Path:
    """Write a model whose tokenizer was trained on datasets; a large vocabulary has rows that no text uses.

    `ends` tokens end an answer, the last ones of the vocabulary beside the usual one: random weights give all tokens
    about the same probability, so the lengths of answers are spread geometrically around `vocabulary / ends`. `shape` is all of
    its `config.json` but the vocabulary; `half` writes bf16; the weights are drawn on `device`.
    """
    into.mkdir(parents=True)
    tokenizer = _tokenizer(*data)
    tokenizer.save(str(into / "tokenizer.json"))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (into / name).write_bytes((TINY / name).read_bytes())
    end = tokenizer.token_to_id("<|im_end|>")
    config = AutoConfig.for_model(
        **{**shape, "vocab_size": vocabulary}, eos_token_id=end, pad_token_id=tokenizer.token_to_id("<|endoftext|>")
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if half else torch.float32)
    model.generation_config.eos_token_id = [end, *range(vocabulary - ends + 1, vocabulary)]
    model.save_pretrained(into)
    return into


def write_samples(into: Path, model: Path, data: str, cutoff: int, **more: Any) -> list[dict[str, Any]]:
    """Tokenize a dataset as Gym does, and write it as `input_ids` and `labels` for the peers; `more` as in `source`."""
    rows = []
    for example in _examples(model, data, cutoff, "sft", **more):
        labels = [int(token) if kept else -100 for token, kept in zip(example.tokens, example.trained, strict=True)]
        rows.append({"input_ids": example.tokens.tolist(), "labels": labels})
    into.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def write_pairs(into: Path, model: Path, data: str, cutoff: int, **more: Any) -> int:
    """Tokenize pairs as Gym does, and write its parts as `prompt_ids` and so on; return how many. `more` as in `source`."""
    rows = []
    for pair in _examples(model, data, cutoff, "dpo", **more):
        tokens, middle = pair.tokens.tolist(), pair.shared + pair.chosen
        sides = ((pair.shared, middle), (middle, len(tokens)))
        chosen, rejected = (tokens[start : start + int(pair.trained[start:end].sum())] for start, end in sides)
        rows.append({"prompt_ids": tokens[: pair.shared], "chosen_ids": chosen, "rejected_ids": rejected})
    into.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def write_prompts(into: Path, model: Path, data: str, count: int, length: int) -> None:
    """Write prompts of `length` tokens each, cut from the text of a dataset, as messages."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    empty = tokenizer.apply_chat_template(
        [{"role": "user", "content": ""}], add_generation_prompt=True, return_dict=False
    )
    words = " ".join(_texts(data)).split()
    lines = []
    for _ in range(count):
        text = words.pop(0)
        while (short := length - len(empty) - len(tokenizer.encode(text))) > 0:
            # The last places are filled with a letter, one token each, for words are of several.
            text += " a" if short < 8 else f" {words.pop(0)}"
        lines.append(json.dumps({"prompt": [{"role": "user", "content": text}]}) + "\n")
    into.write_text("".join(lines), encoding="utf-8")


def source(data: str, cutoff: int, **more: Any) -> dict[str, Any]:
    """Return the `data` section of a recipe that reads a dataset in its own order, with `more` of its keys."""
    return {"sources": [data], "dataset_dir": str(DATA), "cutoff": cutoff, **more}


def words(data: str, count: int) -> str:
    """Return the first words of a dataset."""
    return " ".join(" ".join(_texts(data)).split()[:count])


def _examples(model: Path, data: str, cutoff: int, algorithm: str, **more: Any) -> Any:
    """Return the samples that an algorithm of Gym learns from."""
    recipe = load_recipe(
        {"model": str(model), "algorithm": algorithm, "data": source(data, cutoff, **more), "output": "unused"}
    )
    assert recipe.data is not None and recipe.algorithm is not None
    return recipe.data.build(tokenizer=model, rows=recipe.algorithm.rows, seed=0).train


def _tokenizer(*data: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [token["content"] for token in SPECIAL]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SMALL, special_tokens=names, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(chain.from_iterable(map(_texts, data)), trainer)
    return tokenizer


def _texts(data: str) -> Iterator[str]:
    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            for item in value.values() if isinstance(value, dict) else value:
                yield from strings(item)

    file = next(DATA.glob(f"{data}.*"))
    text = file.read_text(encoding="utf-8")
    yield from strings(json.loads(text) if file.suffix == ".json" else text.splitlines())
