"""The server of federated rounds: `serverapp = "gym_deltasoup.flower.server:app"`, with `rounds` naming a file of them."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from gym_deltasoup.config.flower import load_rounds
from gym_deltasoup.flower.strategy import MergerStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the rounds of the file that the run configuration names."""
    MergerStrategy(load_rounds(Path(str(context.run_config["rounds"])))).run(grid)
