"""One request to a server that speaks OpenAI's chat completions, and what it replied. It knows no journal and no retries.

A key is sent as a bearer token to this server alone: redirects are not followed, and whatever the server says is read with
the key crossed out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Protocol

from gym_core.errors import GymError
from gym_rewards.http_client import HttpClient, NoReply, Reply, TooLarge, retry_after
from gym_training_free.endpoint.ledger import Charge, Usage
from gym_training_free.endpoint.local_server import NAME, LocalServer
from gym_training_free.endpoint.price import Price
from gym_training_free.endpoint.reply import ChatReply, Failed, completion
from gym_training_free.endpoint.statuses import AWAY, BETWEEN, NAMING, PASSING, refusal
from gym_training_free.endpoint.unsupported_parameter import refused_parameter
from gym_training_free.endpoint.usage import counted

LARGEST = 64 * 2**20  #: bytes of a reply
CROSSED_OUT = "[key]"
SECRET = 8  #: least letters of a key that is crossed out; shorter ones are what local servers are told, such as `EMPTY`
#: Tokens that a chat template may put around a message, and around all of them; a token has at least one byte of text.
AROUND_MESSAGE, AROUND_ALL = 32, 256

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatRequest:
    """What a model is asked, without its name."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float | None = 0.0
    top_p: float | None = 1.0
    seed: int | None = None
    tools: Sequence[Mapping[str, Any]] = ()

    def without(self, parameters: Iterable[str]) -> ChatRequest:
        """Return the same request without some of LEAVABLE."""
        left: dict[str, Any] = dict.fromkeys(parameters)
        return replace(self, **left)

    def digest(self) -> str:
        """Return a hash of everything that is asked."""
        return hashlib.sha256(json.dumps(vars(self), sort_keys=True).encode()).hexdigest()[:16]


class ChatModel(Protocol):
    """What a backend for chat builds: a model that can be asked."""

    @property
    def name(self) -> str:
        """What the server calls it."""
        ...

    @property
    def where(self) -> str:
        """Name of the server, without anything secret."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """What else shapes its answers, as plain data."""
        ...

    @property
    def concurrency(self) -> int:
        """Requests at a time."""
        ...

    @property
    def retries(self) -> int:
        """Times a request is sent again."""
        ...

    @property
    def backoff(self) -> float:
        """Seconds before the first repetition."""
        ...

    @property
    def priced(self) -> bool:
        """Whether it is known what tokens cost."""
        ...

    def most(self, request: ChatRequest) -> Charge:
        """Return the most that a request can cost."""
        ...

    def charge(self, usage: Usage) -> Charge:
        """Return what a reply cost."""
        ...

    def ask(self, request: ChatRequest) -> ChatReply:
        """Return the reply to a request. Raises Failed, and GymError where no request of this run will ever succeed."""
        ...

    def embed(self, texts: Sequence[str]) -> tuple[list[list[float]], Usage]:
        """Return a vector for each text. Raises as `ask` does."""
        ...


def described(model: ChatModel) -> dict[str, Any]:
    """Return what decides the answers of a model, as plain data; no keys."""
    return {"name": model.name, "endpoint": model.where, "options": dict(model.options)}


@dataclass(frozen=True)
class ChatEndpoint:
    """A model behind a server. Threads share it."""

    name: str
    where: str
    price: Price | None  #: None where nobody knows
    key: str = field(default="", repr=False)
    timeout: float = 600.0
    concurrency: int = 16
    retries: int = 5
    backoff: float = 1.0
    length_key: str = "max_tokens"
    options: Mapping[str, Any] = field(default_factory=dict)
    server: LocalServer | None = None  #: what serves the model, where `where` names a folder and no address

    def __post_init__(self) -> None:
        """Raise GymError for a key that no header can hold; the error does not show it."""
        if self.key and not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
            raise GymError("the API key holds white space or letters that no header can", fix="copy it again")

    @property
    def priced(self) -> bool:
        """Whether a price is known."""
        return self.price is not None

    def most(self, request: ChatRequest) -> Charge:
        """Return the most that a request can cost: a token has at least a byte, and a template puts little around."""
        text = json.dumps([request.messages, request.tools, self.options], ensure_ascii=False)
        prompt = len(text.encode("utf-8", "replace")) + AROUND_MESSAGE * len(request.messages) + AROUND_ALL
        return self.charge(Usage(prompt, request.max_tokens))

    def charge(self, usage: Usage) -> Charge:
        """Return the usage with its price."""
        return Charge(usage, self.price.of(usage) if self.price else 0.0, 1)

    def ask(self, request: ChatRequest) -> ChatReply:
        """Return the reply of `POST /chat/completions`."""
        asked = {**vars(request), "messages": list(request.messages), "model": self._called}
        asked[self.length_key] = asked.pop("max_tokens")
        given = {name: value for name, value in asked.items() if value is not None and value != ()}
        return completion(self._post("/chat/completions", {**given, **self.options}))

    def embed(self, texts: Sequence[str]) -> tuple[list[list[float]], Usage]:
        """Return the vectors of `POST /embeddings`, in order."""
        found = self._post("/embeddings", {"model": self._called, "input": list(texts), "encoding_format": "float"})
        try:
            rows = sorted(found["data"], key=lambda row: row["index"])
            vectors = [[float(value) for value in row["embedding"]] for row in rows]
        except (KeyError, TypeError, ValueError, OverflowError):
            vectors = []
        sizes = {len(vector) if all(map(isfinite, vector)) else 0 for vector in vectors}
        if len(vectors) != len(texts) or len(sizes) != 1 or 0 in sizes:
            raise Failed("replied with JSON that holds no embedding for each text", passing=True, counted=True)
        return vectors, counted(found, "prompt_tokens") or Usage(sum(len(text.encode()) for text in texts))

    @property
    def _called(self) -> str:
        return NAME if self.server else self.name

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        address = self.server.url() if self.server else self.where
        client = HttpClient(address, self.key, self.timeout, 0, 0.0, (), LARGEST)
        try:
            reply = client.send("POST", path, json.dumps(body))
        except (NoReply, TooLarge) as error:
            away = isinstance(error, NoReply)
            raise Failed(self._clean(str(error)), passing=True, counted=True, away=away) from None
        if reply.status == 200:
            try:
                return self._read(reply.body.decode("utf-8"))
            except (ValueError, RecursionError):
                raise Failed("replied with what is no JSON", passing=True, counted=True) from None
        raise self._refused(reply, body)

    def _refused(self, reply: Reply, asked: Mapping[str, Any]) -> Exception:
        said = self._said(reply.body)
        if 300 <= reply.status < 400:
            to = self._clean(reply.headers.get("Location") or "nowhere")
            return self._stop(f"redirects to {to}", "write that address as `base_url`, if you trust it with the key")
        if refused := refusal(reply.status, reply.body):
            return self._stop(f"{refused[0]} (status {reply.status}: {said!r})", refused[1])
        wait = retry_after(reply.headers.get("Retry-After"))
        parameter = refused_parameter(reply.body, asked) if reply.status in NAMING else ""
        why, status = f"status {reply.status}: {said!r}", reply.status
        passing, counted, away = status in PASSING, status in BETWEEN, status in AWAY
        return Failed(why, passing=passing, counted=counted, wait=wait, parameter=parameter, away=away)

    def _stop(self, why: str, fix: str) -> GymError:
        return GymError(f"{self.where} {why}", key="model", fix=fix)

    def _said(self, body: bytes) -> str:
        """Return the beginning of what a server says beside a status, for an error."""
        text = body.decode("utf-8", "replace")
        try:
            text = json.dumps(self._read(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            text = self._clean(text)
        return text[:200]

    def _read(self, text: str) -> Any:
        """Return what JSON says, the key crossed out in it: JSON may spell each letter as a number. Raises as `json.loads`."""
        found = json.loads(text)
        return found if len(self.key) < SECRET else json.loads(self._clean(json.dumps(found, ensure_ascii=False)))

    def _clean(self, text: str) -> str:
        """Return text in which the key is crossed out, also where it stands in JSON."""
        if len(self.key) < SECRET:
            return text
        for written in {self.key, json.dumps(self.key)[1:-1], self.key.replace("/", "\\/")}:
            text = text.replace(written, CROSSED_OUT)
        return text
