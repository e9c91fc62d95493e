"""Rows with images are answered by `gym inference` and `gym predict`, and images shown in `gym chat`, as requests are."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from asked_images import GREEDY, answered, engine_of, messages_of
from image_rows import ROWS

from gym_core import GymError, execute, load_recipe
from gym_core.cli import run
from gym_serve.chat.session import Session
from gym_serve.contract import Request, Sampling
from gym_serve.inference.rows import asked
from gym_serve.on_disk import OnDisk
from gym_vision import Vision

DRAWN = Sampling(max_tokens=6, temperature=1.0, seed=3)
WORDS = ["temperature=1.0", "seed=3", "max_tokens=6"]


def requested(path, rows, media=None):
    """Return what the rows are answered by requests of conversations, drawn as the commands draw."""
    requests = [
        Request("it", messages=messages_of(row, lambda name: OnDisk(name, rows.parent)), sampling=DRAWN, index=number)
        for number, row in enumerate(ROWS)
    ]
    return ["".join(piece.text for piece in pieces) for _, pieces in answered(engine_of(path, media=media), *requests)]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_of_a_file_are_answered(model, rows, tmp_path):
    path, output = model("qwen2_5_vl"), tmp_path / "out.jsonl"
    words = [str(path), "media=vision", "engine.dtype=float32", *WORDS, "--input", str(rows), "--output", str(output)]
    assert run(["inference", *words]) == 0
    assert [row["response"] for row in lines(output)] == requested(path, rows, Vision())


def test_rows_that_were_held_out_are_answered_and_scored(model, rows, tmp_path):
    recipe = {
        "model": {"path": str(model("gemma3")), "compile": False},
        "data": {"sources": [{"name": "file", "path": str(rows)}], "media": "vision"},
        "algorithm": "sft",
        "train": {"max_steps": 1, "batch_size": 1, "learning_rate": 1e-3, "precision": "fp32"},
        "output": str(tmp_path / "run"),
    }
    execute(load_recipe(recipe))
    assert run(["predict", str(tmp_path / "run"), "rows=all", "engine.dtype=float32", *WORDS]) == 0
    found = lines(tmp_path / "run" / "predict" / "generated_predictions.jsonl")
    assert [row["predict"] for row in found] == requested(tmp_path / "run", rows)
    assert [row["label"] for row in found] == [row["messages"][-1]["content"] for row in ROWS]


def test_images_of_rows_stand_where_training_has_them(tmp_path):
    def contents(row):
        return [message["content"] for message in asked(row, tmp_path)["messages"]]

    image = {"type": "image", "image": OnDisk("a.png", tmp_path)}
    text = {"type": "text", "text": "b"}
    assert contents({"messages": [{"role": "user", "content": "b"}], "images": ["a.png"]}) == [[image, text]]
    assert contents({"messages": [{"role": "user", "content": [{**image, "image": "a.png"}, text]}]}) == [[image, text]]
    assert contents({"instruction": "b<image>", "images": ["a.png"]}) == [[text, image]]
    assert contents({"messages": [{"role": "user", "content": "b<image>"}]}) == ["b<image>"]
    for wrong in ({"prompt": "b"}, {"messages": [{"role": "user", "content": "<image><image>"}]}):
        with pytest.raises(ValueError, match="images"):
            asked({**wrong, "images": ["a.png"]}, tmp_path)


def test_an_image_is_shown_before_what_is_said_next(model, rows):
    engine = engine_of(model("llava"))
    session = Session(engine, replace(GREEDY, logprobs=None))

    async def talk():
        async def said(text):
            return "".join([delta.content async for delta in session.say(text)])

        with pytest.raises(GymError, match="no image"):
            await session.show("none.png")
        await session.show(str(rows.parent / "red.png"))
        first = await said("What is it?")
        count = session.spent.usage.prompt_tokens
        again = await said(session.undo())
        assert (again, session.spent.usage.prompt_tokens, session.images) == (first, count, [])
        await session.show(str(rows.parent / "blue.jpg"))
        session.reset()
        await said("What is it?")
        assert session.spent.usage.prompt_tokens < count
        await engine.close(1.0)

    asyncio.run(talk())


def test_a_model_of_text_is_shown_none(model, rows):
    engine = engine_of(model("llava"), media=None)
    with pytest.raises(GymError, match="no images are read"):
        asyncio.run(Session(engine, GREEDY).show(str(rows.parent / "red.png")))
    answered(engine)
