"""The kinds of component that packages of torch ask of each other, and what the loop asks further of those of the kernel.

Importing this imports no torch. The kind `planners` is in `gym_torch.planners`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar

from gym_core import Backend, Component, GymError, PluginError, Quantizer, Recipe, Strategy
from gym_core.sections import SECTION_OF
from gym_data.kinds import DataAlgorithm
from gym_optim.kinds import undeclared
from gym_optim.promises import Held

Part = TypeVar("Part", bound=Component)


class Adapter(Held):
    """Chooses what trains. Section `adapter`. `build(model=..., seed=int)` returns a `gym_torch.model.adapted.AdaptedModel`."""

    kind: ClassVar[str] = "adapters"
    starts_unchanged: ClassVar[bool] = True
    """Whether the adapted model computes what the base does until the first step."""
    merges: ClassVar[bool] = True
    """Whether weights of the model can compute what it does; without that, merging is refused."""
    saves_model: ClassVar[bool] = False
    """Whether what it saves is a whole model, not something beside one; over quantized weights that is refused."""
    adds_embeddings: ClassVar[bool] = False
    """Whether it adds embeddings for tokens that the model has none for; a larger tokenizer is else refused."""
    needs_experts: ClassVar[bool] = False
    """Whether it is for mixtures of experts alone."""
    needs_gradients: ClassVar[bool] = False
    """Whether it looks at the gradients of each step; optimizers that leave none, and shards of them, are then refused."""
    needs_total_steps: ClassVar[bool] = False
    """Whether what it does in a step follows from how many a run has; going on with more is then refused."""
    shares_prefixes: ClassVar[bool] = True
    """Whether what is computed of a token in training follows from it and those before it alone, so that what samples begin with
    alike can be computed once. Otherwise each sample is computed by itself."""

    def uniform_layers(self) -> bool:
        """Return whether layers that are alike stay so, however many there are, so that a plan adapts only a few."""
        return False

    def with_modules(self, names: tuple[str, ...]) -> Self:
        """Return the options under which these modules train as a whole and are saved too, unless others are named already.

        They are embeddings and head of a model whose vocabulary is to grow. Default: the same, for an adapter that cannot.
        """
        return self

    def begins_with(self) -> Sequence[str]:
        """Return the names of adapters that are there before training, which a run goes on with. Default: none."""
        return ()


class DeltaQuantizer(Held, Quantizer):
    """Codes what a fine-tune changed, not its weights: makes an artifact of kind `delta` beside a base that stays.

    `build()` returns a `gym_torch.checkpoints.load_delta.DeltaCodec`. The base is `artifact.base`, or `details["base"]` of a
    whole model. The artifact carries the entry-point value of the options under `delta`, and themselves under `options`, in its
    details. `error_bound` is that of a change of normal numbers; `restore` returns whole weights.
    """

    moment: ClassVar[str] = "delta"

    def size_varies(self) -> bool:
        """Return whether what the change holds decides its size; `declared_bytes` is then the most that there can be."""
        return False


class TorchBackend(Backend):
    """Base of every backend of gym-torch. `build(run=Run)` returns what its algorithms train.

    That is a `gym_torch.model.loading.LoadedModel`.
    """

    further: ClassVar[str] = ""
    """`module:function` that loads a further model, such as a reference or a critic, frozen: called as `function(options,
    precision=, layout=, seed=, samples=, key=)` with the options of this one or of `other`, it returns what `build` does."""
    empty: ClassVar[str] = ""
    """`module:function` that builds the model without data in its weights, on the meta device: called as `function(options,
    precision=, samples=, device=)`, it returns what `build` does. Without it a run cannot be planned."""

    def quantizer(self) -> LoadTimeQuantizer | None:
        """Return what stores linear layers of the model in a few bits, which then do not train. Default: nothing."""
        return None

    def build(self, **context: Any) -> Any:
        """Load the model; before that, have the algorithm try what would be a pity to find out after it."""
        if isinstance(algorithm := context["run"].recipe.algorithm, DataAlgorithm):
            context["run"].ranks.agree(algorithm.before_loading)
        return super().build(**context)

    def resizes_vocabulary(self) -> bool:
        """Return whether embeddings and head get rows for tokens that the model has not, which train then. Default: no."""
        return False

    def kernel_libraries(self) -> Sequence[KernelLibrary]:
        """Return whose kernels a run tries beside those of the engine. Default: nobody's."""
        return ()

    def other(self, path: str) -> Self:
        """Return the options under which a further model is loaded, of which the recipe names the path alone."""
        raise undeclared(self, "other(self, path: str) -> Self: return ...")

    def for_others_alone(self) -> str:
        """Return an option that is set and says something of further models alone: a recipe that names none is refused.

        Default: there is none.
        """
        return ""


class KernelLibrary(Held):
    """Functions that compute what layers do, faster than torch on some device: named in `model.kernels`, and tried before use.

    `build()` returns a `gym_torch.kernels.kernel_functions.KernelFunctions`. For each function, size and precision a run compares
    values, gradients and times with torch and float64, and takes the fastest that is as exact as torch, or torch; `run.json` says
    what was found.
    """

    kind: ClassVar[str] = "kernels"

    def missing(self) -> str:
        """Return what this machine lacks to run them, such as `a GPU`; empty where nothing. A run then goes on without them."""
        return ""


class LoadTimeQuantizer(Quantizer):
    """Base of every quantizer for `model.quantization`. `build()` returns a `gym_torch.quantization.weight_codec.WeightCodec`."""

    moment: ClassVar[str] = "load"

    modules_to_not_convert: tuple[str, ...] = ()
    """Modules that stay as they are, by their paths or parts of these, such as `experts` or `layers.0`. Heads, embeddings,
    norms and routers do in any case."""
    convert_vision_tower: bool = False
    """Whether of a model of images and text all is held in a few bits, and not its language model alone."""


class TorchStrategy(Held, Strategy):
    """Base of every strategy that spreads the loop of gym-torch over several processes."""

    spread: ClassVar[str] = ""
    """`module:class` that lays a model out over several processes: a `gym_torch.distributed.ddp.Replicated`, built with the
    `Accelerator`. One process asks for none."""

    def shards(self) -> bool:
        """Whether a process holds but a part of each parameter: then optimizers must work elementwise."""
        raise undeclared(self, "shards(self) -> bool: return ...")

    def shares_rows(self) -> int:
        """Return how many processes, one after another, share the tokens of each row. Default: each has rows of its own."""
        return 1

    def starts(self) -> int:
        """Return how many processes a run without torchrun starts on this machine. Default: one."""
        return 1


def no_quantized_model(what: str) -> GymError:
    """Return the error of weights that are quantized where a whole model would be saved; `what` says which."""
    why = f"{what} is quantized, and what would be saved is the whole model"
    return GymError(why, key="adapter", fix="set `adapter: lora`, or load the model unquantized")


def at_load(quantizer: Any) -> LoadTimeQuantizer | None:
    """Return what a recipe names as what quantizes a model while it is loaded. Raises ValueError where it does not."""
    if quantizer is None or isinstance(quantizer, LoadTimeQuantizer):
        return quantizer
    if isinstance(quantizer, Quantizer) and quantizer.moment == "load":
        raise ValueError("it is no gym_torch.kinds.LoadTimeQuantizer, which is asked of it here: subclass it")
    raise ValueError("this quantizer works after training: name it in the section `quantization`")


def part(recipe: Recipe, base: type[Part]) -> Part | None:
    """Return the component in the section of a kind, as what its reader asks; None where the recipe names none.

    `base` is the base class of that kind, or one of it that promises more. Raises PluginError without that promise.
    """
    section = SECTION_OF[base.kind]
    found = getattr(recipe, section)
    if found is None or isinstance(found, base):
        return found
    name, wanted = f"{type(found).__module__}.{type(found).__name__}", f"{base.__module__}.{base.__name__}"
    fix = f"subclass it, or name another `{section}`"
    raise PluginError(f"{name} is no {wanted}, which is asked of it here", key=section, fix=fix)
