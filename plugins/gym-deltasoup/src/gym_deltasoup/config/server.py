"""Options of a community server. No torch is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from gym_core.component import Config
from gym_deltasoup.config.community import DeltaSoupConfig
from gym_deltasoup.config.options_file import read_options

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServerLimits(Config):
    """How much a server takes, of everybody together and of each."""

    contribution_bytes: PositiveInt = 1 << 34
    """Bytes of a contribution."""
    chunk_bytes: PositiveInt = 1 << 22
    """Bytes of a part of an upload; a part is on the disk when it is answered, and is what a broken connection loses."""
    header_bytes: PositiveInt = 1 << 24
    """Bytes of the header of a file of weights."""
    free_bytes: NonNegativeInt = 1 << 28
    """Bytes of the disk that stay free."""
    uploads: PositiveInt = 4096
    """Uploads that are under way at a time."""
    idle_seconds: PositiveFloat = 86400.0
    """Seconds after which an upload that nobody goes on with is forgotten."""
    connections: PositiveInt = 1024
    """Connections at a time; more are answered 503."""
    header_seconds: PositiveFloat = 10.0
    """Seconds in which the head of a request has to be there."""
    body_seconds: PositiveFloat = 60.0
    """Seconds in which the body of a request has to be there."""
    requests_per_second: PositiveFloat = 50.0
    """Requests of one address on average; more are answered 429, with when to come again."""
    burst: PositiveInt = 500
    """Requests of one address at once."""
    clock_seconds: PositiveFloat = 300.0
    """Seconds by which the clock of a contributor may differ."""


class SoupServerConfig(DeltaSoupConfig):
    """A community with a server."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen at; any other than that of this machine itself needs a token."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8770
    """Port to listen at; 0 takes a free one."""
    token_file: str | None = None
    """File with the word that every request has to bear (`Authorization: Bearer ...`)."""
    certificate: str | None = None
    """File of a TLS certificate; without it requests are not encrypted."""
    private_key: str | None = None
    """File of the key of that certificate."""
    enrolment: Literal["open", "invited", "proof"] = "open"
    """Who may become a member: anybody with a key, who has a code from `gym soup invite`, or one name for each proof."""
    verify_proof: Annotated[str | None, Field(pattern=r".:.")] = None
    """`package.module:function` that is given a proof and returns whose it is, or raises ValueError."""
    secure_seconds: PositiveFloat = 300.0
    """Seconds of each step of secure aggregation, after which those who did not send count as dropped out."""
    limits: ServerLimits = ServerLimits()
    """How much the server takes."""

    @model_validator(mode="after")
    def _agreed(self) -> SoupServerConfig:
        if self.host not in LOOPBACK and self.token_file is None:
            raise ValueError(f"`host` {self.host} can be reached by others: set `token_file`")
        if (self.enrolment == "proof") != (self.verify_proof is not None):
            raise ValueError("`enrolment: proof` and `verify_proof` belong together")
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("`certificate` and `private_key` belong together")
        if self.base_model is None:
            raise ValueError("a server names its `base_model`")
        return self


def load_server(path: Path | None, overrides: tuple[str, ...]) -> SoupServerConfig:
    """Read the options of a server from a file and `key=value` words. Raises RecipeError with every problem."""
    return read_options(SoupServerConfig, path, overrides)
