"""Who asks: what an engine keeps of a prompt serves the same token alone."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

from api_server import served
from parrot import Parrot

from gym_serve.api.auth import Access, Tokens, digest
from gym_serve.contract import Limits, ModelSource


def test_each_token_is_an_owner_of_its_own() -> None:
    tokens = {"a" * 20: Access(("*",), "ann"), "b" * 20: Access(("*",), "ben")}
    engine = Parrot().build(artifacts=[ModelSource("parrot", "")], limits=Limits())
    with served(engine, Tokens([(digest(token), access) for token, access in tokens.items()])) as server:
        for token in tokens:
            body = json.dumps({"model": "parrot", "messages": [{"role": "user", "content": "one"}]}).encode()
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
            urlopen(Request(f"{server.url}/v1/chat/completions", body, headers), timeout=20).read()
    assert [request.owner for request in engine.seen] == ["ann", "ben"]
