"""MLflow, by its client: nothing global is set."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from gym_track.config import MLflow
from gym_track.writer import Start

AT_ONCE = 100  #: parameters of a request
LONGEST = 500  #: characters of a value


def opened(config: MLflow, start: Start) -> Experiment:
    """Return what logs to a run of MLflow, the one from before where there is one."""
    import logging

    from mlflow import MlflowClient
    from mlflow.entities import Param

    uri = config.uri
    if uri is None:
        (start.output / "mlflow").mkdir(exist_ok=True)
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # of tables that it creates
        uri = f"sqlite:///{start.output / 'mlflow' / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    if start.id:
        client.update_run(start.id, status="RUNNING")
        return Experiment(client, start.id)
    known = client.get_experiment_by_name(config.experiment)
    place = known.experiment_id if known else client.create_experiment(config.experiment)
    id = client.create_run(place, run_name=start.name).info.run_id
    settings = [Param(_named(key), str(value)[:LONGEST]) for key, value in start.settings.items()]
    for begin in range(0, len(settings), AT_ONCE):
        client.log_batch(id, params=settings[begin : begin + AT_ONCE])
    return Experiment(client, id)


class Experiment:
    """Logs to a run."""

    def __init__(self, client: Any, id: str) -> None:
        """Log by a client."""
        self._client, self.id = client, id

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Log figures of a step in one request."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_named(name), value, now, step) for name, value in figures.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def close(self, finished: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


def _named(key: str) -> str:
    """Return a name of letters that MLflow takes: an error about one would end the tracking."""
    return re.sub(r"[^\w\-. :/]", "_", re.sub(r"\[(\d+)\]", r".\1", key))
