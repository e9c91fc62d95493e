"""The options of `gym api`: whom it listens to, and how much anybody may ask of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import ByteSize, Field

from gym_serve.sampling_bounds import RepetitionPenalty, Temperature, TopP
from gym_serve.template_options import TemplateSettings

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ApiOptions(TemplateSettings):
    """Whom the server listens to, and how much anybody may ask of it."""

    host: str = "127.0.0.1"
    """Address to listen on. Elsewhere than on this machine alone, a token is required."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    tokens: Path | None = None
    """YAML file of tokens, each with the models that it may use. Without it, one is made and shown where one is required."""
    token_required: bool = False
    """Whether also clients on this machine need a token."""
    adapter_folders: tuple[Path, ...] = ()
    """Folders under which a client whose token is for everything may have adapters loaded while models are served."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may call this server, beside its address and those of this machine."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may ask from a browser, such as `https://example.org`."""
    max_concurrent: Positive | None = None
    """Most replies in work or waiting; one more is told to come back (429). By default `max_batch` and `queue` together."""
    max_connections: Positive = 1024
    """Most open connections; one more is closed."""
    max_body_bytes: Annotated[ByteSize, Field(ge=1)] = ByteSize(2**21)
    """Largest body of a request."""
    max_messages: Positive = 2048
    """Most messages of a conversation, and most texts, documents or tools of a request."""
    max_n: Positive = 16
    """Most replies that one request asks for."""
    max_output_tokens: Positive | None = None
    """Most tokens that a request may ask for; by default what the context leaves."""
    header_seconds: Seconds = 10.0
    """Time within which a client sends the head of a request."""
    body_seconds: Seconds = 30.0
    """Time within which it sends the body."""
    write_seconds: Seconds = 30.0
    """Time within which it takes a piece of the reply; then it counts as gone."""
    request_seconds: Seconds = 600.0
    """Time within which a reply ends, whatever it has by then."""
    shutdown_seconds: Seconds = 60.0
    """Time that replies under way are given when the server is stopped."""
    tenant: str | None = None
    """Adapter or variant that the plain name of the first model means."""
    system: str = ""
    """What conversations begin with that have no such message."""
    max_tokens: Positive | None = None
    """Most tokens of replies to requests that name no number; by default what the context leaves."""
    temperature: Temperature = 1.0
    """Of requests that name none; 0 takes the likeliest token each time."""
    top_p: TopP = 1.0
    """Of requests that name none."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Of requests that name none; 0 is all."""
    repetition_penalty: RepetitionPenalty = 1.0
    """Of requests that name none."""
    log_prompts: bool = False
    """Whether requests and replies are written to the log. They are private; by default nobody sees them."""

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK or self.host.startswith("127.")
