"""The kinds of component that the kernel uses; others: group `gym.kinds`. Their docstrings are the contract of `build`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gym_core.artifact import Artifact
from gym_core.component import Component
from gym_core.errors import GymError


class Backend(Component):
    """Loads a model. Section `model`. `build(run=Run)` returns what the algorithm is given as `model`, and trains."""

    kind: ClassVar[str] = "backends"


class Algorithm(Component):
    """Trains. Section `algorithm`. `build(run=Run, model=<what load_model returned>)` returns a `Trainer`."""

    kind: ClassVar[str] = "algorithms"
    needs: ClassVar[tuple[str, ...]] = ()
    """Sections that a recipe must have for it."""

    def check_recipe(self, recipe: Any) -> None:
        """Raise GymError where the other sections of a `Recipe` do not suit it; asked when `check` is, and as quick."""


class Quantizer(Component):
    """Makes weights smaller. Section `quantization`. `build()` returns an object with `quantize(run, artifact, into) -> Artifact`
    and `restore(artifact) -> array by name`, as computed with; at `load` a `gym_torch.quantization.weight_codec.WeightCodec`.
    """

    kind: ClassVar[str] = "quantizers"
    moment: ClassVar[str] = "artifact"
    """When it works: `artifact` after training, `delta` then, on what changed; `load` inside the backend, for matrices alone."""

    def error_bound(self) -> float | None:
        """Return the largest relative Frobenius error on a standard normal matrix, where the method promises one."""
        return None

    def declared_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the bytes of the weight files, as stored, for fp32 weights of a model by name (law: within 2 %)."""
        raise TypeError(f"{type(self).__name__} does not declare the size of its files")


class Exporter(Component):
    """Writes an artifact in the format of another runtime. Section `export`.

    `build()` returns an object with `export(artifact, into) -> Path`, `verify(artifact, path) -> mapping` and, by what it
    compares, `reload(path) -> array by name` or `answers(artifact, path, tokens) -> array [tokens, vocabulary]`.
    """

    kind: ClassVar[str] = "exporters"
    artifacts: ClassVar[tuple[str, ...]] = ("model",)
    """Kinds of artifact it can write, of `model`, `adapter` and `delta`; any other is refused by name."""
    tasks: ClassVar[tuple[str, ...]] = ("causal-lm",)
    """What the models may be for (`Artifact.task`); one for anything else is refused by name."""
    compares: ClassVar[str] = "weights"
    """What of an artifact is compared with its source: `weights`, read back by name, or the `logits` of its runtime."""

    def named(self, name: str) -> Artifact | None:
        """Return the model that a name means where it is no folder, such as an id on the Hub; None where it knows no names."""
        return None

    def error_bound(self) -> float:
        """Return the largest error of that comparison with these options, relative (Frobenius), for weights in fp32."""
        return 0.0

    def carries(self, artifact: Artifact) -> None:
        """Raise GymError where this exporter does not declare the kind or the task of an artifact."""
        for what, found, able in (("kind", artifact.kind, self.artifacts), ("task", artifact.task, self.tasks)):
            if found not in able:
                why = f"{type(self).__name__} cannot write an artifact of {what} `{found}`, only: {', '.join(able)}"
                fix = "export it with `safetensors`, which merges adapters and keeps heads"
                raise GymError(why, where=str(artifact.path), key="export", fix=fix)


class Callback(Component):
    """Watches a run. Section `callbacks`. `build(run=Run)` returns an observer of the loop."""

    kind: ClassVar[str] = "callbacks"


class Strategy(Component):
    """Spreads a run over processes. Section `distributed`. `build(output=Path)` returns the `gym_core.ranks.Ranks` of the run.

    Called in every process of a run, whoever started it; `launch` starts them.
    """

    kind: ClassVar[str] = "strategies"

    def launch(self, arguments: Sequence[str]) -> int | None:
        """Run this command line of `gym` in several processes and return the exit code; None: this process does the work."""
        return None


_ALL: tuple[type[Component], ...] = (Backend, Algorithm, Quantizer, Exporter, Callback, Strategy)
KINDS = {base.kind: base for base in _ALL}
