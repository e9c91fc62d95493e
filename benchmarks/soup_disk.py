"""100 contributors of a model of 30 million parameters, 30 of them hostile, merged by the default rule from files: peak memory.

All lie in a temporary directory, 60 MB each in bf16, and are merged with `merge_artifacts`, as `gym merge` does it. The
peak is the resident memory of a process that does nothing else, beyond what it holds before. What came is compared with the
honest mean.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path

import torch
from report import Report, main
from safetensors.torch import load_file, save_file
from torch import Tensor

import gym_deltasoup as soup
from gym_deltasoup import Input, merge_artifacts
from gym_testkit.tiny import write_model
from gym_torch.memory.memory_meter import Meter

HIDDEN, MIDDLE = 1024, 4864  #: of a model of 30 million parameters, most of them in the feed-forward layers
PULL, NOISE = 0.02, 0.02  #: of each honest change: what all have in common, and what each has of its own
MOST = 512  #: MiB


def contributed(
    base: dict[str, Tensor], common: dict[str, Tensor], into: Path, seed: int, sign: float
) -> dict[str, Tensor]:
    """Write what one member trained, and return its change as it is stored."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for name, weight in base.items():
        own = NOISE * torch.randn(weight.shape, generator=draw)
        found[name] = (weight + sign * common[name] + own).to(torch.bfloat16)
    into.mkdir()
    (into / "config.json").write_bytes((into.parent / "base" / "config.json").read_bytes())
    save_file(found, into / "model.safetensors", {"format": "pt"})
    return {name: weight.float() - base[name] for name, weight in found.items()}


def merged(place: Path, count: int, bad: int) -> tuple[float, int, int]:
    """Merge in a process of its own; return seconds, bytes at the peak, and how many hostile inputs the result tolerates."""
    inputs = [Input(place / f"{number:03}", f"{number:03}") for number in range(count)]
    meter, began = Meter(torch.device("cpu")), time.perf_counter()
    made = merge_artifacts(soup.ByzantineRobust(), inputs, place / "soup", base=str(place / "base"), hostile=bad)
    return time.perf_counter() - began, meter.peak(), made.tolerated_byzantine


def measure(report: Report, quick: bool) -> None:
    """Write, merge and compare."""
    count = 20 if quick else 100
    bad = 3 * count // 10
    with tempfile.TemporaryDirectory(prefix="gym-soup-") as folder:
        place = Path(folder)
        base = load_file(write_model(place / "base", hidden=HIDDEN, middle=MIDDLE) / "model.safetensors")
        base = {name: weight.to(torch.bfloat16) for name, weight in base.items()}
        save_file(base, place / "base" / "model.safetensors", {"format": "pt"})
        base = {name: weight.float() for name, weight in base.items()}
        draw = torch.Generator().manual_seed(10**6)
        common = {name: PULL * torch.randn(weight.shape, generator=draw) for name, weight in base.items()}
        honest = {name: torch.zeros_like(weight) for name, weight in base.items()}
        for number in range(count):
            hostile = number < bad
            change = contributed(base, common, place / f"{number:03}", number, -10.0 if hostile else 1.0)
            if not hostile:
                for name, each in change.items():
                    honest[name] += each / (count - bad)
        bytes_ = sum(file.stat().st_size for file in place.glob("[0-9]*/model.safetensors"))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, peak, tolerated = pool.apply(merged, (place, count, bad))
        found = load_file(place / "soup" / "model.safetensors")
        wrong = sum(float((found[name].float() - base[name] - honest[name]).square().sum()) for name in base)
        right = sum(float(each.square().sum()) for each in honest.values())
    report.figures |= {
        "contributors": count, "hostile": bad, "parameters": sum(weight.numel() for weight in base.values()),
        "bytes of the inputs": bytes_, "seconds": seconds, "tolerated": tolerated,
    }  # fmt: skip
    report.check("parameters, millions", report.figures["parameters"] / 1e6, at_least=30)
    report.check("peak of a merge, MiB", peak / 2**20, at_most=MOST)
    report.check("bytes of the inputs over the peak", bytes_ / max(1, peak), at_least=2 if quick else 10)
    report.check("distance to the honest mean, in its norms", (wrong / right) ** 0.5, at_most=0.3)


if __name__ == "__main__":
    main(measure, __doc__)
