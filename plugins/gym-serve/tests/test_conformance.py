"""Official clients, unmodified: at the engine of a stranger, which refuses by name what it does not do, and at the local one."""

from __future__ import annotations

import pytest
from api_server import served
from conformance import CASES, At, outcome
from parrot import Parrot, ParrotEngine

from gym_serve import Limits, ModelSource

BEYOND = (
    "tool calls, required",
    "tool calls, one that is named",
    "JSON schema",
    "JSON object",
)  #: of the stranger's engine
PAIRS = [(feature, client) for feature, clients in CASES.items() for client in clients]


@pytest.fixture(scope="module")
def stranger():
    with served(ParrotEngine(Parrot(), [ModelSource("parrot", "nowhere")], Limits())) as server:
        yield At(server.url, "parrot")


@pytest.mark.parametrize(("feature", "client"), PAIRS)
def test_at_the_engine_of_a_stranger(stranger, feature, client):
    assert outcome(CASES[feature][client], stranger) == ("400" if feature in BEYOND else "yes")
