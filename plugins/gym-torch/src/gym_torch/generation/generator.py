"""Batched generation from a list of prompts: finished rows leave the batch, waiting ones enter, and no row depends on the others.

Identical prompts are computed once. Nothing here knows about chat or rewards; `complete` at the end
is the one bridge from messages to texts.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.console import say
from gym_torch.generation.cache_support import CacheSupport, cache_support_of
from gym_torch.generation.cast_once import cast_once
from gym_torch.generation.decoding import Decoding
from gym_torch.generation.drafts import MOST
from gym_torch.generation.padded_rows import Around
from gym_torch.generation.prefix_cache import PrefixCache
from gym_torch.generation.row import Completion, Inputs, Row
from gym_torch.generation.sampling import SamplingOptions
from gym_torch.generation.separate_rows import SeparateRows
from gym_torch.generation.shared_prompts import SharedPrompts, shares
from gym_torch.generation.stop_strings import StopStrings
from gym_torch.kernels.fused_modules import fuse
from gym_torch.model.expert_routing import Routers
from gym_torch.model.stop_tokens import stops
from gym_torch.policy import evaluating

if TYPE_CHECKING:
    from gym_data.tokenizer import Tokenizer


class Generator:
    """Generates with a causal language model, many prompts at a time."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer | None,
        max_batch: int = 64,
        routers: Routers | None = None,
        support: CacheSupport | None = None,
        guesses: int = MOST,
    ) -> None:
        """Use a model as it is at each call: a model in training may be given once and asked again and again.

        Args:
            model: any transformers causal language model. Where rows cannot enter and leave its cache, every token
                computes the whole text anew.
            tokenizer: names the token that ends a turn, and decodes where calls name stop strings; None where they name
                `stop_ids`.
            max_batch: most rows in one forward pass.
            routers: those of the model, where the experts of every token are to be recorded.
            support: how the model can be decoded; by default found out for the longest text of each call.
            guesses: most tokens that are guessed at once for a row, which changes no answer.

        """
        fuse(model)
        self.model = model
        self.max_batch = max_batch
        self.routers = routers
        self._guesses = guesses
        self._support = support
        self._said = ""
        self._tokenizer = tokenizer
        self.stop_ids = (
            stop_ids(model, tokenizer) if tokenizer is not None else set[int]()
        )  #: end completions by default

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int | Sequence[int],
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int = 0,
        streams: Sequence[int] | None = None,
        stop_ids: Collection[int] | None = None,
        stop: Sequence[str] = (),
        keys: Sequence[Hashable] | None = None,
        around: Around | None = None,
        prefixes: PrefixCache | None = None,
        inputs: Sequence[Inputs | None] | None = None,
    ) -> list[Completion]:
        """Continue each prompt until a stop token, a stop string or `max_new_tokens`.

        Sampling is a function of `seed`, the stream of the prompt and the position, whatever the batch. For several
        samples of one prompt, repeat it.

        Args:
            prompts: token ids, at least one each.
            max_new_tokens: most tokens to generate, for every prompt or one number for each.
            temperature: 0 is greedy.
            top_p: see `gym_torch.generation.sampling.choose`.
            top_k: as `top_p`.
            min_p: as `top_p`.
            seed: any integer.
            streams: for each prompt the number of its random numbers; by default its index in the list.
            stop_ids: tokens that end a completion; by default those of tokenizer and model.
            stop: texts, none of them empty; a completion ends with the token that makes one of them whole.
            keys: what an answer depends on beside its prompt, such as whose it is: only prompts of one key are computed once.
            around: makes the context of each forward pass, given the keys of its rows.
            prefixes: cache of beginnings of prompts; these texts are added to it. For one model with the same weights.
            inputs: for each prompt what the model is given beside its tokens, such as images, or None. Those with any share no
                pass, and neither `keys`, `around` nor `prefixes` is for them. Equal ones are computed once.

        Returns:
            A completion for each prompt, in order.

        """
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
        if not all(prompts) or len(limits) != len(prompts):
            why = f"{len(limits)} limits for {len(prompts)} prompts" if all(prompts) else "a prompt has no tokens"
            raise GymError(why, where="Generator.generate")
        streams = range(len(prompts)) if streams is None else streams
        options = SamplingOptions(temperature, top_p, top_k, seed, min_p)
        ends = self.stop_ids if stop_ids is None else set(stop_ids)
        if stop and self._tokenizer is None:
            raise GymError("stop strings, and no tokenizer that decodes", where="Generator.generate")
        texts = StopStrings(stop, self._tokenizer.decode) if self._tokenizer and stop else None
        none = [None] * len(prompts)
        each = zip(prompts, limits, streams, keys or none, inputs or none, strict=True)
        rows = [
            Row(
                tuple(prompt),
                limit,
                ends,
                options,
                stream,
                key,
                None if prefixes is None else (key,),
                stop_strings=texts,
                inputs=more,
            )
            for prompt, limit, stream, key, more in each
        ]
        # Longest first: neighbours are alike in length, identical prompts meet, and too little memory shows at once.
        waiting = [row for row in rows if row.limit > 0]
        waiting.sort(key=lambda row: (len(row.prompt), row.prompt))
        if apart := [row for row in waiting if row.inputs]:
            self._decode_apart(apart)
            waiting = [row for row in waiting if not row.inputs]
        if waiting:
            self._decode(waiting, around, prefixes)
        return [row.completion for row in rows]

    def _decode_apart(self, waiting: Sequence[Row]) -> None:
        """Continue rows with more than tokens, those of one prompt together."""
        if self.routers is not None:
            raise GymError(
                "experts are not recorded of prompts with images",
                key="algorithm.routing_replay",
                fix="leave `routing_replay` out",
            )
        alike: dict[Hashable, list[Row]] = {}
        for row in waiting:
            alike.setdefault((row.prompt, row.inputs), []).append(row)
        with evaluating(self.model), cast_once(self.model):
            for rows in alike.values():
                for start in range(0, len(rows), self.max_batch):
                    batch = SeparateRows(self.model)
                    batch.admit(rows[start : start + self.max_batch])
                    while batch.rows:
                        batch.step()

    def _decode(self, waiting: list[Row], around: Around | None, prefixes: PrefixCache | None) -> None:
        """Continue all rows of `waiting`, beginning with the last, and empty the list."""
        longest = max(len(row.prompt) + row.limit for row in waiting)
        support = self._support or cache_support_of(self.model, longest, decode_batch)
        if not support.cached and support.why != self._said:
            say(f"every token that is generated computes its whole text anew: {support.why}")
            self._said = support.why
        once = prefixes is None and support.shared and shares(self.model, [row.prompt for row in waiting])
        shared = SharedPrompts() if once else None
        cast = cast_once(self.model) if around is None else nullcontext()  # what is around may change weights
        with evaluating(self.model), cast:
            batch = Decoding(self.model, support, longest, self.routers, around, shared, prefixes, self._guesses)
            while waiting or batch.rows:
                free = self.max_batch - len(batch.rows)
                # A forward pass for one new row costs about as much as for many, so wait until a quarter is free.
                if waiting and free * 4 >= self.max_batch:
                    entering = [waiting.pop() for _ in range(min(free, len(waiting)))]
                    # A group that does not fit beside the others waits, so that its prompt is computed once.
                    while waiting and waiting[-1].prompt == entering[-1].prompt != entering[0].prompt:
                        waiting.append(entering.pop())
                    batch.admit(entering)
                if batch.rows:
                    batch.step()


def decode_batch(
    model: PreTrainedModel, prompts: list[list[int]], count: int, support: CacheSupport
) -> list[tuple[list[int], list[float]]]:
    """Return tokens and log-probabilities of a greedy continuation with a cache, for `cache_support_of`."""
    made = Generator(model, None, support=support).generate(prompts, count, stop_ids=())
    return [(completion.tokens, completion.log_probs) for completion in made]


def stop_ids(model: PreTrainedModel, tokenizer: Tokenizer) -> set[int]:
    """Return the tokens that end a completion: those of the tokenizer and of the model."""
    return {token for token in (tokenizer.eos_id, *stops(model)) if token is not None}


def complete(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    rows: Sequence[Mapping[str, Any]],
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    max_batch: int = 64,
) -> list[str]:
    """Return the assistant's next message of each row (`messages`, and `tools` if it has any), without its stop token."""
    chats = (tokenizer.chat(list(row["messages"]), row.get("tools"), generation_prompt=True) for row in rows)
    prompts = [tokens.tolist() for tokens, _ in chats]
    generator = Generator(model, tokenizer, max_batch)
    completions = generator.generate(prompts, max_new_tokens, temperature=temperature, seed=seed)
    return [tokenizer.decode(made.said) for made in completions]
