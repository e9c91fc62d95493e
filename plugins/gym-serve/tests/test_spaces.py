"""Models whose words begin with their space, and whose decoder drops that of the first: what goes on with a text keeps it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from gym_serve.contract import Limits, ModelSource, Piece, Request, Sampling
from gym_serve.local.config import Local
from gym_serve.local.engine import LocalEngine
from gym_testkit.tiny import write_model

TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"
BANNED = dict.fromkeys(range(4), -100.0)  #: what is no numbered word
GREEDY = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True, "logprobs": 2, "logit_bias": BANNED}


def worded(folder: Path) -> Path:
    """Return a model whose every token is a word, as those of Llama 2 are written."""
    folder = write_model(folder, seed=11)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁a": 3} | {f"▁w{number}": number for number in range(4, size)}
    made = tokenizers.Tokenizer(models.WordLevel(words, "<unk>"))
    made.add_special_tokens(["<s>", "</s>"])
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    source = ModelSource("words", str(worded(tmp_path_factory.mktemp("words") / "model")))
    made = Local(dtype="float32").build(artifacts=[source], limits=Limits())
    yield made
    asyncio.run(made.close())


def whole(engine: LocalEngine, **asked: Any) -> Piece:
    """Return a reply as one piece."""

    async def use() -> list[Piece]:
        return [piece async for piece in engine.submit(Request("words", sampling=Sampling(**GREEDY), **asked))]

    found = asyncio.run(use())
    logprobs = tuple(each for piece in found for each in piece.logprobs)
    tokens = tuple(token for piece in found for token in piece.tokens)
    return Piece("".join(piece.text for piece in found), tokens, logprobs)


@pytest.mark.parametrize("asked", [{"prompt": "w7 w8 w9"}, {"tokens": (7, 8, 9)}], ids=["text", "tokens"])
def test_a_text_that_is_continued_has_its_spaces(engine: LocalEngine, asked: dict[str, Any]) -> None:
    found = whole(engine, **asked)
    assert found.text == "".join(f" w{token}" for token in found.tokens)
    assert "".join(each.text for each in found.logprobs) == found.text
    assert b"".join(each.utf8 for each in found.logprobs).decode() == found.text
    assert all(each.text == f" w{each.token}" for told in found.logprobs for each in told.top if each.token > 3)


def test_an_echo_and_what_follows_are_one_text(engine: LocalEngine) -> None:
    found = whole(engine, tokens=(7, 8, 9), echo=True)
    assert found.text == " ".join(f"w{token}" for token in found.tokens)
    assert "".join(each.text for each in found.logprobs) == found.text


def test_an_answer_begins_with_a_word_and_goes_on_with_a_space(engine: LocalEngine) -> None:
    turns = [{"role": "user", "content": "w7 w8"}, {"role": "assistant", "content": "w9"}]
    answered = whole(engine, messages=turns[:1])
    assert answered.text == " ".join(f"w{token}" for token in answered.tokens)
    further = whole(engine, messages=turns, continue_final_message=True)
    assert further.text == "".join(f" w{token}" for token in further.tokens)
    begun = whole(engine, messages=[turns[0], {"role": "assistant", "content": ""}], continue_final_message=True)
    assert begun.text == answered.text
