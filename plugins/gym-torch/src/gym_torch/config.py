"""The components of the engine as a recipe sees them: options, defaults, documentation. Nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, PositiveInt, SerializeAsAny, field_validator

from gym_core import Callback, Config, GymError, Recipe, RecipeError, Slot
from gym_core.component import construct
from gym_data.kinds import Data, DataAlgorithm
from gym_data.location import ModelName, is_hub_id, locate, package_of
from gym_data.new_tokens import MODEL, folder_of
from gym_torch.kernels.library_settings import set_libraries
from gym_torch.kinds import (
    Adapter,
    KernelLibrary,
    LoadTimeQuantizer,
    TorchBackend,
    TorchStrategy,
    at_load,
    no_quantized_model,
    part,
)
from gym_torch.lean_imports import import_models

RopeType = Literal["linear", "dynamic", "yarn", "llama3"]
VOCABULARY = "resize_vocab", "add_tokens", "add_special_tokens"
#: Options of a model that say nothing of another one.
OWN = ("revision", "rope_scaling", "router_aux_loss_coef", "trust_remote_code", *VOCABULARY)


class RopeScaling(Config):
    """How a model tells more positions apart than it was trained with."""

    type: RopeType
    """`linear` (arXiv:2306.15595), `yarn` (arXiv:2309.00071), `llama3` (low frequencies alone, as Llama 3.1), or `dynamic`,
    which changes nothing up to the positions of pretraining, for those who generate later (`rope_type` in transformers)."""
    factor: Annotated[float | None, Field(gt=1)] = None
    """How many times as many positions; by default as many as samples of `data.cutoff` tokens need."""
    window: PositiveInt | None = None
    """Positions of pretraining; by default all that the model has (`original_max_position_embeddings` in transformers)."""


class Transformers(TorchBackend):
    """Any causal language model that transformers can load from safetensors."""

    target: ClassVar[str] = "gym_torch.model.loading:load"
    further: ClassVar[str] = "gym_torch.model.loading:load_frozen"
    empty: ClassVar[str] = "gym_torch.model.empty_model:empty"

    path: Annotated[ModelName, Field(examples=["tiny"])]
    """A family that a package brings, the output of a run, a local directory, or an id on the Hugging Face Hub."""
    revision: str | None = None
    """Branch, tag or commit on the Hub; a folder has none."""
    init: Literal["pretrained", "random"] = "pretrained"
    """Start from the weights, or from random ones of the same shape, drawn with the seed of the run."""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """How the frozen weights are held: `auto` as they are stored if the run computes in bf16 or fp16, else fp32
    (`torch_dtype` in transformers)."""
    quantization: Annotated[SerializeAsAny[LoadTimeQuantizer] | None, Slot("quantizers")] = None
    """Hold the weights of linear layers in a few bits while an adapter trains beside them (QLoRA). The head, embeddings and what
    is tied to them stay as they are. What is quantized after training stands in the section `quantization`."""
    ref_model_quantization: Annotated[SerializeAsAny[LoadTimeQuantizer] | None, Slot("quantizers")] = None
    """The same for further models that the recipe names, such as a reference; one without a name is the model itself. Where the
    model itself is named, it is held as this says, and without this as the policy is."""
    attention: str = "auto"
    """`auto` packs samples into full rows and attends within each; the name of an attention of transformers (`sdpa`,
    `eager`, `flash_attention_2`, ...) pads them instead (`attn_implementation` in transformers)."""
    kernels: list[Annotated[SerializeAsAny[KernelLibrary], Slot("kernels")]] = []
    """Libraries of kernels to try beside those of the engine. A kernel works where it is as exact as torch and faster, by a trial
    for each size on this machine; `run.json` has the trials."""
    compile: bool | Literal["auto"] = "auto"
    """Whether to compile the layers. The run begins without, and changes over when the code is ready; later runs find it on the
    disk. `auto` tries it out for long runs, and does what is faster on this machine."""
    fp8: Literal["rowwise", "rowwise_with_gw_hp"] | None = None
    """Have products of linear layers, but for the head and an adapter's, run in fp8 with a scale for each row; the second one
    leaves gradients of weights in bf16 (`gw_hp`). For GPUs that have it; faster and less exact than bf16, and never `auto`."""
    rope_scaling: RopeType | RopeScaling | None = None
    """Scale rotary positions, for longer texts than the model was trained on; a bare word is the type. The result carries it."""
    router_aux_loss_coef: Annotated[float, Field(ge=0)] | Literal["own"] | None = None
    """What the load-balancing loss of a mixture of experts counts in training; by default as its `config.json` says, which has
    none without `output_router_logits: true`; `own` is the coefficient that stands there, asked for or not."""
    resize_vocab: bool = False
    """Whether to add embeddings where the tokenizer has more tokens than the model. Beside an adapter, embeddings and head train
    whole then, unless its `modules_to_save` names others."""
    add_tokens: list[Annotated[str, Field(min_length=1)]] = []
    """Tokens that the tokenizer gets, but those it has; where any is new, `resize_vocab` is on. The result has that tokenizer."""
    add_special_tokens: list[Annotated[str, Field(min_length=1)]] = []
    """The same for special tokens, which are never part of a text."""
    neftune_noise_alpha: Annotated[float, Field(ge=0)] = 0.0
    """NEFTune (arXiv:2310.05914): noise on the embeddings of each sample while it is trained on, of this alpha; 5 is usual."""
    trust_remote_code: bool = False
    """Whether Python code that comes with the model may run. It can do anything that you can."""

    @field_validator("path")
    @classmethod
    def _installed(cls, path: str) -> str:
        if package := package_of(path):
            raise ValueError(f"`{path}` is a model of {package}, which is not installed: pip install {package}")
        return path

    @field_validator("quantization", "ref_model_quantization", mode="before")
    @classmethod
    def _at_load(cls, quantizer: Any) -> LoadTimeQuantizer | None:
        return at_load(quantizer)

    def quantizer(self) -> LoadTimeQuantizer | None:
        """Return what the recipe names."""
        return self.quantization

    def for_others_alone(self) -> str:
        """Return the key of how they are quantized, where that is set."""
        return "ref_model_quantization" if self.ref_model_quantization else ""

    def resizes_vocabulary(self) -> bool:
        """Return whether the recipe says so, or adds tokens that the tokenizer has not."""
        if self.resize_vocab or not (self.add_tokens or self.add_special_tokens):
            return self.resize_vocab
        return self.folder(weights=False) != self.own_folder()

    def own_folder(self) -> Path:
        """Return the directory that the recipe names, whose tokenizer is as it was."""
        return locate(self.path, self.revision, weights=False)

    def folder(self, weights: bool = True, key: str = "") -> Path:
        """Return the directory with configuration, tokenizer and weights; the tokenizer has the tokens that are added.

        Raises what `gym_data.location.locate` raises, and DataError where the tokenizer cannot be built.
        """
        return folder_of(self.model_dump(include=set(MODEL)), weights, key)

    def kernel_libraries(self) -> Sequence[KernelLibrary]:
        """Return those that the recipe names."""
        return self.kernels

    def check(self) -> None:
        """Ask quantizers and libraries of kernels whether all that they need is there."""
        for component in filter(None, (self.quantization, self.ref_model_quantization, *self.kernels)):
            component.check()
        if self.fp8 and self.quantization:
            raise GymError(
                "weights are held in a few bits, or multiplied in fp8, and not both",
                key="model.fp8",
                fix="leave one of `quantization` and `fp8` out",
            )
        named = self.revision not in (None, "main")  # the latter is what files say that mean no other
        if named and not is_hub_id(self.path):
            raise RecipeError(
                f"`{self.path}` is no repository on the Hub, and has no revisions",
                key="model.revision",
                fix="leave it out, or name the repository",
            )

    def build(self, **context: Any) -> Any:
        """Load the model."""
        set_libraries()
        import_models()
        return super().build(**context)

    def other(self, path: str) -> Self:
        """Return the options for a further model, loaded as this one is; that this one's code may run says nothing of its.

        Nor does how its positions are scaled: another model's configuration says that.
        """
        same = path == self.path
        own = {} if same else {name: type(self).model_fields[name].get_default() for name in OWN}
        held = self.ref_model_quantization or (self.quantization if same else None)
        return self.model_copy(update={"path": path, "init": "pretrained", "quantization": held, **own})


class Further(NamedTuple):
    """A model beside the one that a run is about: a reference, or one that trains too, such as a critic."""

    path: str | None  #: as a recipe names it; None: that model before training, which an adapter left out makes of it
    trains: bool = False  #: whether it trains too, with the same adapter, under a head of numbers
    key: str = "algorithm.ref_model"  #: of the recipe, which names it
    stays: bool = True  #: whether it is in memory in every step, and not before them alone
    follows: bool = False  #: whether it moves towards the policy, in whose precision it is then held


class TorchAlgorithm(DataAlgorithm):
    """Base of every algorithm that trains with the loop of gym-torch: subclass it, point at an objective."""

    target: ClassVar[str] = "gym_torch.assembly:Training"
    needs: ClassVar[tuple[str, ...]] = ("model", "data")
    objective: ClassVar[str] = ""
    """`module:class` of a `gym_torch.objective.Objective`, or `module:function` of what returns one: called with this
    configuration and the layout."""
    contribution: ClassVar[str] = "gym_torch.contribution:prepared_data"
    """`module:function` from `gym_torch.contribution.Parts` to a `gym_torch.contribution.Contribution`: where steps come from,
    what measures the policy, what watches the run, and what is closed at its end."""
    dataset: ClassVar[str] = ""
    """`module:class` of steps over prepared samples, for plans too: of this configuration and the arguments of `Dataset`."""
    largest_steps: ClassVar[str] = ""
    """For the base class of algorithms that make their samples during the run: `module:class` of a source of steps as large as
    theirs may be, made without a model of (this configuration, rows, training options, layout). Empty: samples are the data."""
    oracle: ClassVar[str] = ""
    """`module:function` of the author's slow and obvious formula: `oracle(config, model, examples)` returns the un-normalised
    loss of the examples, a float64 scalar tensor. `model` is a float64 causal language model; what is trained beside it comes as
    `auxiliary`. Value and gradient must agree."""
    context_parallel: ClassVar[bool] = False
    """Whether processes may share the tokens of its rows (`distributed.context_parallel_size`): it asks its policy for nothing
    but `log_probs` and `hidden`, draws no random numbers, and deals out samples by `rank` and `world` of
    `gym_torch.contribution.Parts`, which are those of a group of processes."""
    disable_dropout: ClassVar[bool] = False
    """Whether the loss compares log-probabilities of the policy with those of a reference, or of what sampled: dropout is then
    off, and NEFTune or an adapter that computes something else in training is refused."""

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise GymError where nobody settles what is `auto`, the optimizer cannot do what is asked, the strategy fits neither
        it, the processes nor this, a quantizer of loaded models is to work after training, a whole model is to train that is
        quantized, or rows without an end do not fit.
        """
        if recipe.quantization and recipe.quantization.moment == "load":
            raise GymError(
                f"{type(recipe.quantization).__name__} quantizes a model while it is loaded, not one that was trained",
                key="quantization",
                fix="write it under `model.quantization`, or name another one here",
            )
        backend = part(recipe, TorchBackend)
        if backend and (key := backend.for_others_alone()) and not any(each.path for each in self.further()):
            raise RecipeError(
                "says how a further model is held, and this recipe names none: without a name a reference is the model itself",
                key=f"model.{key}",
                fix="leave it out, or name a model, such as in `algorithm.ref_model`",
            )
        quantized = backend is not None and backend.quantizer() is not None
        if quantized and ((adapter := part(recipe, Adapter)) is None or adapter.saves_model):
            raise no_quantized_model("the model")
        for check in (
            "gym_torch.planners:check",
            "gym_torch.loop.best_metric:check_recipe",
            "gym_torch.loop.in_backward:check_recipe",
            *(f"gym_torch.distributed.strategies:{name}" for name in ("check_spread", "check_cut", "check_context")),
        ):
            construct(check, recipe)
        if (strategy := part(recipe, TorchStrategy)) and strategy.shares_rows() > 1 and not self.context_parallel:
            raise RecipeError(
                "this algorithm does not say that processes may share the tokens of its rows",
                key="distributed.context_parallel_size",
                fix="leave it out, or name another algorithm, such as sft or dpo",
            )
        data = part(recipe, Data)
        if data and data.streams() and not self.streams:
            raise RecipeError(
                "this algorithm looks at its samples before the first step, and these come window by window",
                key="data.streaming",
                fix="leave it out, or name an algorithm that streams, such as sft, pretrain, simpo or dpo",
            )
        if data and data.measures_apart() and not self.measures_apart:
            raise RecipeError(
                "this algorithm measures all that is held out at once",
                key="data.validation_apart",
                fix="leave it out, or evaluate one source at a time",
            )
        if data and data.streams() and recipe.train.max_steps is None:
            raise endless()

    def shares_prefixes(self) -> bool:
        """Return whether samples of a batch may share what they begin with, laid out once: by default where they may branch.

        For a loss of what the policy says of labels, whatever segment these belong to. There are then segments without labels,
        which count for nothing.
        """
        return self.branches

    def further(self) -> Sequence[Further]:
        """Return the models beside the one that a run is about; the engine makes them. Default: none."""
        return ()


def endless() -> RecipeError:
    """Return the error of a run over rows without an end that nothing ends."""
    return RecipeError(
        "rows that are streamed have no end that is known",
        key="train.max_steps",
        fix="set `train: {max_steps: 1000}`, or leave `data.streaming` out",
    )


def torch_algorithm(recipe: Recipe) -> TorchAlgorithm:
    """Return the algorithm of a recipe. Raises RecipeError where it does not train with the loop of gym-torch."""
    if isinstance(recipe.algorithm, TorchAlgorithm):
        return recipe.algorithm
    raise RecipeError("it does not train with the loop of gym-torch", key="algorithm", fix="name another algorithm")


class EarlyStopping(Callback):
    """Ends a run when what tells the best checkpoint no longer improves on a validation split; needs one, and `eval_every`."""

    target: ClassVar[str] = "gym_torch.loop.callbacks.early_stopping:EarlyStop"

    patience: Annotated[int, Field(ge=1)] = 3
    """Early stopping patience: evaluations in a row without improvement after which to stop."""
    threshold: Annotated[float, Field(ge=0)] = 0.0
    """Early stopping threshold: how much better than the best so far an evaluation must be to count as an improvement."""
