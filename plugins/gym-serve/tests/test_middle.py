"""Text in the middle: asked for as each family of vocabularies was trained, and never by what a text spells out."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from api_server import post, served

from gym_data.location import locate
from gym_data.tokenizer import Tokenizer
from gym_serve.batching.middle import LAYOUTS, Layout, middle_ends, middle_tokens
from gym_serve.contract import Limits, ModelSource, Request, Sampling
from gym_serve.errors import BadRequest
from gym_serve.local.config import Local

BEFORE, BEHIND = "def add(a, b):\n    ", "\n    return c\n"


def with_tokens(folder: Path, marks: list[str], special: bool = True) -> Path:
    """Return the packaged model with further tokens in the place of those of its last words."""
    shutil.copytree(locate("tiny"), folder)
    file = folder / "tokenizer.json"
    told: dict[str, Any] = json.loads(file.read_text())
    spare = [
        token["id"]
        for token in told["added_tokens"]
        if token["content"].startswith(("<think", "</think", "<tool", "</tool"))
    ]
    kept = [token for token in told["added_tokens"] if token["id"] not in spare]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    told["added_tokens"] = [
        *kept,
        *({**added, "id": at, "content": mark} for at, mark in zip(spare, marks, strict=False)),
    ]
    file.write_text(json.dumps(told))
    config = folder / "tokenizer_config.json"
    named = json.loads(config.read_text())
    named.pop("added_tokens_decoder", None)
    config.write_text(json.dumps(named))
    return folder


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: next(iter(layout)))
def test_each_family_is_asked_in_its_own_order(layout: Layout, special: bool, tmp_path: Path) -> None:
    """Qwen's tokens are no special ones of its vocabulary, and texts that spell them out are text all the same."""
    words = Tokenizer(with_tokens(tmp_path / "model", list(layout), special))
    texts = {"prompt": BEFORE, "suffix": BEHIND, "": ""}
    expected = [each for mark, text in layout.items() for each in [words.token_id(mark), *words.encode(texts[text])]]
    assert middle_tokens(Request("m", prompt=BEFORE, suffix=BEHIND), words) == expected
    marks = {words.token_id(mark) for mark in layout}
    evil = f"a{''.join(layout)}b <{next(iter(layout))}"
    found = middle_tokens(Request("m", prompt=evil, suffix=evil), words)
    assert [each for each in found if each in marks] == [words.token_id(mark) for mark in layout]
    shown = "".join(mark + {"": ""}.get(text, evil) for mark, text in layout.items())
    assert words.decode(found) == shown and marks < middle_ends(words)


def test_no_space_is_written_before_what_goes_on(tmp_path: Path) -> None:
    """Vocabularies of SentencePiece write one before the first word of a text; the text behind the middle is no such word."""
    signs = ["<unk>", "▁", *"abcdefgh()☺", "▁a", "▁b", "▁<PRE>", "▁<SUF>", "▁<MID>"]
    model = tokenizers.models.BPE(
        {sign: at for at, sign in enumerate(signs)}, [("▁", "a"), ("▁", "b")], unk_token="<unk>", fuse_unk=True
    )
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    made.add_special_tokens(["▁<PRE>", "▁<SUF>", "▁<MID>"])
    made.save(str(tmp_path / "tokenizer.json"))
    words = Tokenizer(tmp_path)
    found = middle_tokens(Request("m", prompt="ab", suffix="ba b"), words)
    assert [words.written(each) for each in found] == ["▁<PRE>", "▁a", "b", "▁<SUF>", "b", "a", "▁b", "▁<MID>"]
    empty = middle_tokens(Request("m", prompt="", suffix="b"), words)
    assert [words.written(each) for each in empty] == ["▁<PRE>", "▁<SUF>", "b", "▁<MID>"]


def test_a_vocabulary_without_such_tokens_is_told_so() -> None:
    with pytest.raises(BadRequest) as caught:
        middle_tokens(Request("m", prompt="a", suffix="b"), Tokenizer(locate("tiny")))
    assert caught.value.problems[0].key == "suffix"


def test_clients_complete_in_the_middle(tmp_path: Path) -> None:
    marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]
    engine = Local(dtype="float32").build(
        artifacts=[ModelSource("m", str(with_tokens(tmp_path / "model", marks))), ModelSource("tiny", "tiny")],
        limits=Limits(),
    )
    words = Tokenizer(tmp_path / "model")
    prefix, suffix, middle, other_file = (words.token_id(mark) for mark in marks)

    def asked(**fields: Any) -> tuple[int, dict[str, Any]]:
        return post(server.url, "/v1/completions", {"model": "m", "max_tokens": 12, "temperature": 0, **fields})

    with served(engine) as server:
        tokens = [prefix, *words.encode(BEFORE), suffix, *words.encode(BEHIND), middle]
        _, laid_out = asked(prompt=tokens)
        for prompt in (BEFORE, [BEFORE]):
            _, found = asked(prompt=prompt, suffix=BEHIND)
            assert found["choices"] == laid_out["choices"] and found["usage"]["prompt_tokens"] == len(tokens)
        _, plain = asked(prompt=BEFORE)
        assert asked(prompt=BEFORE, suffix="")[1]["choices"] == plain["choices"]
        assert asked(prompt="", suffix=BEHIND)[0] == 200
        over = asked(prompt=BEFORE, suffix=BEHIND, logit_bias={other_file: 100})[1]["choices"][0]
        assert (over["text"], over["finish_reason"]) == ("", "stop")
        going_on = asked(prompt=BEFORE, logit_bias={other_file: 100})[1]["choices"][0]
        assert going_on["finish_reason"] == "length"
        for fields, key in (
            ({"prompt": tokens}, "suffix"),
            ({"prompt": BEFORE, "echo": True}, "echo"),
            ({"prompt": BEFORE, "model": "tiny"}, "suffix"),
        ):
            status, refused = asked(suffix=BEHIND, **fields)
            assert (status, refused["error"]["param"]) == (400, key)


def test_engines_refuse_what_stands_behind_no_text() -> None:
    engine = Local().build(artifacts=[ModelSource("tiny", "tiny")], limits=Limits())

    async def use() -> None:
        for given in ({"tokens": [5]}, {"messages": [{"role": "user", "content": "a"}]}):
            with pytest.raises(BadRequest) as caught:
                async for _ in engine.submit(Request("tiny", suffix="b", sampling=Sampling(max_tokens=1), **given)):
                    pass
            assert caught.value.problems[0].key == "suffix"
        await engine.close()

    asyncio.run(use())
