"""The metrics of a step: added up over its batches on the device, then over the processes, and only then numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor

from gym_torch.distributed.collectives import largest_over_processes, over_processes
from gym_torch.metrics import Metric, Metrics


class StepMetrics:
    """What the batches of this process have said so far."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._found: dict[str, Metric] = {}

    def add(self, metrics: Metrics, share: float) -> None:
        """Add those of a batch of this share of the step."""
        for name, metric in metrics.items():
            found = metric.counted(share)
            self._found[name] = self._found[name].plus(found) if name in self._found else found

    def numbers(self) -> Tensor:
        """Return all of them in one tensor `[n]`, so that one wait for the device is enough: what `reduced` takes."""
        return torch.stack([number for metric in self._found.values() for number in metric.numbers()])

    def reduced(self, accelerator: Accelerator, local: Sequence[float], weight: float = 1.0) -> dict[str, float]:
        """Return the values over all processes by name; `local` are the `numbers` of this one.

        `weight` is the denominator of the step, where batches were not added as shares of it.
        """
        every, parts = iter(local), dict[str, list[float]]()
        for name, metric in self._found.items():
            parts[name] = [next(every) for _ in metric.numbers()]
        for how, reduce in (("sum", over_processes), ("max", largest_over_processes)):
            names = [name for name, metric in self._found.items() if metric.over_processes == how]
            total = iter(reduce(accelerator, [number for name in names for number in parts[name]]))
            parts |= {name: [next(total) for _ in parts[name]] for name in names}
        values = {name: metric.value(parts[name], weight) for name, metric in self._found.items()}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def largest(self) -> set[str]:
        """Names of those of which the largest is logged, over several steps too."""
        return {name for name, metric in self._found.items() if metric.over_processes == "max"}
