"""What a recipe can set: the endpoint, and how to learn through it. Imports nothing heavy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, SerializeAsAny, field_validator, model_validator

from gym_core.component import Slot
from gym_core.errors import GymError, RecipeError
from gym_core.files import expanded
from gym_core.kinds import Algorithm
from gym_core.recipe import Recipe
from gym_rewards.reward import Reward
from gym_training_free.endpoint.local_server import LocalServer
from gym_training_free.endpoint.price import Price
from gym_training_free.kinds import ChatBackend

LOCAL = "http://127.0.0.1:8000/v1"  #: where a server on this machine usually is
#: Keys of a request that this package writes, and those that have a server make more of a reply than was reserved.
OWN = frozenset({"model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "tools"}) | {
    "n", "best_of", "stream", "input", "encoding_format"
}  # fmt: skip
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: Sections that shape weights, and keys of `train` that speak of them.
WEIGHTS = ("adapter", "quantization", "export")
TRAIN = frozenset({"seed", "shuffle", "overwrite"})
Temperature = Annotated[float, Field(ge=0, le=2)]


class OpenAI(ChatBackend):
    """A model behind a server that speaks OpenAI's chat completions: a provider, vLLM, SGLang, llama.cpp, Ollama, Gym's own."""

    target: ClassVar[str] = "gym_training_free.open_endpoint:endpoint"

    path: Annotated[str, Field(min_length=1, examples=["deepseek-chat"])]
    """Name of the model at the endpoint."""
    base_url: Annotated[str, Field(pattern=r"^https?://[^/@?#\s]+[^@?#\s]*$")] | None = None
    """Address before `/chat/completions`. Redirects are not followed, and a key is sent nowhere else. Without it gym-serve serves
    the folder that `path` names, as long as the run lasts; any other name is asked for at `http://127.0.0.1:8000/v1`."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key; nothing is sent without."""
    timeout: Annotated[float, Field(gt=0, le=86400)] = 600.0
    """Seconds for one request, to the last byte of the reply."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    """Requests under way at a time."""
    retries: Annotated[int, Field(ge=0, le=20)] = 5
    """Times a request is sent again after a timeout, a broken connection, a reply that is no chat completion, or a status that
    may pass (429, 500, 503, ...)."""
    backoff: Annotated[float, Field(ge=0, le=60)] = 1.0
    """Seconds before the first repetition, about twice as long before each further one, unless the server says how long
    (`Retry-After`); two minutes at most."""
    price: Price | None = None
    """US dollars for tokens; by default those of a table, and nothing for a folder that is served here. A server on this machine
    may pass questions on to one that is paid: `max_cost` needs a price for it, be it `{input: 0, output: 0}`."""
    length_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the most tokens of a reply."""
    extra_body: dict[str, Any] = {}
    """Further keys of each request, such as `{reasoning_effort: low}`; none that the method itself writes."""

    @model_validator(mode="before")
    @classmethod
    def _names_a_variable(cls, values: Any) -> Any:
        # An error about one field shows what stood there, and that might be the key itself.
        name = values.get("api_key_env", "") if isinstance(values, dict) else ""
        if not isinstance(name, str) or (name and not _VARIABLE.fullmatch(name)):
            raise ValueError("`api_key_env` is the name of an environment variable; a key never stands in a recipe")
        return values

    @field_validator("extra_body")
    @classmethod
    def _further(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OWN & value.keys()):
            raise ValueError(
                f"`{taken[0]}` is not to be replaced: costs are reserved, and answers compared, by what the method asks"
            )
        return value

    @property
    def address(self) -> str:
        """Where a server is asked that runs already."""
        return (self.base_url or LOCAL).rstrip("/")

    @property
    def folder(self) -> Path | None:
        """What gym-serve has to serve; None where a server is named, or no folder."""
        path = expanded(self.path)
        return path if self.base_url is None and path.is_dir() else None

    def check(self) -> None:
        """Raise GymError where the variable with the key is not set, or nothing serves a folder."""
        if self.folder is not None:
            LocalServer.check(self.folder)
            if self.api_key_env:
                raise unsent_key("model.api_key_env", self.folder)
        if self.api_key_env and not os.environ.get(self.api_key_env):
            fix = f"export {self.api_key_env}, or leave `api_key_env` out"
            raise GymError(
                "the environment variable that `api_key_env` names is not set", key="model.api_key_env", fix=fix
            )


def unsent_key(key: str, folder: Path) -> GymError:
    """Return the error for a key, in the option `key`, that is sent to no server: a folder is served with a token of its own."""
    fix = f"leave `{key.rpartition('.')[2]}` out, or name the address of the server that it is for (`base_url`)"
    return GymError(f"`{folder}` is a folder, which is served here: the key would be sent nowhere", key=key, fix=fix)


Chat = Annotated[SerializeAsAny[ChatBackend], Slot("backends", default="openai", bare="path", selector="backend")]


class GRPOConfig(Algorithm):
    """Training-Free GRPO: a frozen model learns short lessons from groups of its own answers, and is shown them in its prompt.

    Each question is answered `group_size` times. Where the rewards of a group differ, a critic says what the better answers did,
    and a library of experiences takes that up, if it does no harm on questions held out. No weight changes.
    """

    target: ClassVar[str] = "gym_training_free.run:RecipeTrainer"
    changeable: ClassVar[frozenset[str]] = frozenset({"max_cost", "max_total_tokens", "reward_timeout"})
    outside: ClassVar[str] = "a server that answers prompts"
    needs: ClassVar[tuple[str, ...]] = ("model",)

    rewards: Annotated[
        list[Annotated[SerializeAsAny[Reward], Slot("rewards")]], Field(examples=[[{"name": "math"}]])
    ] = []
    """What judges answers. Without any, every group teaches by comparison alone, and nothing is measured."""
    dataset: str | None = None
    """Questions as a file of JSON lines, where the recipe has no `data`."""
    prompt: str = ""
    """Column of the question in `dataset`: a text, or messages; by default `messages`, `prompt`, `question`, `problem`,
    `instruction` or `query`."""
    answer: str = "answer"
    """Column of the reference answer: shown to the critic, and never let into an experience."""
    group_size: PositiveInt = 5
    """Answers to each question; groups of one cannot differ, and teach nothing."""
    max_epochs: PositiveInt = 3
    """Passes over the questions."""
    batch_size: PositiveInt = 64
    """Questions between two changes of the library."""
    temperature_train: Temperature = 0.7
    """Sampling temperature of the answers that are learned from."""
    temperature_eval: Temperature = 0.3
    """Sampling temperature where experiences are measured and used."""
    temperature_critic: Temperature = 0.0
    """Sampling temperature of summaries, comparisons and operations."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Nucleus sampling of all answers; 1 is off."""
    max_new_tokens: PositiveInt = 4096
    """Most tokens of an answer, for each turn where there are tools."""
    critic_max_new_tokens: PositiveInt = 4096
    """Most tokens of what the critic writes."""
    critic: Chat | None = None
    """Model that summarises, compares and keeps the library; by default the one that answers."""
    embedding: Chat | None = None
    """Model whose embeddings choose experiences (`retrieve`); by default words do."""
    experiences: str | None = None
    """Library that learning begins with: a run, or its `experiences.json`; by default an empty one."""
    experiences_per_question: PositiveInt = 2
    """Most lessons from one group."""
    max_experiences: PositiveInt = 64
    """Most experiences in the library; those that gained least make room."""
    max_words: PositiveInt = 32
    """Most words of an experience."""
    max_library_tokens: PositiveInt | None = None
    """Most tokens of the library, a quarter of its bytes."""
    retrieve: PositiveInt | None = None
    """Experiences that a question is shown: those that fit it best; by default all."""
    held_out: Annotated[float, Field(ge=0)] = 0.2
    """Questions that only measure: a share when below 1, else a number; those that `data.validation` holds out come first."""
    eval_samples: PositiveInt = 1
    """Answers to each question held out."""
    gate: bool = True
    """Whether a change of the library is rolled back where answers to the questions held out got worse."""
    gate_level: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Significance of the one-sided sign test that finds harm."""
    tools: tuple[Literal["calculator", "python"], ...] = ()
    """Tools that answers may use, each in the sandbox of gym-rewards."""
    max_turns: PositiveInt = 8
    """Most replies of the model in one answer with tools."""
    tool_timeout: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Seconds that a call of a tool may take."""
    reward_timeout: Annotated[float, Field(gt=0)] = 300.0
    """Seconds that a reward may take for the answers of a batch."""
    max_cost: Annotated[float, Field(gt=0)] | None = None
    """US dollars that the run may cost at most. Each call first reserves the most that it can cost."""
    max_total_tokens: PositiveInt | None = None
    """Tokens that the run may use at most, in both directions; for models without a price."""
    prompts: str = "en"
    """Language of the instructions, or a folder with your own."""

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.held_out >= 1 and self.held_out != int(self.held_out):
            raise ValueError("held_out is a share below 1 or a whole number of questions")
        if self.embedding is not None and self.retrieve is None:
            raise ValueError("`embedding` does nothing without `retrieve`")
        return self

    def check(self) -> None:
        """Raise GymError where something is not there that a reward, the critic or the prompts need, or the questions are not."""
        from gym_training_free.experience.library import ExperienceLibrary
        from gym_training_free.prompting import Prompts

        for component in (*self.rewards, self.critic, self.embedding):
            if component is not None:
                component.check()
        Prompts.load(self.prompts)
        ExperienceLibrary.beginning(self.experiences)
        if self.dataset is not None and not expanded(self.dataset).is_file():
            raise GymError(
                f"there is no file `{self.dataset}`", key="algorithm.dataset", fix="write where the questions lie"
            )

    def check_recipe(self, recipe: Any) -> None:
        """Raise GymError where a section speaks of weights, or the model is not behind a server."""
        if not isinstance(recipe.model, ChatBackend):
            fix = "write model: {backend: openai, path: NAME, base_url: ADDRESS}"
            raise GymError("Training-Free GRPO asks a model behind a server", key="model", fix=fix)
        if (recipe.data is None) == (self.dataset is None):
            fix = "name questions in `data` (gym-data), or a file of JSON lines in `algorithm.dataset`; not both"
            raise GymError("there must be one place where questions come from", key="data", fix=fix)
        for section in WEIGHTS:
            if getattr(recipe, section):
                raise GymError("there are no weights that it could shape", key=section, fix="leave it out")
        if strange := sorted(recipe.train.model_fields_set - TRAIN):
            fix = "leave it out; `algorithm` has `max_epochs` and `batch_size`"
            raise GymError("means nothing to Training-Free GRPO", key=f"train.{strange[0]}", fix=fix)


def training_free(recipe: Recipe) -> GRPOConfig:
    """Return the algorithm of a recipe. Raises RecipeError where it is another one."""
    if isinstance(recipe.algorithm, GRPOConfig):
        return recipe.algorithm
    fix = "write algorithm: {name: training_free_grpo, rewards: [...]}"
    raise RecipeError("the recipe is not one of Training-Free GRPO", key="algorithm", fix=fix)
