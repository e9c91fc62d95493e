"""The kinds of component the kernel knows, and what each promises.

A kind is a base class: its docstring is the contract of `build`. A plugin may add a kind through `gym.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

from gym_core.artifact import Artifact
from gym_core.component import Component, undeclared
from gym_core.errors import GymError


class Backend(Component):
    """Loads a model. Section `model`. `build(run=Run)` returns what algorithms train, a `gym_torch.model.loading.LoadedModel`."""

    kind: ClassVar[str] = "backends"
    further: ClassVar[str] = ""
    """`module:function` that loads a further model, such as a reference or a critic, frozen: called as `function(options,
    precision=, layout=, seed=, samples=, key=)` with the options of this one or of `other`, it returns what `build` does."""
    empty: ClassVar[str] = ""
    """`module:function` that builds the model without data in its weights, on the meta device: called as `function(options,
    precision=, samples=, device=)`, it returns what `build` does. Without it a run cannot be planned."""

    def other(self, path: str) -> Self:
        """Return the options under which a further model is loaded, of which the recipe names the path alone."""
        raise undeclared(self, "other(self, path: str) -> Self: return ...")


class Data(Component):
    """Turns sources into examples. Section `data`. `build(run=Run, ...)` is between the data plugin and its readers."""

    kind: ClassVar[str] = "data"

    def preview(self, recipe: Any, count: int) -> dict[str, Any]:
        """Return what `gym data preview` shows of a `Recipe`: so many examples, and what became of all rows, as plain data."""
        raise GymError(f"{type(self).__name__} shows no preview of its examples", key="data")

    def tokenizer(self, path: Path) -> Any | None:
        """Return the tokenizer in `path` with the chat template of the conversations; None where it renders none."""
        return None

    def chat_template(self) -> str | None:
        """Return the text of that template, to lie beside what is trained; None where it is the model's own, or none."""
        return None

    def longest(self) -> int | None:
        """Return the most tokens that a sample can have; None where nobody knows."""
        return None


class Algorithm(Component):
    """Trains. Section `algorithm`. `build(run=Run, model=<what load_model returned>)` returns a `Trainer`."""

    kind: ClassVar[str] = "algorithms"
    rows: ClassVar[str] = "conversation"
    """Shape of the rows it learns from: `conversation`, `text`, `preference`, `feedback`, `stepwise` or `prompt`."""
    branches: ClassVar[bool] = False
    """Whether a sample may be several sequences, what they begin with laid out once (`gym_data.examples.Branched`)."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Sections that a recipe must have for it."""
    measure: ClassVar[str] = "loss"
    """Key of `metrics.jsonl` that training improves."""
    better: ClassVar[str] = "lower"
    """Which way `measure` improves: `lower` or `higher`."""
    likelier: ClassVar[bool] = True
    """Whether training makes what its rows show as good likelier, measured against what they show as bad; false to unlearn."""
    oracle: ClassVar[str] = ""
    """`module:function` of the author's slow and obvious float64 formula, where the trainer is an objective of gym-torch.

    `oracle(config, model, examples)` returns the un-normalised loss of the examples as a float64 scalar tensor;
    `model` is a float64 causal language model; what is trained beside it comes as `beside`. Value and gradient must agree.
    """

    def generated(self) -> int:
        """Return the most tokens that are generated behind a sample of the data and learnt from; 0 where none are."""
        return 0


class Adapter(Component):
    """Chooses what trains. Section `adapter`. `build(model=..., seed=int)` returns a `gym_torch.model.adapted.AdaptedModel`."""

    kind: ClassVar[str] = "adapters"
    starts_unchanged: ClassVar[bool] = True
    """Whether the adapted model computes what the base does until the first step."""
    merges: ClassVar[bool] = True
    """Whether weights of the model can compute what it does; without that, merging is refused."""
    needs_experts: ClassVar[bool] = False
    """Whether it is for mixtures of experts alone."""
    needs_gradients: ClassVar[bool] = False
    """Whether it looks at the gradients of each step; optimizers that leave none, and shards of them, are then refused."""
    needs_total_steps: ClassVar[bool] = False
    """Whether what it does in a step follows from how many a run has; going on with more is then refused."""

    def uniform_layers(self) -> bool:
        """Return whether layers that are alike stay so, however many there are, so that a plan adapts only a few."""
        return False


class Optimizer(Component):
    """Updates parameters. Section `optimizer`. `build(parameters=groups, learning_rate=float)` returns an optimizer.

    A group is `{"params": [(name, parameter), ...], "role": str, ...}`; what the roles are: `gym_optim.param_groups`.
    """

    kind: ClassVar[str] = "optimizers"
    general: ClassVar[bool] = True
    """Whether it works on any parameters, and not on those of one adapter or of one kind of device alone."""

    def elementwise(self) -> bool:
        """Whether each number moves by its own gradient alone, so that parameters may be cut into shards."""
        raise undeclared(self, "elementwise(self) -> bool: return ...")

    def keeps_gradients(self) -> bool:
        """Whether every gradient is there, whole, until the end of `step`; not so in-backward or block-wise."""
        raise undeclared(self, "keeps_gradients(self) -> bool: return ...")

    def updates_in_backward(self) -> bool:
        """Whether updates happen during backward: then no accumulation, no clipping and one process."""
        raise undeclared(self, "updates_in_backward(self) -> bool: return ...")

    def gradient_bytes(self, parameters: Sequence[Mapping[str, Any]]) -> int:
        """Return the bytes of the gradients that `step` finds, where that is not all of them; groups as below."""
        if self.updates_in_backward():
            return 0
        raise undeclared(self, "gradient_bytes(self, parameters) -> int: return ...")

    def averages(self) -> bool:
        """Whether the weights to evaluate and save differ from those that train, as in schedule-free."""
        return False

    def evaluation_weights(self, optimizer: Any) -> AbstractContextManager[None]:
        """Have the parameters of what `build` returned hold the weights to use, and then again what they held, bit for bit."""
        return nullcontext()

    def declared_bytes(self, parameters: Sequence[Mapping[str, Any]]) -> int:
        """Return the bytes of state after a step for groups with shapes of fp32 parameters in their place; no scalars."""
        raise TypeError(f"{type(self).__name__} does not declare the size of its state")


class Scheduler(Component):
    """Shapes the learning rate. Section `scheduler`. `build(total=steps, warmup=steps)` returns `factor(step) -> float`."""

    kind: ClassVar[str] = "schedulers"
    ends_at: ClassVar[float | None] = None
    """Factor after the last step, where it does not depend on the options."""


class Callback(Component):
    """Watches a run. Section `callbacks`. `build(run=Run)` returns an observer of the loop."""

    kind: ClassVar[str] = "callbacks"


class Quantizer(Component):
    """Makes weights smaller. Section `quantization`. `build()` returns an object with `quantize(run, artifact, into) -> Artifact`
    and `restore(artifact) -> mapping of name to array`, the weights as they are computed with.
    """

    kind: ClassVar[str] = "quantizers"
    moment: ClassVar[str] = "artifact"
    """When it works: `artifact` after training, `load` inside the backend before it."""

    def error_bound(self) -> float | None:
        """Return the largest relative Frobenius error on a standard normal matrix, where the method promises one."""
        return None

    def declared_bytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Return the bytes of the weight files, as stored, for fp32 weights of a model by name (law: within 2 %)."""
        raise TypeError(f"{type(self).__name__} does not declare the size of its files")


class Merger(Component):
    """Combines models. `build()` returns an object with `merge(artifacts, into) -> Artifact`."""

    kind: ClassVar[str] = "mergers"
    tolerates: ClassVar[float] = 0.0
    """Largest fraction of hostile inputs under which the result stays bounded by the honest ones."""


class Exporter(Component):
    """Writes an artifact for somebody else's runtime. Section `export`.

    `build()` returns an object with `export(artifact, into) -> Path` and `reload(path) -> mapping of name to array`.
    """

    kind: ClassVar[str] = "exporters"
    artifacts: ClassVar[tuple[str, ...]] = ("model",)
    """Kinds of artifact it can write, of `model`, `adapter` and `delta`; any other is refused by name."""
    tasks: ClassVar[tuple[str, ...]] = ("causal-lm",)
    """What the models may be for (`Artifact.task`); one for anything else is refused by name."""
    error_bound: ClassVar[float] = 0.0
    """Largest relative Frobenius error of what `reload` returns, for fp32 weights."""

    def carries(self, artifact: Artifact) -> None:
        """Raise GymError where this exporter does not say that it can write such an artifact."""
        name = type(self).__name__
        for what, found, able in (("kind", artifact.kind, self.artifacts), ("task", artifact.task, self.tasks)):
            if found not in able:
                raise GymError(
                    f"{name} cannot write an artifact of {what} `{found}`, only: {', '.join(able)}",
                    where=str(artifact.path),
                    key="export",
                    fix="export it with `safetensors`, which merges adapters and keeps heads",
                )


class Family(Component):
    """A model that a package brings along. `build()` returns the `pathlib.Path` of a local model directory."""

    kind: ClassVar[str] = "families"


class Strategy(Component):
    """Spreads a run over processes. Section `distributed`. `build(output=Path)` returns the `gym_core.ranks.Ranks` of the run.

    Called in every process of a run, whoever started it; `launch` starts them.
    """

    kind: ClassVar[str] = "strategies"
    spread: ClassVar[str] = ""
    """`module:class` that lays a model out over several processes: a `gym_torch.distributed.ddp.Replicated`, built with the
    `Accelerator`. One process asks for none."""

    def shards(self) -> bool:
        """Whether a process holds but a part of each parameter: then optimizers must work elementwise."""
        raise undeclared(self, "shards(self) -> bool: return ...")

    def launch(self, arguments: Sequence[str]) -> int | None:
        """Run this command line of `gym` in several processes and return the exit code; None: this process does the work."""
        return None


KINDS: dict[str, type[Component]] = {
    base.kind: base
    for base in list(vars().values())
    if isinstance(base, type) and issubclass(base, Component) and base is not Component
}
