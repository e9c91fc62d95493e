"""The log files that tools around LLaMA-Factory look for in the output directory."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from gym_core import Artifact
from gym_core.record import plain
from gym_torch.loop.callbacks.json_lines_base import JsonLines
from gym_torch.observer import Progress, Record


class LlamaFactoryFiles(JsonLines):
    """Writes `trainer_log.jsonl` while training; train, eval and all `_results.json` after."""

    def __init__(self, output: Path, measure: str = "loss") -> None:
        """Write under the output directory; `measure` is the key of what training improves."""
        super().__init__(output / "trainer_log.jsonl")
        self.output, self.measure = output, measure

    def logged(self, progress: Progress, record: Record) -> None:
        """Append a line with the loss, and with what training improves."""
        values = {name: record[name] for name in ("loss", self.measure) if name in record}
        extra = {"throughput": round(record["tokens_per_second"], 2), "total_tokens": record["num_tokens"]}
        self.append(self._line(progress, values | {"lr": record["learning_rate"]}) | extra)

    def evaluated(self, progress: Progress, record: Record) -> None:
        """Append a line with what training improves, on the validation split."""
        name = f"eval_{self.measure}"
        self.append(self._line(progress, {name: record[name]}))

    def ended(self, progress: Progress, artifact: Artifact) -> None:
        """Write the summaries."""
        seconds = max(progress.seconds, 1e-9)
        training = {
            "epoch": progress.epoch,
            "num_input_tokens_seen": progress.tokens,
            "train_loss": progress.mean_loss,
            "train_runtime": round(progress.seconds, 4),
            "train_samples_per_second": round(progress.samples / seconds, 3),
            "train_steps_per_second": round(progress.step / seconds, 3),
        }
        found = {key: value for key, value in progress.figures_of(artifact).items() if key.startswith("eval_")}
        evaluation = {"epoch": progress.epoch, **found} if found else {}
        for name, values in (("train", training), ("eval", evaluation), ("all", training | evaluation)):
            if values:
                (self.output / f"{name}_results.json").write_text(json.dumps(plain(values), indent=4), encoding="utf-8")

    def _line(self, progress: Progress, values: dict[str, Any]) -> dict[str, Any]:
        left = progress.seconds / max(1, progress.step) * (progress.total - progress.step)
        return {
            "current_steps": progress.step,
            "total_steps": progress.total,
            **values,
            "epoch": progress.epoch,
            "percentage": round(100 * progress.step / progress.total, 2),
            "elapsed_time": str(timedelta(seconds=int(progress.seconds))),
            "remaining_time": str(timedelta(seconds=int(left))),
        }
