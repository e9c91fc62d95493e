"""A language model that evaluators ask: whatever Gym opens as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from gym_core import Artifact, GymError
from gym_data.tokenizer import Tokenizer
from gym_eval.log_likelihoods import Continuation, LogLikelihood, log_likelihoods
from gym_serve.contract import Limits, ModelSource
from gym_serve.inference.progress import Progress
from gym_serve.local.model import tenants_of
from gym_serve.local.opening import open_source
from gym_torch.batch import Batch
from gym_torch.generation.generator import Generator
from gym_torch.generation.row import Completion
from gym_torch.kernels.linear_products import multiply
from gym_torch.model.layout_support import layout_support_of
from gym_torch.model.log_probs import head_of

TOGETHER = 256  #: prompts whose answers are generated before it is told how far that is


@dataclass(frozen=True)
class LanguageModel:
    """A model in memory, and what it may be asked: how likely a text is, and how it goes on."""

    name: str
    artifact: Artifact  #: where it is from
    model: PreTrainedModel
    tokenizer: Tokenizer
    context: int  #: most tokens of a text and its continuation
    batch_tokens: int  #: of a pass, about
    tenant: Hashable  #: names what answers beside the model; None where it answers by itself
    around: Callable[[list[Hashable]], AbstractContextManager[None]]
    """The context of a pass, given for each of its rows what answers."""

    def log_likelihoods(self, asked: Sequence[Continuation], longest: int | None = None) -> list[LogLikelihood]:
        """Return how likely each continuation is, of texts whose last `longest` tokens the model is given.

        What texts begin with alike is computed once, where the layout of the model allows it. Raises GymError where a text or a
        continuation has no tokens, or a continuation more than the model may be given.
        """
        longest = longest or self.context
        for context, continuation in asked:
            if not len(context) or not 0 < len(continuation) <= longest:
                why = f"a continuation of {len(continuation):,} tokens after {len(context):,} cannot be scored"
                raise GymError(
                    why, where=self.name, fix=f"both must have some, and the continuation at most {longest:,}"
                )
        if not asked:
            return []
        most = min(longest, max(len(context) + len(continuation) for context, continuation in asked))
        layout = layout_support_of(self.model, most, packs=self.tenant is None).layout
        progress = Progress(len(asked), 0)
        found = log_likelihoods(
            self.model,
            asked,
            longest,
            head=head_of(self.model),
            layout=layout,
            batch_tokens=self.batch_tokens,
            around=self._around,
            told=progress.told,
        )
        progress.end()
        return found

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop: Sequence[str] = (), **options: Any
    ) -> list[Completion]:
        """Return how each prompt goes on; `options` are further ones of `gym_torch.generation.generator.Generator.generate`.

        Each prompt draws random numbers of its own, also where the same one stands there several times.
        """
        generator, progress = Generator(self.model, self.tokenizer), Progress(len(prompts), 0)
        order = sorted(range(len(prompts)), key=lambda number: (-len(prompts[number]), prompts[number]))
        found: dict[int, Completion] = {}
        for start in range(0, len(order), TOGETHER):
            numbers = order[start : start + TOGETHER]
            beside = {} if self.tenant is None else {"around": self.around, "keys": [self.tenant] * len(numbers)}
            some = [prompts[number] for number in numbers]
            made = generator.generate(some, max_new_tokens, stop=stop, streams=numbers, **beside, **options)
            found.update(zip(numbers, made, strict=True))
            progress.told(len(numbers), sum(len(each.tokens) for each in made))
        progress.end()
        return [found[number] for number in range(len(prompts))]

    def _around(self, batch: Batch) -> AbstractContextManager[None]:
        return nullcontext() if self.tenant is None else self.around([self.tenant] * len(batch.tokens))


@contextmanager
def opened(source: ModelSource, tenant: str | None, dtype: str, batch_tokens: int) -> Iterator[LanguageModel]:
    """Yield the model of a source, or with `tenant` what a variant in its store answers by.

    Raises what opening it raises, and GymError for a model that scores texts.
    """
    limits = Limits()
    served = open_source(source, limits, dtype)
    if served.head is not None:
        fix = "name a language model; `gym predict` and `gym api` ask reward models"
        raise GymError("it gives texts a score, and writes none", where=source.path, fix=fix)
    tenants = tenants_of(served, limits)
    with ExitStack() as stack:
        stack.callback(tenants.close)
        answering = tenants.open(tenant, stack)
        if answering.key is None:
            multiply(answering.model)
        name = source.name if tenant is None else f"{source.name}@{tenant}"
        model, tokenizer, context = answering.model, answering.tokenizer, answering.context
        beside = answering.key, tenants.around
        yield LanguageModel(name, served.artifact, model, tokenizer, context, batch_tokens, *beside)
