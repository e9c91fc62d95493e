"""What other tools expect in the output directory itself: the files of the model, or of the adapter."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

from gym_core import Artifact, Callback, Run


class ModelInOutput(Callback):
    """Lays the files of `model/` into the output directory as well, where LLaMA-Factory and peft look for them.

    They are links to the same files where the file system has any, so they take no room.
    """

    target: ClassVar[str] = "gym_llamafactory.model_in_output:linked"


def linked(config: ModelInOutput, run: Run) -> Any:
    """Return the observer, which needs the engine."""
    from gym_torch.observer import Observer, Progress

    class Linked(Observer):
        """Links what was made into the output directory."""

        def ended(self, progress: Progress, artifact: Artifact) -> None:
            """Link the files, those that are there from before replaced."""
            for file in sorted(artifact.path.iterdir()):
                if file.is_file():
                    link(file, run.output / file.name)

    return Linked()


def link(file: Path, to: Path) -> None:
    """Have a file under a second name; a copy where there are no links."""
    to.unlink(missing_ok=True)
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)
