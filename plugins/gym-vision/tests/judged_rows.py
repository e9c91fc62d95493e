"""Rows of preference and of prompts with images, which lie beside those of `image_rows`, as other tools have them."""

from __future__ import annotations

ASK = "Which is it?"
GOOD, BAD = "A red field.", "Nothing."
IMAGES = ("red.png", "blue.jpg", "noise.png")


def said(text):
    return [{"role": "assistant", "content": [{"type": "text", "text": text}]}]


def asked(*images):
    """Return a message with images in its content, where it has places for them."""
    return [{"role": "user", "content": [*images, {"type": "text", "text": ASK}]}]


def url(name):
    return {"type": "image_url", "image_url": {"url": name}}


SIDES = {"chosen": said(GOOD), "rejected": said(BAD)}
#: One pair in many ways; the image is the first of `IMAGES`.
PAIRS = {
    "trl": {"prompt": asked({"type": "image"}), **SIDES, "images": [IMAGES[0]]},
    "trl, no place": {"prompt": [{"role": "user", "content": ASK}], **SIDES, "images": [IMAGES[0]]},
    "trl, whole conversations": {
        "chosen": asked({"type": "image"}) + said(GOOD),
        "rejected": asked({"type": "image"}) + said(BAD),
        "images": [IMAGES[0]],
    },
    "openai": {"prompt": asked(url(IMAGES[0])), **SIDES},
    "texts": {"prompt": ASK, "chosen": GOOD, "rejected": BAD, "image": IMAGES[0]},
    "llamafactory": {
        "conversations": [{"from": "human", "value": "<image>" + ASK}],
        "chosen": {"from": "gpt", "value": GOOD},
        "rejected": {"from": "gpt", "value": BAD},
        "images": [IMAGES[0]],
    },
    "transcripts": {
        "chosen": f"\n\nHuman: {ASK}\n\nAssistant: {GOOD}",
        "rejected": f"\n\nHuman: {ASK}\n\nAssistant: {BAD}",
        "images": [IMAGES[0]],
    },
}
#: Rows to train on, one for each image.
LEARNT = {
    "preference": [{**PAIRS["trl"], "images": [name]} for name in IMAGES],
    "feedback": [
        {"prompt": asked({"type": "image"}), "completion": said(text), "label": text == GOOD, "images": [name]}
        for name, text in zip(IMAGES, (GOOD, BAD, GOOD), strict=True)
    ],
    "stepwise": [
        {"prompt": ASK, "completions": ["Look.", text], "labels": [True, text == GOOD], "images": [name]}
        for name, text in zip(IMAGES, (GOOD, BAD, GOOD), strict=True)
    ],
    "prompt": [{"prompt": [{"role": "user", "content": ASK}], "image": name, "kind": name[:3]} for name in IMAGES],
}


def conversation(name, answer):
    """Return what `asked_images.reference` takes of an answer to the question about an image."""
    messages = [{"role": "user", "content": "<image>" + ASK}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "images": [name]}
