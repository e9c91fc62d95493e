"""`trials.png`: the value of each trial, the best so far, and what mattered."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

from optuna.trial import TrialState

from gym_core.files import replacing
from gym_tune.search import Search


def draw(search: Search, importance: Mapping[str, float], path: Path) -> None:
    """Write the plot to a PNG file, in one piece."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    trials = search.trials()
    figure = Figure(figsize=(11 if importance else 7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes, *beside = figure.subplots(
        1, 2 if importance else 1, squeeze=False, width_ratios=[2, 1] if importance else None
    )[0]
    axes.set(xlabel="trial", ylabel=search.metric.name)
    done = [each for each in trials if each.state == TrialState.COMPLETE and each.value is not None]
    pruned = [each for each in trials if each.state == TrialState.PRUNED and each.value is not None]
    failed = [each.number for each in trials if each.state == TrialState.FAIL]
    if done:
        numbers, values = [each.number for each in done], [each.value or 0.0 for each in done]
        best = list(accumulate(values, min if search.metric.direction == "minimize" else max))
        axes.scatter(numbers, values, color="tab:blue", label="came to its end", zorder=3)
        axes.step([*numbers, len(trials) - 1], [*best, best[-1]], where="post", color="tab:orange", label="best so far")
        if search.metric.direction == "minimize" and min(values) > 0 and max(values) > 20 * min(values):
            axes.set_yscale("log")
    if pruned:
        axes.scatter(
            [each.number for each in pruned],
            [each.value or 0.0 for each in pruned],
            color="tab:gray",
            marker="x",
            label="pruned",
        )
    for number in failed:
        axes.axvline(number, color="tab:red", alpha=0.4, linestyle=":", label="failed" if number == failed[0] else None)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    for other in beside:
        names = list(importance)[::-1]
        other.barh(names, [importance[name] for name in names], color="tab:blue")
        other.set(xlabel="share of the differences", xlim=(0, 1))
    with replacing(path, alone=True) as building:
        figure.savefig(building, dpi=120, format="png")
