"""The name of a chat template: what trained a model is what serves it."""

from __future__ import annotations

import hashlib


def template_hash(template: str) -> str:
    """Return the SHA-256 of the text of a template, as hexadecimal digits."""
    return hashlib.sha256(template.encode("utf-8")).hexdigest()
