"""What transformers makes of rows with images, and an engine that is asked the same."""

from __future__ import annotations

import asyncio
from base64 import b64encode

from gym_data.rows import Named
from gym_serve.contract import Limits, ModelSource, Sampling
from gym_serve.local.config import Local
from gym_vision import Vision
from gym_vision.media_reader import ProcessorMedia

NEW = 8
GREEDY = Sampling(max_tokens=NEW, temperature=0.0, ignore_eos=True, logprobs=1)


def reference(path, rows, row, prompt=False, media=None):
    """Return the inputs that transformers makes of a row, or of a `prompt` to go on with, by the processor's own call."""
    reader = ProcessorMedia(media or Vision(), path)
    processor = reader.processor
    images = [reader.opened(reader.found(Named("image", name), rows.parent)) for name in row["images"]]
    names = iter(images)
    messages = [{"role": each["role"], "content": parts_of(each["content"], names)} for each in row["messages"]]
    text = processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    return processor(text=[text], images=images or None, return_tensors="pt", add_special_tokens=False)


def parts_of(content, images):
    first, *others = content.split("<image>")
    parts = [{"type": "text", "text": first}] if first else []
    for text in others:
        parts += [{"type": "image"}, *([{"type": "text", "text": text}] if text else [])]
    return parts


def data_url(folder, name):
    return f"data:image/{name[-3:]};base64,{b64encode((folder / name).read_bytes()).decode()}"


def messages_of(row, image):
    """Return the messages of a row up to its last answer, with what `image` makes of the names of its images."""
    names = iter(row["images"])
    found = []
    for message in row["messages"][:-1]:
        first, *others = message["content"].split("<image>")
        parts = [{"type": "text", "text": first}] if first else []
        for text in others:
            parts += [{"type": "image", "image": image(next(names))}, *([{"type": "text", "text": text}] * bool(text))]
        found.append({**message, "content": parts if others else message["content"]})
    return found


def engine_of(path, **options):
    source = ModelSource("it", str(path), media=options.pop("media", Vision()))
    return Local(dtype="float32").build(artifacts=[source], limits=Limits(**options))


def answered(engine, *requests):
    """Return tokens of replies that are asked for at the same time."""

    async def reply(request):
        pieces = [piece async for piece in engine.submit(request)]
        return [token for piece in pieces for token in piece.tokens], pieces

    async def every():
        try:
            return await asyncio.gather(*map(reply, requests))
        finally:
            await engine.close(1.0)

    return asyncio.run(every())
