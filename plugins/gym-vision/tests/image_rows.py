"""Rows with images, which the fixture `rows` writes beside their images."""

from __future__ import annotations

ROWS = [
    {
        "messages": [
            {"role": "user", "content": "<image>What is it?"},
            {"role": "assistant", "content": "A red field."},
            {"role": "user", "content": "And this: <image>?"},
            {"role": "assistant", "content": "A blue one."},
        ],
        "images": ["red.png", "blue.jpg"],
    },
    {
        "messages": [
            {"role": "user", "content": "Compare <image> and <image>."},
            {"role": "assistant", "content": "Alike."},
        ],
        "images": ["blue.jpg", "noise.png"],
    },
    {
        "messages": [{"role": "user", "content": "No image here."}, {"role": "assistant", "content": "None."}],
        "images": [],
    },
]
