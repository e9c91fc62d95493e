"""What an engine and a front hand to each other. No torch is imported here.

An engine may run in threads or processes of its own; its methods are called from one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gym_serve.errors import BadRequest
from gym_serve.names import Asked
from gym_serve.on_disk import OnDisk

if TYPE_CHECKING:
    from gym_data.chat.answer_format import AnswerFormat
    from gym_data.kinds import Media

GrammarKind = Literal["json_schema", "json_object", "regex", "lark"]
FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
Task = Literal["generate", "score", "embed"]
ScoreInput = str | tuple[str, str] | Sequence[Mapping[str, Any]]
"""A text, a pair (question and document), or the messages of a conversation."""

Text = str | Sequence[int]  #: to embed; its tokens, where it is a list of numbers
PLAIN = (bool, int, float, str, type(None))  #: values of template options


@dataclass(frozen=True)
class ModelSource:
    """A model to serve, and under which name."""

    name: str
    path: str  #: directory of a run, a checkpoint, an artifact or a model; a file for engines that read one
    tenants: Path | None = None  #: store of variants of this model: each user is a tenant, asked for as `name@user`
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Tenants by name, each a directory of an adapter of this model."""
    template: str | Mapping[str, Any] | None = None
    """To serve with, where the model does not carry its own: `named_template`."""
    base: str | None = None  #: where the model lies that an adapter or delta belongs to, if not where it was
    media: Media | None = None  #: how images are read, where the model does not say itself how it was trained on some


@dataclass(frozen=True)
class Limits:
    """What an engine may use, whoever asks."""

    max_batch: int = 64  #: rows that are decoded together
    queue: int = 256  #: requests that may wait beside those that are decoded; one more is `Full`
    max_tokens: int | None = None  #: most new tokens of a request; None: what the context leaves
    max_prompt_tokens: int | None = None  #: None: what the context leaves
    max_context: int | None = None  #: tokens of prompt and reply; None: what the model says
    prefix_cache_bytes: int = 2**28  #: of keys and values of prompts that are kept; 0 keeps none
    tenant_bytes: int = 2**29  #: of prepared adapters and deltas in memory
    tenant_cache_bytes: int = 2**28  #: of packed deltas read from the disk
    grammar_bytes: int = 2**16  #: of a schema or pattern
    grammar_seconds: float = 2.0  #: to compile one
    max_logprobs: int = 20  #: alternatives beside a token
    max_images: int = 16  #: of a request
    adapter_folders: tuple[Path, ...] = ()  #: those under which `add_adapter` finds what it reads


@dataclass(frozen=True)
class Grammar:
    """What a reply must look like."""

    kind: GrammarKind
    text: str = ""  #: the schema as JSON, the pattern, or the Lark grammar; unused for `json_object`
    key: str = "response_format"  #: the field of a request that it is from, for what is wrong with it


@dataclass(frozen=True)
class Sampling:
    """How a reply is drawn. Field names and meanings are those of the OpenAI API and of vLLM."""

    max_tokens: int | None = None  #: None: what the context leaves; 0 with `echo`: the prompt alone is shown
    temperature: float = 1.0  #: 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  #: 0 is off
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest, at the temperature, are not drawn; 0 is off."""
    seed: int | None = None  #: the same seed and request give the same reply; None draws one
    stop: tuple[str, ...] = ()  #: texts that end the reply and are no part of it
    stop_token_ids: tuple[int, ...] = ()  #: beside those of the model
    include_stop_str_in_output: bool = False  #: whether what ended the reply is shown, special tokens aside
    min_tokens: int = 0  #: so many tokens at least, before anything ends the reply but its grammar
    bad_words: tuple[str, ...] = ()  #: what would complete one of them, as the tokenizer writes it, is not drawn
    logprobs: int | None = None  #: alternatives beside the chosen token; None: no log-probabilities at all
    logit_bias: Mapping[int, float] = field(default_factory=dict)  #: added to the logits of these tokens
    presence_penalty: float = 0.0  #: subtracted from the logits of tokens that the reply has
    frequency_penalty: float = 0.0  #: the same, for each time that it has one
    repetition_penalty: float = 1.0  #: divides positive and multiplies negative logits of tokens of prompt and reply
    grammar: Grammar | None = None
    ignore_eos: bool = False  #: goes on behind the tokens that end a turn


@dataclass(frozen=True)
class Request:
    """One reply that is asked for: of `messages`, `prompt` and `tokens` exactly one is there.

    The content of a message of the user is a text or, for models with images, a list of parts, `{"type": "text", "text": ...}`
    and `{"type": "image", "image": ...}`: a `data:` URL, or an `OnDisk` where whoever asks may have files read.
    """

    model: str  #: served name, without a tenant
    tenant: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    prompt: str | None = None  #: text that is continued as it stands, without a template
    add_special_tokens: bool = True  #: whether the tokens that begin documents stand before `prompt`
    suffix: str | None = None
    """Text behind `prompt`: the reply is what stands between them; an empty one asks for nothing."""
    tokens: Sequence[int] | None = None
    images: Sequence[OnDisk] = ()  #: that stand in `tokens`, in order
    tools: Sequence[Mapping[str, Any]] | None = None  #: as OpenAI's, shown to the model by its template
    tool_choice: str | Mapping[str, Any] | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)  #: plain values, such as `enable_thinking`
    continue_final_message: bool = False  #: whether the reply goes on with the last message
    sampling: Sampling = field(default_factory=Sampling)
    id: str = ""
    index: int = 0  #: which of `n` replies: the stream of its random numbers
    owner: str | None = None  #: who asks: what is kept of a prompt serves no other; None keeps nothing
    echo: bool = False  #: whether the first piece begins with the prompt

    @property
    def user(self) -> str:
        """Return who takes turns with others; see `gym_serve.names.Asked`."""
        return Asked(self.model, self.tenant, self.owner).user


@dataclass(frozen=True)
class Alternative:
    """A token and how likely it was."""

    token: int
    text: str  #: what it adds, as text; bytes that are no text as replacement characters
    logprob: float
    utf8: bytes = b""  #: what it adds, as bytes


@dataclass(frozen=True)
class TokenLogprob:
    """The token that was chosen: its log-probability at temperature 1, before penalties and masks, and the likeliest ones."""

    token: int
    text: str
    logprob: float | None  #: None of the first token of a prompt that is echoed
    utf8: bytes = b""
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  #: of the prompt, whose keys and values were there
    reasoning_tokens: int = 0  #: of the completion, in thoughts and their marks; fronts count them, and no engine


@dataclass(frozen=True)
class Piece:
    """What was added to a reply. The last piece has a `finish_reason` and the usage; joined, the texts are the reply.

    A piece before it has the usage so far, where an engine counts on the way.
    """

    text: str = ""  #: never half a character, never a part of a stop string
    tokens: tuple[int, ...] = ()
    """What was decoded since the piece before, the token that ended it included; before it the prompt, where that is echoed with
    log-probabilities."""
    logprobs: tuple[TokenLogprob, ...] = ()  #: one for each of `tokens`, where they are asked for
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stop: str | None = None  #: the stop string that ended the reply; None where an engine does not say
    starts: tuple[int, ...] = ()
    """For each of `tokens`, how many characters of what is shown stand before its first one; a token within a character counts
    as its beginning. Without them, tokens begin where the piece does."""


@dataclass(frozen=True)
class Tokenized:
    """A prompt as tokens."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...]  #: how the vocabulary writes each of them


@dataclass(frozen=True)
class ServedModel:
    """A model as a front lists it."""

    name: str
    kind: str  #: of the artifact: `model`, `adapter` or `delta`
    tasks: frozenset[Task]
    created: int  #: seconds since 1970
    context_length: int  #: tokens of prompt and reply
    tenants: bool = False  #: whether `name@tenant` may be asked
    template_hash: str | None = None  #: sha256 of the chat template; None where it has none
    template_options: frozenset[str] = frozenset()  #: names of `Request.template_options` that its template reads
    answers: AnswerFormat | None = None  #: how its template has thoughts and tool calls written, for a front to read
    images: bool = False  #: whether it reads images


class Engine(Protocol):
    """Answers requests over loaded models.

    Where an `owner` is told, users take turns by it, as they do by that of a `Request`.

    Names in `supports`: `stream`, `seed`, `logprobs`, `grammar:json_schema` and the other kinds of grammar, `tools`, `penalties`,
    `logit_bias`, `bad_words`, `min_tokens`, `include_stop_str_in_output`, `top_k`, `min_p`, `tenants`, `cancel`, `score`,
    `embed`, `echo`, `suffix`, `tokenize`, `prefix_cache`, `adapters`. A front refuses whatever else is asked.
    """

    @property
    def supports(self) -> frozenset[str]:
        """Names of what it can do."""
        ...

    def models(self) -> Sequence[ServedModel]:
        """Return what is served, in the order of its sources."""
        ...

    def tenants(self, model: str) -> Sequence[str]:
        """Return the tenants of a model, sorted. Raises Unknown."""
        ...

    async def described(
        self,
        model: str,
        tenant: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        owner: str | None = None,
    ) -> ServedModel:
        """Return a model with the template that a tenant has, and how that has answers written with some options. Raises Unknown.

        An engine whose tenants have no templates of their own, and whose templates take no options, has nothing to add.
        """
        return next(each for each in self.models() if each.name == model)

    def submit(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Return the pieces of a reply as they come. Raises RequestError before the first one; closing the iterator cancels."""
        ...

    async def count(self, request: Request) -> int:
        """Return the tokens of the prompt. Raises RequestError as `submit` does."""
        ...

    async def tokenize(self, request: Request) -> Tokenized:
        """Return the prompt as tokens, none for an empty text. Raises RequestError as `submit` does."""
        ...

    async def detokenize(
        self, model: str, tokens: Sequence[int], tenant: str | None = None, owner: str | None = None
    ) -> str:
        """Return the text of tokens, special ones included. Raises RequestError for what is no token of the model."""
        ...

    async def score(
        self, model: str, inputs: Sequence[ScoreInput], tenant: str | None = None, owner: str | None = None
    ) -> list[float]:
        """Return the score of each input by a reward model or a classifier. Raises RequestError where the model is neither."""
        ...

    async def embed(
        self,
        model: str,
        texts: Sequence[Text],
        dimensions: int | None = None,
        tenant: str | None = None,
        owner: str | None = None,
    ) -> list[list[float]]:
        """Return a vector of length 1 for each text, cut to so many dimensions. Raises RequestError where the model cannot."""
        ...

    async def load(self, model: str, tenant: str) -> None:
        """Read a tenant ahead. Raises RequestError where there is none."""
        ...

    async def add_adapter(self, model: str, name: str, path: str, in_place: bool = False) -> None:
        """Read an adapter of a model from below `Limits.adapter_folders`; it answers under its name from then on.

        One of this name is replaced `in_place`, for requests that come later. Raises RequestError where the name is taken, and
        for what is no such adapter.
        """
        raise BadRequest("this engine takes no adapters while it serves", key="lora_name")

    async def remove_adapter(self, model: str, name: str) -> None:
        """Forget an adapter of a model; replies under way are finished with it. Raises RequestError where there is none."""
        raise BadRequest("this engine takes no adapters while it serves", key="lora_name")

    def statistics(self) -> Mapping[str, float]:
        """Return figures of the moment by name: `running`, `waiting`, `prefix_cache_bytes`, `tenants_loaded`, ..."""
        ...

    async def close(self, timeout: float = 30.0) -> None:
        """Finish the replies under way, for at most so many seconds, and let go of everything; later requests are Gone."""
        ...
