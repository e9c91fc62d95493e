"""Names of models and of tenants: whoever is listed can be asked, and with a token those alone that it names."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import pytest
from api_server import served
from parrot import Parrot, ParrotEngine

from gym_bitdelta.store.user_id import check_user_id
from gym_serve import Limits, ModelSource
from gym_serve.api.auth import Access, Tokens, digest
from gym_serve.names import Asked, asked

USERS = ("ann@example.com", "cleo+x", "a..b", "Zoë M.", "-x", "bob")
SAID = {"role": "user", "content": "a"}
TOKEN = "a-good-long-token"


class Crowd(ParrotEngine):
    """Users who are called as a store lets them."""

    def tenants(self, model: str) -> Sequence[str]:
        return USERS


def ask(server: Any, path: str, **body: Any) -> Any:
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode() if body else None, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code


def test_every_user_who_is_listed_can_be_asked() -> None:
    access = Access(("parrot@ann@example.com", "parrot@cleo+x"))
    for tokens, allowed in ((None, set(USERS)), (Tokens([(digest(TOKEN), access)]), set(USERS[:2]))):
        with served(Crowd(Parrot(), [ModelSource("parrot", "nowhere")], Limits()), tokens) as server:
            names = [each["id"] for each in ask(server, "/v1/models")["data"]]
            assert {name.partition("@")[2] for name in names} - {""} == allowed
            for user in USERS:
                found = ask(server, "/v1/messages/count_tokens", model=f"parrot@{user}", messages=[SAID])
                assert found == ({"input_tokens": 1} if user in allowed else 404), user


@pytest.mark.parametrize("user", USERS)
def test_a_name_is_read_as_it_is_written(user: str) -> None:
    assert check_user_id(user) == user
    found = asked(f"base@{user}")
    assert found == Asked("base", user) and str(found) == f"base@{user}"


@pytest.mark.parametrize(
    "name", ["base@", "@ann", "base@../ann", "base@a\\b", "base@..", "base@a\0", "base@" + "a" * 257]
)
def test_what_no_user_is_called(name: str) -> None:
    assert asked(name) is None
