"""`/v1/embeddings`: a vector for each text."""

from __future__ import annotations

import base64
import struct
from typing import Annotated, Any, Literal

from pydantic import Field

from gym_serve.api.auth import Access
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.fields import Ignored, Token
from gym_serve.api.service import Service, asking
from gym_serve.contract import Request, Text


class Embeddings(Ignored):
    """Texts to embed."""

    model: Annotated[str, Field(max_length=512)]
    input: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[list[Token]], Field(min_length=1)]
    )
    dimensions: Annotated[int, Field(ge=1, le=2**20)] | None = None
    encoding_format: Literal["float", "base64"] = "float"

    def texts(self) -> list[Text]:
        """Return the texts, or the tokens of each."""
        one = isinstance(self.input, str) or isinstance(self.input[0], int)
        return [self.input] if one else list(self.input)  # type: ignore[list-item, arg-type]


async def embeddings(service: Service, body: Embeddings, access: Access) -> dict[str, Any]:
    """Return a vector of length 1 for each text, as numbers or as the bytes of 32-bit floats."""
    model, asked = service.model(body.model, access)
    if "embed" not in model.tasks or "embed" not in service.engine.supports:
        raise HTTPProblem(400, "this model makes no embeddings", key="model")
    texts = body.texts()
    if not all(texts):
        raise HTTPProblem(400, "a text is empty", key="input")
    async with asking(service, asked):
        vectors = await service.engine.embed(asked.model, texts, body.dimensions, asked.tenant, asked.owner)
        counts = [
            await service.engine.count(Request(asked.model, asked.tenant, prompt=text, owner=asked.owner))
            if isinstance(text, str)
            else len(text)
            for text in texts
        ]
    written = [
        base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        if body.encoding_format == "base64"
        else list(vector)
        for vector in vectors
    ]
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(written)]
    usage = {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
    return {"object": "list", "data": data, "model": body.model, "usage": usage}
