"""`/v1/score`, `/v1/rerank` and LLaMA-Factory's `/v1/score/evaluation`: what reward models and classifiers say of texts."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex
from typing import Annotated, Any

from pydantic import Field

from gym_serve.api.auth import Access
from gym_serve.api.chat_schema import ChatMessage
from gym_serve.api.errors import HTTPProblem
from gym_serve.api.fields import Body, Ignored
from gym_serve.api.service import Service, asking
from gym_serve.contract import ScoreInput

Texts = Annotated[list[str], Field(min_length=1)]
Name = Annotated[str, Field(max_length=512)]


class Score(Ignored):
    """Texts, pairs of texts, or conversations to score."""

    model: Name
    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    input: str | Texts | None = None
    messages: list[list[ChatMessage]] | None = None

    def inputs(self) -> list[ScoreInput]:
        """Return what is scored. Raises HTTPProblem where it is none of the forms."""
        given = [name for name in ("text_1", "input", "messages") if getattr(self, name) is not None]
        if len(given) != 1 or (self.text_2 is not None) != (given == ["text_1"]):
            raise HTTPProblem(400, "give `input`, `messages`, or `text_1` with `text_2`", key="input")
        if self.messages is not None:
            if any(message.images for conversation in self.messages for message in conversation):
                raise HTTPProblem(400, "images are not scored", key="messages")
            return [[message.plain() for message in conversation] for conversation in self.messages]
        if self.input is not None:
            return list(_list(self.input))
        first, second = _list(self.text_1 or []), _list(self.text_2 or [])
        first = first * len(second) if len(first) == 1 else first
        if len(first) != len(second):
            raise HTTPProblem(400, f"has {len(second)} texts for {len(first)}", key="text_2")
        return list(zip(first, second, strict=True))


class Document(Body):
    """A document, as an object."""

    text: str


class Rerank(Ignored):
    """Documents to order by how well they answer."""

    model: Name
    query: str
    documents: Annotated[list[str | Document], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = True


class ScoreEvaluation(Ignored):
    """Texts to score, as LLaMA-Factory's clients ask."""

    model: Name
    messages: Texts
    max_length: Annotated[int, Field(ge=1)] | None = None


async def score(service: Service, body: Score, access: Access) -> dict[str, Any]:
    """Return a score for each input, higher being better."""
    values = await _scores(service, body.model, body.inputs(), access)
    data = [{"object": "score", "index": index, "score": value} for index, value in enumerate(values)]
    return {"id": f"score-{token_hex(12)}", "object": "list", "model": body.model, "data": data}


async def rerank(service: Service, body: Rerank, access: Access) -> dict[str, Any]:
    """Return the documents with their scores, best first; of equal ones, the earlier first."""
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    values = await _scores(service, body.model, [(body.query, text) for text in texts], access)
    order = sorted(range(len(texts)), key=lambda index: (-values[index], index))[: body.top_n]
    results = [
        {"index": index, "relevance_score": values[index]}
        | ({"document": {"text": texts[index]}} if body.return_documents else {})
        for index in order
    ]
    return {"id": f"rerank-{token_hex(12)}", "model": body.model, "results": results}


async def score_evaluation(service: Service, body: ScoreEvaluation, access: Access) -> dict[str, Any]:
    """Return a score for each text, in LLaMA-Factory's form."""
    if body.max_length is not None:
        raise HTTPProblem(400, "texts are not cut: leave `max_length` out", key="max_length")
    values = await _scores(service, body.model, body.messages, access)
    return {"id": f"scoreval-{token_hex(12)}", "object": "score.evaluation", "model": body.model, "scores": values}


async def _scores(service: Service, name: str, inputs: Sequence[ScoreInput], access: Access) -> list[float]:
    model, asked = service.model(name, access)
    if "score" not in model.tasks or "score" not in service.engine.supports:
        raise HTTPProblem(400, "this model writes texts and scores none", key="model")
    if len(inputs) > service.options.max_messages:
        raise HTTPProblem(400, f"{len(inputs)} texts are more than {service.options.max_messages}", key="input")
    async with asking(service, asked):
        return await service.engine.score(asked.model, inputs, asked.tenant, asked.owner)


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
