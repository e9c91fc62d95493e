"""What the server of federated rounds reads. No torch and no flwr is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, SerializeAsAny

from gym_core.component import Config, Slot
from gym_deltasoup.config.mixing import ByzantineRobust
from gym_deltasoup.config.options_file import read_options
from gym_deltasoup.kinds import Merger, require


class FederatedRounds(Config):
    """Rounds in which nodes of Flower train, and a merger combines what comes back."""

    start: Annotated[str, Field(min_length=1)]
    """Folder of the model or the LoRA adapter that all begin with; each node has a copy of it."""
    output: Annotated[str, Field(min_length=1)]
    """Folder that gets the result of each round, `round-1` and so on, and `rounds.jsonl`."""
    merger: Annotated[SerializeAsAny[Merger], Slot("mergers", default="byzantine_robust")] = ByzantineRobust()
    """What combines the contributions of a round."""
    rounds: PositiveInt = 3
    """How many rounds there are."""
    hostile: Annotated[int | None, Field(ge=0)] = None
    """How many contributions of a round may hold anything; by default `byzantine_threshold` of them."""
    byzantine_threshold: Annotated[float, Field(ge=0, lt=0.5)] = 0.3
    """Share of hostile contributions that is expected where `hostile` is not given, rounded down."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the nodes that are asked in a round."""
    min_nodes: Annotated[int, Field(ge=1)] = 2
    """Nodes to wait for, and sound contributions without which a round changes nothing."""
    timeout: PositiveFloat = 3600.0
    """Seconds that a round waits for replies."""
    evaluate: Annotated[str | None, Field(pattern=r".:.")] = None
    """`package.module:function` that is given a `gym_core.Artifact` and returns how good it is, for mergers that ask."""


def load_rounds(path: Path) -> FederatedRounds:
    """Read a file. Raises RecipeError with every problem, each with its line, and for more hostile nodes than are tolerated."""
    found = read_options(FederatedRounds, path)
    if found.hostile:
        require(found.merger, found.min_nodes, found.hostile)  # else it is an error when the nodes have trained
    return found
