"""A node of federated rounds: `clientapp = "gym_deltasoup.flower.client:app"`, with a recipe of its own in `--node-config`.

What is trained, and on which data, is the node's to say: of the server come weights alone, of the form of the folder `start`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from gym_core.execution import execute
from gym_core.files import expanded
from gym_core.recipe import load_recipe
from gym_deltasoup.flower.records import arrays_of, kind_of, write
from gym_deltasoup.flower.strategy import ARRAYS

BEGINS = {"model": "model", "adapter": "adapter.adapter_name_or_path"}  #: key of a recipe that names where it begins

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Reply to weights with what training made of them."""
    start, recipe = (expanded(str(context.node_config[name])) for name in ("start", "recipe"))
    received, config = message.content.array_records[ARRAYS], message.content.config_records["config"]
    arrays = trained(received, int(str(config["server-round"])), start, recipe)
    return Message(content=RecordDict({ARRAYS: arrays, "metrics": MetricRecord({})}), reply_to=message)


def trained(received: ArrayRecord, number: int, start: Path, recipe: Path) -> ArrayRecord:
    """Train weights of the form of a folder by a recipe, with a seed of the round, and return what they became.

    Raises GymError where they are of another form, or become of one, and what the run of the recipe raises.
    """
    with TemporaryDirectory(prefix="gym-round-") as folder:
        begun = write(received, start, Path(folder) / "begun")
        seed = load_recipe(recipe).train.seed + number
        changes = (f"{BEGINS[kind_of(start)]}={begun}", f"train.seed={seed}", f"output={folder}/run")
        found = arrays_of(execute(load_recipe(recipe, changes)).artifact.path)
        write(found, start, Path(folder) / "checked")  # the server would refuse it
        return found
