"""Fields of vLLM's API, asked with OpenAI's client: when a reply may end, what it may not say, tokens, and what is counted."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import torch
from api_server import served

from gym_serve.batching.logits_processors import bad_words
from gym_serve.contract import Limits, ModelSource, Request, Sampling
from gym_serve.local.config import Local

ASKED = [{"role": "user", "content": "3 + 4?"}]
LONGEST = 24
OPTIONS: list[dict[str, Any]] = [
    {},
    {"min_tokens": 12},
    {"min_tokens": LONGEST},
    {"bad_words": ["7", "the", "I am"]},
    {"min_tokens": 9, "bad_words": ["is", "7"], "temperature": 1.0, "seed": 3},
    {"min_tokens": 14, "stop": ["a", "7", "e"]},
    {"stop": ["7", "e"], "include_stop_str_in_output": True},
    {"min_tokens": 5, "structured_outputs": {"regex": "[a-c]+"}},
]


@pytest.fixture(scope="module")
def at() -> Iterator[SimpleNamespace]:
    engine = Local(dtype="float32").build(artifacts=[ModelSource("tiny", "tiny")], limits=Limits(max_batch=8))
    with served(engine) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
        own = engine.served["tiny"]
        yield SimpleNamespace(
            client=client, url=server.url, engine=engine, model=own.model, words=own.tokenizer, own=own
        )


def chat(at: SimpleNamespace, stream: bool = False, **given: Any) -> Any:
    known = {name: given.pop(name) for name in ("temperature", "seed", "stop") if name in given}
    options = {"temperature": 0, "max_tokens": given.pop("max_tokens", LONGEST), **known, "extra_body": given}
    return at.client.chat.completions.create(model="tiny", messages=ASKED, stream=stream, **options)


def text(at: SimpleNamespace, **given: Any) -> str:
    return chat(at, **given).choices[0].message.content


def post(at: SimpleNamespace, path: str, **body: Any) -> Any:
    found = httpx.post(f"{at.url}{path}", json={"model": "tiny", **body}, timeout=60)
    assert found.status_code == 200, found.text
    return found.json()


@pytest.mark.parametrize(
    "given", [{"min_tokens": 12}, {"bad_words": ["7", "I am"]}, {"min_tokens": 9, "bad_words": ["is"]}]
)
def test_greedy_replies_are_those_of_transformers(at: SimpleNamespace, given: dict[str, Any]) -> None:
    prompt = post(at, "/tokenize", messages=ASKED)["tokens"]
    words = [list(each) for each in bad_words(given.get("bad_words", ()), at.words.encode)]
    made = at.model.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=LONGEST,
        min_new_tokens=given.get("min_tokens"),
        bad_words_ids=words or None,
        eos_token_id=sorted(at.own.stops),
    )
    tokens = made[0, len(prompt) :].tolist()
    assert asyncio.run(_plain(at, **given)) == tokens and tokens != asyncio.run(_plain(at))


async def _plain(at: SimpleNamespace, **given: Any) -> list[int]:
    request = Request("tiny", messages=ASKED, sampling=Sampling(max_tokens=LONGEST, temperature=0, **given))
    return [token async for piece in at.engine.submit(request) for token in piece.tokens]


def test_replies_are_the_same_alone_together_and_streamed(at: SimpleNamespace) -> None:
    alone = [chat(at, **given).choices[0] for given in OPTIONS]
    client = openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="any", max_retries=0)

    async def together() -> list[Any]:
        asked = SimpleNamespace(client=client)
        return await asyncio.gather(*(chat(asked, **given) for given in OPTIONS))

    for one, found, given in zip(alone, asyncio.run(together()), OPTIONS, strict=True):
        assert found.choices[0].message.content == one.message.content
        parts = [chunk.choices[0].delta.content or "" for chunk in chat(at, stream=True, **given)]
        assert "".join(parts) == one.message.content


def test_a_stop_string_counts_behind_the_least_number_of_tokens(at: SimpleNamespace) -> None:
    whole, tokens = text(at, ignore_eos=True), asyncio.run(_plain(at, ignore_eos=True))
    assert at.words.decode(tokens) == whole
    for least in (1, 3, 6):
        free = len(at.words.decode(tokens[:least]))
        for stop in sorted({whole[place : place + 2] for place in range(len(whole) - 1)})[::3]:
            ends = [m.start() for m in re.finditer(f"(?={re.escape(stop)})", whole) if m.start() + 2 > free]
            said = {"stop": [stop], "min_tokens": least, "ignore_eos": True}
            assert text(at, **said) == (whole[: ends[0]] if ends else whole)
            shown = text(at, **said, include_stop_str_in_output=True)
            assert shown == (whole[: ends[0] + 2] if ends else whole)


def test_a_token_that_ends_a_reply_is_shown_where_that_is_asked(at: SimpleNamespace) -> None:
    whole = text(at, ignore_eos=True)
    third = at.words.encode(whole)[2]
    before = at.words.decode(at.words.encode(whole)[:2])
    assert text(at, stop_token_ids=[third], ignore_eos=True) == before
    shown = text(at, stop_token_ids=[third], ignore_eos=True, include_stop_str_in_output=True)
    assert shown == at.words.decode(at.words.encode(whole)[:3])
    assert text(at, include_stop_str_in_output=True) == text(at)  # special tokens are no text


def test_a_grammar_goes_before_words_and_least_numbers(at: SimpleNamespace) -> None:
    for given in ({"min_tokens": LONGEST}, {"bad_words": ["yes", "s", "y", "es", "e"]}):
        found = chat(at, structured_outputs={"choice": ["yes"]}, **given).choices[0]
        assert found.message.content == "yes" and found.finish_reason == "stop"
    found = chat(at, structured_outputs={"regex": "a*"}, min_tokens=5)
    assert found.usage.completion_tokens >= 5


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"min_tokens": LONGEST + 1}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"bad_words": ["a", " "]}, "bad_words"),
        ({"bad_words": "a"}, "bad_words"),
        ({"stop_token_ids": [10**7]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ],
)
def test_what_cannot_be_is_refused_by_name(at: SimpleNamespace, given: dict[str, Any], key: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(at, **given)
    assert caught.value.param == key


def test_tokens_of_texts_and_conversations(at: SimpleNamespace) -> None:
    said = "What is 日本 🙂? <|im_end|>"
    found = post(at, "/tokenize", prompt=said, return_token_strs=True)
    assert found["tokens"] == [*at.words.document_start, *at.words.encode(said)] and found["count"] == len(
        found["tokens"]
    )
    assert found["token_strs"] == [at.words.written(token) for token in found["tokens"]]
    assert found["max_model_len"] == at.own.context
    assert post(at, "/detokenize", tokens=found["tokens"])["prompt"].endswith(said)
    bare = post(at, "/tokenize", prompt=said, add_special_tokens=False)
    assert bare["tokens"] == at.words.encode(said) and bare["token_strs"] is None
    assert post(at, "/tokenize", prompt="", add_special_tokens=False)["count"] == 0
    laid_out = post(at, "/tokenize", messages=ASKED)
    assert laid_out["count"] == chat(at).usage.prompt_tokens
    assert post(at, "/detokenize", tokens=laid_out["tokens"])["prompt"].endswith("<|im_start|>assistant\n")
    made = at.client.completions.create(model="tiny", prompt=laid_out["tokens"], max_tokens=LONGEST, temperature=0)
    assert made.choices[0].text == text(at)


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": ASKED}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"messages": ASKED, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": ASKED, "chat_template_kwargs": {"odd": 1}}, "chat_template_kwargs.odd"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "nobody"}, "model"),
    ],
)
def test_tokens_that_cannot_be_are_refused_by_name(at: SimpleNamespace, path: str, body: Any, key: str) -> None:
    found = httpx.post(f"{at.url}{path}", json={"model": "tiny", **body}, timeout=60)
    assert found.status_code in (400, 404) and found.json()["error"]["param"] == key


def test_a_prompt_alone_is_scored(at: SimpleNamespace) -> None:
    """As harnesses of evaluation ask: no token is made, and the scores are those beside a reply."""
    create = at.client.completions.create
    asked = {"model": "tiny", "prompt": "The sum of 3 and 4", "echo": True, "logprobs": 2, "temperature": 0}
    alone, beside = create(max_tokens=0, **asked), create(max_tokens=1, **asked)
    count = alone.usage.prompt_tokens
    assert alone.choices[0].text.endswith(asked["prompt"]) and alone.usage.completion_tokens == 0
    assert alone.choices[0].finish_reason == "length" and len(alone.choices[0].logprobs.tokens) == count
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert getattr(alone.choices[0].logprobs, name) == getattr(beside.choices[0].logprobs, name)[:count]
    chunks = list(create(max_tokens=0, stream=True, **asked))
    assert "".join(chunk.choices[0].text for chunk in chunks) == alone.choices[0].text
    plain = create(max_tokens=0, **{**asked, "logprobs": None, "prompt": ["a", "b c"]})
    assert [choice.text[-1] for choice in plain.choices] == ["a", "c"]
    with pytest.raises(openai.BadRequestError) as caught:
        create(max_tokens=0, **{**asked, "echo": False})
    assert caught.value.param == "max_tokens"


def test_offsets_are_places_in_the_text(at: SimpleNamespace) -> None:
    """Also within and behind characters that are several tokens, of the prompt and of the reply, at once and in a stream."""
    create = at.client.completions.create
    choice = json.dumps(["a🙂b日本c é", "x"])
    asked = {"model": "tiny", "prompt": "🙂日 a", "echo": True, "logprobs": 0, "temperature": 0, "max_tokens": 200}
    asked["extra_body"] = {"structured_outputs": {"choice": json.loads(choice)[:1]}}
    whole = create(**asked).choices[0]
    offsets = whole.logprobs.text_offset
    tokens = post(at, "/tokenize", prompt=whole.text)["tokens"]
    assert whole.text.endswith("a🙂b日本c é") and offsets[0] == 0 and offsets == sorted(offsets)
    assert len(offsets) > len(set(offsets)), "no character is several tokens"
    for token, start in zip(whole.logprobs.tokens, offsets, strict=True):
        if "\ufffd" not in token:
            assert whole.text.startswith(token, start) or at.words.token_id(token) is not None
    assert tokens
    streamed = [o for chunk in create(stream=True, **asked) for o in (chunk.choices[0].logprobs.text_offset or ())]
    assert streamed == offsets


def test_lists_of_tokens_are_embedded(at: SimpleNamespace) -> None:
    def vectors(given: Any) -> list[list[float]]:
        found = at.client.embeddings.create(model="tiny", input=given, encoding_format="float")
        assert found.usage.prompt_tokens > 0
        return [each.embedding for each in found.data]

    tokens = [post(at, "/tokenize", prompt=said)["tokens"] for said in ("one two", "three")]
    assert vectors(tokens) == vectors(["one two", "three"]) and vectors(tokens[0]) == vectors("one two")
    for wrong in ([10**6], [[]], []):
        with pytest.raises(openai.BadRequestError) as caught:
            vectors(wrong)
        assert caught.value.param.startswith("input")


def test_each_token_tells_where_it_begins(at: SimpleNamespace) -> None:
    sampling = Sampling(max_tokens=150, temperature=3.0, seed=5, ignore_eos=True)

    async def read() -> list[Any]:
        return [piece async for piece in at.engine.submit(Request("tiny", prompt="a", sampling=sampling))]

    found = asyncio.run(read())
    tokens, starts = ([each for piece in found for each in part(piece)] for part in (_tokens, _starts))
    whole, unfinished = "".join(piece.text for piece in found), 0
    assert len(starts) == len(tokens) == 150
    before = at.words.encode("a")
    for place, start in enumerate(starts):
        text = at.words.decode([*before, *tokens[:place]])[1:]
        if text.endswith("\ufffd"):
            unfinished += 1
            assert start <= len(text)
        else:
            assert start == len(text) and whole[:start] == text
    assert 0 < unfinished < 150


def _tokens(piece: Any) -> Any:
    return piece.tokens


def _starts(piece: Any) -> Any:
    return piece.starts
