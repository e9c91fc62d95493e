"""Tokens: who may ask, and which models. A model that a token does not name is not there for it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_core import GymError
from gym_core.yamlfile import read_yaml
from gym_serve.names import Asked, asked

SHORTEST = 16  #: characters of a token that nobody guesses


@dataclass(frozen=True)
class Access:
    """Which models may be used: `base`, `base@user_1`, `base@*` for all its tenants, `*` for everything."""

    patterns: tuple[str, ...] = ("*",)
    owner: str = field(default="", compare=False)
    """Tells tokens apart: what is kept of a prompt serves the same one alone."""

    def allows(self, name: Asked) -> bool:
        """Whether this model may be used."""
        if name.tenant is None:
            return bool({"*", name.model} & {*self.patterns})
        return bool({"*", f"{name.model}@*", str(name)} & {*self.patterns})


EVERYTHING = Access()


class Tokens:
    """The tokens that are known, by what they hash to. Comparing takes the same time for every token that is given."""

    def __init__(self, known: Sequence[tuple[bytes, Access]]) -> None:
        """Hold the SHA-256 of each token with what it opens."""
        self._known = list(known)

    @classmethod
    def of(cls, token: str) -> Tokens:
        """Return the one token that opens everything."""
        return cls([(digest(token), EVERYTHING)])

    def access(self, authorization: str, api_key: str = "") -> Access | None:
        """Return what the headers `Authorization` and `x-api-key` open; None where they hold no token that is known."""
        scheme, _, given = authorization.partition(" ")
        presented = digest(given.strip() if scheme.lower() == "bearer" else api_key)
        found = None
        for known, access in self._known:  # all of them, whichever it is
            if hmac.compare_digest(known, presented):
                found = access
        return found


def digest(token: str) -> bytes:
    """Return what is compared of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def read_tokens(path: Path) -> Tokens:
    """Read a file of tokens. Raises GymError with the place of what is wrong.

    It is a list, `tokens`: each has `token`, or `sha256` for a file that tells nobody, and `models`.
    """
    data = read_yaml(path).data
    rows = data.get("tokens") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not rows:
        raise GymError(
            "holds no list of tokens",
            where=str(path),
            key="tokens",
            fix="write `tokens: [{token: ..., models: [...]}]`",
        )
    return Tokens([_read(path, number, row) for number, row in enumerate(rows)])


def _read(path: Path, number: int, row: Any) -> tuple[bytes, Access]:
    key = f"tokens[{number}]"
    if not isinstance(row, dict) or (strange := row.keys() - {"token", "sha256", "models", "name"}):
        why = f"has the unknown key `{min(map(str, strange))}`" if isinstance(row, dict) else "is no mapping"
        raise GymError(why, where=str(path), key=key, fix="give it `token` or `sha256`, and `models`")
    models = row.get("models")
    if not isinstance(models, list) or not models or not all(isinstance(each, str) and _fits(each) for each in models):
        raise GymError(
            "names no models", where=str(path), key=f"{key}.models", fix="list `base`, `base@user`, `base@*` or `*`"
        )
    text, hashed = row.get("token"), row.get("sha256")
    if isinstance(text, str) and hashed is None and len(text) >= SHORTEST:
        return digest(text), Access(tuple(models), digest(text).hex())
    if isinstance(hashed, str) and text is None and len(hashed) == 64:
        try:
            return bytes.fromhex(hashed), Access(tuple(models), hashed.lower())
        except ValueError:
            pass
    why = f"needs `token` of {SHORTEST} characters or more, or `sha256` of 64 hexadecimal digits"
    raise GymError(
        why, where=str(path), key=key, fix="make one: python -c 'import secrets; print(secrets.token_urlsafe())'"
    )


def _fits(pattern: str) -> bool:
    return pattern == "*" or asked(pattern.removesuffix("@*")) is not None
