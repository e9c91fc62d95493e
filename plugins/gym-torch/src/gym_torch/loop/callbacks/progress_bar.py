"""Progress on the screen: a bar where there is a terminal, a line now and then where there is none."""

from __future__ import annotations

import time

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from gym_torch.console import console, say
from gym_torch.observer import Observer, Progress, Record

PAUSE = 5.0  #: seconds between two lines where there is no terminal


class ProgressBar(Observer):
    """Shows steps, a metric, tokens per second and the time left."""

    def __init__(self, shown: str = "loss", measure: str = "loss") -> None:
        """Prepare the bar; nothing is shown yet. `shown` is a key of the log, `measure` what of evaluations is shown."""
        self.key, self.measure = shown, measure
        text = TextColumn("{task.fields[note]}")
        self.bar = Bar(
            "training", BarColumn(), MofNCompleteColumn(), text, "ETA", TimeRemainingColumn(), console=console()
        )
        self.task = self.bar.add_task("training", note="", start=False)
        self.last = 0.0
        self.began = (0.0, 0)

    def started(self, progress: Progress) -> None:
        """Show the bar where the run stands."""
        self.began = (time.monotonic(), progress.step)
        self.bar.reset(self.task, total=progress.total, completed=progress.step, note="")
        if console().is_terminal:
            self.bar.start()

    def stepped(self, progress: Progress) -> None:
        """Move on."""
        if console().is_terminal:
            self.bar.update(self.task, completed=progress.step)

    def logged(self, progress: Progress, record: Record) -> None:
        """Show the numbers."""
        speed = f"{record['tokens_per_second']:,.0f} tokens/s"
        shown = f"{record[self.key]:.4f}" if self.key in record else "unknown"
        self._note(progress, f"{self.key} {shown}, {speed}", every=PAUSE)

    def skipped(self, progress: Progress, record: Record) -> None:
        """Say which samples are left out."""
        names = record["skipped"]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        if "skipped_loss" in record:
            figures = f"loss {record['skipped_loss']:.4g}, gradient norm {record['skipped_grad_norm']:.4g}"
            say(f"step {progress.step} updates nothing, it is a spike ({figures}): {', '.join(names[:5])}{more}")
            return
        say(f"step {progress.step} is skipped as asked: {', '.join(names[:5])}{more}")

    def evaluated(self, progress: Progress, record: Record) -> None:
        """Show what was measured on the validation split."""
        name = f"eval_{self.measure}"
        self._note(progress, f"{name} {record[name]:.4f}", every=0.0)

    def closed(self) -> None:
        """Leave the terminal as it was."""
        self.bar.stop()

    def _note(self, progress: Progress, note: str, every: float) -> None:
        now = time.monotonic()
        if console().is_terminal:
            self.bar.update(self.task, note=note)
        elif now - self.last >= every or progress.over:
            self.last = now if every else self.last  # what is always told puts off nothing else
            began, first = self.began
            taken = progress.step - first
            left = f"  ETA {(now - began) / taken * (progress.total - progress.step):.0f} s" if taken else ""
            say(f"step {progress.step}/{progress.total}  {note}{left}")
