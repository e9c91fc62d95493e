"""The trackers, and what each is told. A package that is missing is said before anything is loaded."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gym_core import Callback
from gym_core.errors import PluginError


class Tracker(Callback):
    """Base of trackers: subclass it, and point at what writes. A tracker that fails is left out, and the run goes on."""

    target: ClassVar[str] = "gym_track.tracker_observer:Following"
    writer: ClassVar[str] = ""
    """`module:function` that opens a `gym_track.writer.Writer`, called with this configuration and a `gym_track.writer.Start`."""
    module: ClassVar[str] = ""
    """Module that it imports."""
    install: ClassVar[str] = ""
    """What pip installs for that."""

    run: str | None = None
    """Name of the run there; by default that of its output directory."""
    patience: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that the end of the run waits for what is still to be sent."""

    def check(self) -> None:
        """Raise PluginError where its package is not installed."""
        if self.module and find_spec(self.module) is None:
            raise PluginError(
                f"needs {self.module}, which is not installed", key="callbacks", fix=f"pip install {self.install}"
            )


class TensorBoard(Tracker):
    """Event files, for `tensorboard --logdir runs`."""

    writer: ClassVar[str] = "gym_track.writers.tensorboard:opened"
    module: ClassVar[str] = "tensorboardX"
    install: ClassVar[str] = "'gym-track[tensorboard]'"

    folder: str | None = None
    """Where they are written; by default `tensorboard` in the output directory."""


class WandB(Tracker):
    """Weights & Biases. Files lie in `wandb` of the output directory; `wandb sync` uploads them."""

    writer: ClassVar[str] = "gym_track.writers.wandb:opened"
    module: ClassVar[str] = "wandb"
    install: ClassVar[str] = "'gym-track[wandb]'"

    project: str | None = None
    """Project that the run belongs to; by default $WANDB_PROJECT, else `gym`."""
    entity: str | None = None
    """Team or user that it belongs to."""
    mode: Literal["offline", "online"] = "offline"
    """Whether it is sent at once, as the user of `wandb login`."""


class MLflow(Tracker):
    """MLflow: a data base of the run, for `mlflow ui --backend-store-uri sqlite:///RUN/mlflow/mlflow.db`, or a server."""

    writer: ClassVar[str] = "gym_track.writers.mlflow:opened"
    module: ClassVar[str] = "mlflow"
    install: ClassVar[str] = "'gym-track[mlflow]'"

    uri: str | None = None
    """Tracking server or store; by default a folder `mlflow` in the output directory."""
    experiment: str = "gym"
    """Experiment that the run belongs to."""


class SwanLab(Tracker):
    """SwanLab. Files lie in `swanlog` of the output directory; `swanlab sync` uploads them."""

    writer: ClassVar[str] = "gym_track.writers.swanlab:opened"
    module: ClassVar[str] = "swanlab"
    install: ClassVar[str] = "'gym-track[swanlab]'"

    project: str = "gym"
    """Project that the run belongs to."""
    workspace: str | None = None
    """Workspace that it belongs to."""
    mode: Literal["offline", "local", "cloud"] = "offline"
    """`cloud` sends it at once, as the user of `swanlab login`; `local` needs its dashboard."""
    folder: str | None = None
    """Where its files lie; by default `swanlog` in the output directory."""


class Trackio(Tracker):
    """Trackio: a data base in `trackio` of the output directory, for `trackio show`, or a Space on the Hub."""

    writer: ClassVar[str] = "gym_track.writers.trackio:opened"
    module: ClassVar[str] = "trackio"
    install: ClassVar[str] = "'gym-track[trackio]'"

    project: str = "gym"
    """Project that the run belongs to."""
    space_id: str | None = None
    """Space that shows it, such as `me/trackio`."""
