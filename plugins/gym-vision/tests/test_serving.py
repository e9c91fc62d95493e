"""Requests with images: the reply is that of transformers, whoever sends it and whatever is asked beside it."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import replace

import pytest
from asked_images import GREEDY, NEW, answered, data_url, engine_of, messages_of, reference
from image_rows import ROWS
from starlette.testclient import TestClient
from transformers import AutoModelForImageTextToText

from gym_core import execute, load_recipe
from gym_data.kinds import Media
from gym_serve.api.app import application
from gym_serve.api.options import ApiOptions
from gym_serve.contract import Request
from gym_serve.errors import BadRequest
from gym_serve.on_disk import OnDisk
from gym_testkit.vision_models import FAMILIES
from gym_vision import Vision
from gym_vision.media_reader import ProcessorMedia

PLAIN = {
    "messages": [{"role": "user", "content": "No image here."}, {"role": "assistant", "content": ""}],
    "images": [],
}


def expected_of(path, rows, row):
    given = reference(path, rows, {**row, "messages": row["messages"][:-1]}, prompt=True)
    model = AutoModelForImageTextToText.from_pretrained(path)
    options = {"return_dict_in_generate": True, "output_logits": True}
    found = model.generate(**given, max_new_tokens=NEW, do_sample=False, eos_token_id=None, **options)
    length = given["input_ids"].shape[1]
    likely = [float(step.log_softmax(-1).max()) for step in found.logits]
    return length, found.sequences[0, length:].tolist(), pytest.approx(likely, abs=1e-5)


class Small(Media):
    """What a stranger reads images with."""

    def build(self, *, path):
        return ProcessorMedia(Vision(max_pixels=1600), path)


def client_of(engine):
    return TestClient(application(engine, ApiOptions()), base_url="http://127.0.0.1")


@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_those_of_transformers_whatever_is_asked_beside_them(family, model, rows):
    path = model(family)
    sent = [Request("it", messages=messages_of(row, lambda name: data_url(rows.parent, name))) for row in ROWS[:2]]
    local = Request("it", messages=messages_of(ROWS[0], lambda name: OnDisk(name, rows.parent)))
    asked = [replace(each, sampling=GREEDY) for each in (*sent, local, Request("it", messages=PLAIN["messages"][:1]))]
    engine = engine_of(path)
    counted = [asyncio.run(engine.count(each)) for each in asked]
    found = answered(engine, *asked)
    for (tokens, pieces), count, row in zip(found, counted, (*ROWS[:2], ROWS[0], PLAIN), strict=True):
        length, expected, likely = expected_of(path, rows, row)
        assert (tokens, count) == (expected, length)
        assert [each.logprob for piece in pieces for each in piece.logprobs] == likely
        assert pieces[-1].usage.prompt_tokens == count


def test_draws_are_those_of_the_seed_and_what_is_seen_changes_the_reply(model, rows):
    drawn = replace(GREEDY, temperature=1.0, seed=5)
    seen = [
        Request("it", messages=messages_of({**ROWS[0], "images": images}, lambda name: data_url(rows.parent, name)))
        for images in (ROWS[0]["images"], ROWS[0]["images"], ["noise.png", "noise.png"])
    ]
    seen = [replace(each, sampling=drawn) for each in seen]
    tokens = [tokens for tokens, _ in answered(engine_of(model("qwen2_5_vl")), *seen)]
    assert tokens[0] == tokens[1] != tokens[2]


def test_what_ends_and_bounds_replies_does_so_beside_images(model, rows):
    asked = Request("it", messages=messages_of(ROWS[0], lambda name: data_url(rows.parent, name)), sampling=GREEDY)
    ((tokens, pieces),) = answered(engine_of(model("llava")), asked)
    text = "".join(piece.text for piece in pieces)
    assert text
    stop = text[len(text) // 2 :][:3]
    options = ({"stop": (stop,)}, {"stop_token_ids": (tokens[0],)}, {"logit_bias": {tokens[0]: -100.0}})
    ended, first, others = answered(
        engine_of(model("llava")), *(replace(asked, sampling=replace(GREEDY, **each)) for each in options)
    )
    assert ended[1][-1].stop == stop and "".join(piece.text for piece in ended[1]) == text.partition(stop)[0]
    assert first[0] == tokens[:1] and tokens[0] not in others[0]


def test_what_a_text_spells_out_is_no_image(model, rows):
    for family, told in FAMILIES.items():
        spelled = f"An `<image>`, {told['mark']} and {' '.join(told['tokens'])}."
        engine = engine_of(model(family))
        found = asyncio.run(engine.tokenize(Request("it", messages=[{"role": "user", "content": spelled}])))
        assert spelled in asyncio.run(engine.detokenize("it", found.tokens))
        reader = engine.served["it"].tokenizer.media
        assert not set(found.tokens) & reader.tokens
        answered(engine)


def test_what_cannot_be_is_refused(model, rows):
    def why(*images, role="user", **options):
        parts = [{"type": "image", "image": each} for each in images]
        asked = Request("it", messages=[{"role": role, "content": parts}], **options.pop("asked", {}))
        with pytest.raises(BadRequest) as caught:
            answered(engine_of(model("llava"), **options), asked)
        return str(caught.value)

    red = data_url(rows.parent, "red.png")
    assert "no images are read" in why(red, media=None)
    assert "at most 1" in why(red, red, max_images=1)
    assert "no address is fetched" in why("http://169.254.169.254/")
    assert "no file read" in why(str(rows.parent / "red.png"))
    assert "base64" in why("data:image/png;base64,!!!") and "no bytes" in why("data:image/png,abc")
    none = why(f"data:image/png;base64,{b64encode(b'no image').decode()}")
    assert "none of JPEG" in none and "0x" not in none
    assert "too long" in why(red, max_context=8)
    assert "not echoed" in why(red, asked={"echo": True})


def test_nothing_of_an_image_is_kept(model, rows, tmp_path):
    asked = Request("it", messages=messages_of(ROWS[0], lambda name: data_url(rows.parent, name)), sampling=GREEDY)
    answered(engine_of(model("llava")), asked)
    assert not (tmp_path / "cache" / "images").exists()


def test_clients_of_every_form_get_the_same_reply(model, rows):
    url = data_url(rows.parent, "red.png")
    text = [{"type": "text", "text": "What is it?"}]
    openai = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, *text]}
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    anthropic = {"role": "user", "content": [{"type": "image", "source": source}, *text]}
    item = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What is it?"}]
    drawn = {"model": "it", "temperature": 0}
    with client_of(engine_of(model("gemma3"))) as client:

        def asked(path, **body):
            answer = client.post(path, json={**drawn, **body})
            assert answer.status_code == 200, answer.text
            return answer.json()

        chat = asked("/v1/chat/completions", messages=[openai], max_tokens=NEW)
        message = asked("/v1/messages", messages=[anthropic], max_tokens=NEW)
        response = asked("/v1/responses", input=[{"role": "user", "content": item}], max_output_tokens=NEW)
        said = chat["choices"][0]["message"]["content"]
        assert said == message["content"][0]["text"] == response["output"][0]["content"][0]["text"]
        counts = {
            chat["usage"]["prompt_tokens"],
            message["usage"]["input_tokens"],
            response["usage"]["input_tokens"],
            client.post("/tokenize", json={"model": "it", "messages": [openai]}).json()["count"],
            client.post("/v1/messages/count_tokens", json={"model": "it", "messages": [anthropic]}).json()[
                "input_tokens"
            ],
        }
        assert len(counts) == 1
        for role in ("system", "assistant"):
            wrong = {**drawn, "messages": [{**openai, "role": role}]}
            assert client.post("/v1/chat/completions", json=wrong).status_code == 400
    with client_of(engine_of(model("gemma3"), media=None)) as client:
        answer = client.post("/v1/chat/completions", json={**drawn, "messages": [openai]})
        assert answer.status_code == 400 and "no images are read" in answer.text


def test_images_are_read_by_what_a_stranger_brings(model, rows):
    asked = Request("it", messages=messages_of(ROWS[1], lambda name: data_url(rows.parent, name)))
    counts = []
    for media in (Small(), Vision()):
        engine = engine_of(model("qwen3_vl"), media=media)
        counts.append(asyncio.run(engine.count(asked)))
        answered(engine)
    assert counts[0] < counts[1]


def test_a_run_reads_images_as_it_was_trained(model, rows, tmp_path):
    recipe = {
        "model": {"path": str(model("qwen2_5_vl")), "compile": False},
        "data": {"sources": [{"name": "file", "path": str(rows)}], "media": {"name": "vision", "max_pixels": 1600}},
        "algorithm": "sft",
        "adapter": {"name": "lora", "rank": 4},
        "train": {"max_steps": 1, "batch_size": 1, "learning_rate": 1e-2, "precision": "fp32"},
        "output": str(tmp_path / "run"),
    }
    execute(load_recipe(recipe))
    asked = Request("it", messages=messages_of(ROWS[1], lambda name: data_url(rows.parent, name)))
    found = {}
    for path, media in ((tmp_path / "run", None), (tmp_path / "run", Vision()), (model("qwen2_5_vl"), Vision())):
        engine = engine_of(path, media=media)
        found[path, media is None] = asyncio.run(engine.count(asked))
        answered(engine, replace(asked, sampling=GREEDY))
    trained, said, base = found.values()
    assert trained < said == base
