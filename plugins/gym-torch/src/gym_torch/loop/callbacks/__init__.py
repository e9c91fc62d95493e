"""What watches every run: progress on the screen, metrics and plots on disk, a model card."""

from __future__ import annotations

from gym_core import Run
from gym_optim.promises import promised
from gym_torch.config import torch_algorithm
from gym_torch.loop.callbacks.llamafactory import LlamaFactoryFiles
from gym_torch.loop.callbacks.loss_plot import Curves
from gym_torch.loop.callbacks.metrics_jsonl import Metrics
from gym_torch.loop.callbacks.model_card import ModelCard
from gym_torch.loop.callbacks.progress_bar import ProgressBar
from gym_torch.loop.prepared_data import Prepared, described
from gym_torch.model.loading import LoadedModel
from gym_torch.observer import Observer


def observers_of(run: Run, model: LoadedModel, data: Prepared) -> list[Observer]:
    """Return what watches a run: what watches every one, and the callbacks of its recipe."""
    output, algorithm = run.output, torch_algorithm(run.recipe)
    measure = algorithm.measure
    plot = (
        [Curves(output, ["loss", measure, algorithm.shown(), *algorithm.evaluation_metrics()])]
        if run.recipe.train.plot
        else []
    )
    card = ModelCard(run, model.name, {"samples": described(run.recipe, data), "fingerprint": data.fingerprint})
    logs = [Metrics(output / "metrics.jsonl"), LlamaFactoryFiles(output, measure)]
    own = [*logs, *plot, card, ProgressBar(algorithm.shown(), measure)]
    chosen = [promised(each.build(run=run), Observer, each, "callbacks") for each in run.recipe.callbacks]
    return [*own, *chosen]
