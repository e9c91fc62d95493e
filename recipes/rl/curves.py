"""Draw how several runs learned into one picture: `python recipes/rl/curves.py PICTURE.png RUN...`.

Lines are the training reward, smoothed; points are the reward of greedy answers to held-out prompts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gym_torch.callbacks.jsonlines import read_lines
from gym_torch.callbacks.metrics import FILE
from gym_torch.callbacks.plot import smooth


def draw(picture: Path, runs: Sequence[Path]) -> None:
    """Write the picture; each run is labelled by its folder."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="optimizer step, of 64 answers", ylabel="reward")
    for number, run in enumerate(runs):
        records = read_lines(run / FILE)
        rewards = [(record["step"], record["reward"]) for record in records if "reward" in record]
        steps, values = zip(*rewards, strict=True)
        axes.plot(steps, smooth(values), color=f"C{number}", label=run.name.removeprefix("rl-"))
        held_out = [(record["step"], record["eval_reward"]) for record in records if "eval_reward" in record]
        axes.plot(*zip(*held_out, strict=True), color=f"C{number}", marker="o", linewidth=0, markersize=4)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), [Path(run) for run in sys.argv[2:]])
