"""A node of federated rounds: `clientapp = "gym_deltasoup.flower.client:app"`, with a recipe of its own in `--node-config`.

What is trained, and on which data, is the node's to say: of the server come weights alone, of the form of the folder `start`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from gym_core.recipe import load_recipe
from gym_core.run import execute
from gym_deltasoup.flower.records import arrays_of, kind_of, write
from gym_deltasoup.flower.strategy import ARRAYS

BEGINS = {"model": "model", "adapter": "adapter.adapter_name_or_path"}  #: key of a recipe that names where it begins

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the weights of a message by the recipe of this node, with a seed of the round, and reply with what they became."""
    start, recipe = (Path(str(context.node_config[name])).expanduser() for name in ("start", "recipe"))
    received, config = message.content.array_records[ARRAYS], message.content.config_records["config"]
    with TemporaryDirectory(prefix="gym-round-") as folder:
        begun = write(received, start, Path(folder) / "begun")
        seed = load_recipe(recipe).train.seed + int(config["server-round"])  # type: ignore[arg-type]
        changes = (f"{BEGINS[kind_of(start)]}={begun}", f"train.seed={seed}", f"output={folder}/run")
        made = execute(load_recipe(recipe, changes)).artifact
        arrays = arrays_of(made.path)
    return Message(content=RecordDict({ARRAYS: arrays, "metrics": MetricRecord({})}), reply_to=message)
