"""Official clients, unmodified: at the engine of a stranger, which refuses by name what it does not do, and at the local one."""

from __future__ import annotations

import os

import pytest
from api_server import served
from conformance import CASES, PAGE, At, outcome, written
from parrot import Parrot, ParrotEngine

from gym_serve import Limits, ModelSource

BEYOND = (
    "tool calls, required",
    "tool calls, one that is named",
    "JSON schema",
    "choice or pattern (`structured_outputs`)",
    "JSON object",
    "`min_tokens`, `bad_words`, `include_stop_str_in_output`",
    "scores of a prompt (`echo`, `max_tokens` 0)",
)  #: of the stranger's engine
PAIRS = [(feature, client) for feature, clients in CASES.items() for client in clients]


@pytest.fixture(scope="module")
def stranger():
    with served(ParrotEngine(Parrot(), [ModelSource("parrot", "nowhere")], Limits())) as server:
        yield At(server.url, "parrot")


@pytest.mark.parametrize(("feature", "client"), PAIRS)
def test_at_the_engine_of_a_stranger(stranger, feature, client):
    assert outcome(CASES[feature][client], stranger) == ("400" if feature in BEYOND else "yes")


@pytest.fixture(scope="module")
def local():
    from gym_serve.local.config import Local

    engine = Local().build(artifacts=[ModelSource("tiny", "tiny")], limits=Limits(max_batch=8))
    with served(engine) as server:
        yield At(server.url, "tiny")


def test_the_table_of_the_page_says_what_is_found_at_the_local_engine(local):
    found = written(local)
    if "GYM_WRITE" in os.environ:
        PAGE.write_text(found, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == found, "run it again with GYM_WRITE=1"
