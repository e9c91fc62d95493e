"""Batched decoding: finished rows leave, waiting ones enter, and no row depends on its company.

Identical prompts are computed once. Nothing here knows about chat or rewards; `complete` at the end
is the one bridge from messages to texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from gym_core import GymError
from gym_torch.console import say
from gym_torch.generation.cache_support import Way, way_of
from gym_torch.generation.kv_cache import RowCache, fill
from gym_torch.generation.sampling import choose, uniform
from gym_torch.generation.shared_prefixes import Shared, shares
from gym_torch.generation.uncached import following
from gym_torch.model.expert_routing import Routers
from gym_torch.model.layout_support import in_small
from gym_torch.model.log_probs import head_of
from gym_torch.model.stop_tokens import stops
from gym_torch.policy import evaluating

if TYPE_CHECKING:
    from gym_data.tokenizer import Tokenizer

_Text = tuple[Hashable, tuple[int, ...]]  #: a prompt and its key
Around = Callable[[list[Hashable]], AbstractContextManager[None]]


@dataclass
class Completion:
    """What was generated for one prompt."""

    tokens: list[int] = field(default_factory=list)  #: the token that ended it included
    log_probs: list[float] = field(default_factory=list)  #: of each token; see `gym_torch.generation.sampling.choose`
    finished: bool = False  #: whether a stop token ended it, rather than the length
    routed: list[Tensor] = field(default_factory=list)
    """Experts of the prompt and of each token but the last, which no pass has seen: `[tokens, layers, k]` int16, to be joined."""


@dataclass
class _Batch:
    """Rows in flight. All lists and tensors have one entry a row."""

    requests: list[int]  #: which prompt
    lengths: list[int]  #: tokens in the cache
    last: Tensor  #: token chosen last, not in the cache yet
    cache: RowCache = field(default_factory=RowCache)
    shared: Shared | None = None  #: the prompts, where they are not in the cache
    around: Around = lambda keys: nullcontext()

    def enter(self, requests: list[int]) -> None:
        """Add rows that have nothing in the cache."""
        self.requests += requests
        self.lengths += [0] * len(requests)
        self.last = torch.cat([self.last, self.last.new_zeros(len(requests))])

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows, and the columns that only they used."""
        if len(rows) < len(self.requests):
            order = fill(rows)
            self.requests = [self.requests[row] for row in order]
            self.lengths = [self.lengths[row] for row in order]
            self.last = self.last[order]
            self.cache.keep(order, max(self.lengths, default=0))
            if self.shared:
                self.shared.keep(order)


class Generator:
    """Generates with a causal language model, many prompts at a time."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer | None,
        max_batch: int = 64,
        routers: Routers | None = None,
        way: Way | None = None,
    ) -> None:
        """Use a model as it is at each call: a model in training may be given once and asked again and again.

        Args:
            model: any transformers causal language model. Where rows cannot enter and leave its cache, every token
                computes the whole text anew.
            tokenizer: names the token that ends a turn; None where calls name `stop_ids`.
            max_batch: most rows in one forward pass.
            routers: those of the model, where the experts of every token are to be recorded.
            way: how the model can be decoded; by default found out for the longest text of each call.

        """
        self.model = model
        self.max_batch = max_batch
        self.routers = routers
        self._way = way
        self._said = ""
        self._stop = stop_ids(model, tokenizer) if tokenizer is not None else set[int]()

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int | Sequence[int],
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop_ids: Collection[int] | None = None,
        streams: Sequence[int] | None = None,
        keys: Sequence[Hashable] | None = None,
        around: Around | None = None,
    ) -> list[Completion]:
        """Continue each prompt until a stop token or `max_new_tokens`.

        Sampling is a function of `seed`, the stream of the prompt and the position, whatever the batch. For several
        samples of one prompt, repeat it.

        Args:
            prompts: token ids, at least one each.
            max_new_tokens: most tokens to generate, for every prompt or one number for each.
            temperature: 0 is greedy.
            top_p: see `gym_torch.generation.sampling.choose`.
            seed: any integer.
            stop_ids: tokens that end a completion; by default those of tokenizer and model.
            streams: for each prompt the number of its random numbers; by default its index in the list.
            keys: what an answer depends on beside its prompt, such as whose it is: only prompts of one key are computed once.
            around: makes the context of each forward pass, given the keys of its rows.

        Returns:
            A completion for each prompt, in order.

        """
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
        if not all(prompts) or len(limits) != len(prompts):
            why = f"{len(limits)} limits for {len(prompts)} prompts" if all(prompts) else "a prompt has no tokens"
            raise GymError(why, where="Generator.generate")
        streams = range(len(prompts)) if streams is None else streams
        texts = list(zip(keys or [None] * len(prompts), map(tuple, prompts), strict=True))
        done = [Completion() for _ in prompts]
        stop = self._stop if stop_ids is None else set(stop_ids)
        # Longest first: neighbours are alike in length, identical prompts meet, and too little memory shows at once.
        waiting = [index for index, limit in enumerate(limits) if limit > 0]
        waiting.sort(key=lambda index: (len(prompts[index]), list(prompts[index])))

        def extend(batch: _Batch, logits: Tensor) -> None:
            """Choose and record a token for the last rows, one for each row of logits; drop the rows it ends."""
            old = len(batch.requests) - len(logits)
            places = [(request, len(done[request].tokens)) for request in batch.requests[old:]]
            draws = [uniform(seed, streams[request], at) for request, at in places] if temperature else []
            batch.last[old:], log_probs = choose(logits, temperature, top_p, draws)
            going = list(range(old))
            chosen = zip(places, batch.last[old:].tolist(), log_probs.tolist(), strict=True)
            for row, ((request, count), token, log_prob) in enumerate(chosen, old):
                completion = done[request]
                completion.tokens.append(token)
                completion.log_probs.append(log_prob)
                completion.finished = token in stop
                if not completion.finished and count + 1 < limits[request]:
                    going.append(row)
            batch.keep(going)

        batch = _Batch([], [], torch.empty(0, dtype=torch.long, device=self.model.device))
        longest = max((len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=0)
        way = self._way or way_of(self.model, longest, decode_batch)
        batch.shared = Shared() if way.shared and shares(self.model, prompts) else None
        batch.around = around or batch.around
        logits_of = None if way.cached or not prompts else self._whole(way, longest)

        def whole(requests: list[int]) -> Tensor:
            """Return the logits `[requests, vocabulary]` that follow texts, computed anew."""
            assert logits_of is not None
            if around and len(requests) > 1:  # such a model may be computed row by row
                return torch.cat([whole([request]) for request in requests])
            with batch.around([texts[request][0] for request in requests]):
                return logits_of([[*prompts[request], *done[request].tokens] for request in requests])

        with evaluating(self.model):
            while waiting or batch.requests:
                free = self.max_batch - len(batch.requests)
                # A forward pass for one new row costs about as much as for many, so wait until a quarter is free.
                if waiting and free * 4 >= self.max_batch:
                    entering = [waiting.pop() for _ in range(min(free, len(waiting)))]
                    # A group that does not fit beside the others waits, so that its prompt is computed once.
                    while waiting and prompts[waiting[-1]] == prompts[entering[-1]] != prompts[entering[0]]:
                        waiting.append(entering.pop())
                    if logits_of:
                        batch.enter(entering)
                    extend(batch, whole(entering) if logits_of else self._enter(batch, entering, texts, done))
                if batch.requests:
                    extend(batch, whole(batch.requests) if logits_of else self._step(batch, texts, done))
        return done

    def _whole(self, way: Way, longest: int) -> Callable[[Sequence[Sequence[int]]], Tensor]:
        """Return what gives the logits that follow texts without a cache, and say once that it is used."""
        if self.routers is not None:
            raise GymError(
                f"experts are recorded with a cache, and {type(self.model).__name__} has none that rows can share",
                key="algorithm.routing_replay",
                fix="leave `routing_replay` out",
            )
        if way.why != self._said:
            say(f"every token that is generated computes its whole text anew: {way.why}")
            self._said = way.why
        return partial(following, self.model, head_of(self.model), in_small(self.model, longest, packs=False).layout)

    def _enter(self, batch: _Batch, requests: list[int], prompts: Sequence[_Text], done: list[Completion]) -> Tensor:
        """Run the prompts, each distinct one once, add their rows to the batch, and return the logits that follow."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(prompts[request] for request in requests))}
        keys, texts = [key for key, _ in numbers], [text for _, text in numbers]
        width = max(map(len, texts))
        device = self.model.device
        tokens = torch.tensor([(0,) * (width - len(text)) + text for text in texts], device=device)
        cache = DynamicCache()
        with batch.around(keys):
            logits, routed = self._forward(tokens, list(map(len, texts)), cache)
        if routed is not None:
            own = [experts[width - len(text) :].clone() for experts, text in zip(routed, texts, strict=True)]
            for request in requests:
                done[request].routed.append(own[numbers[prompts[request]]])
        rows = torch.tensor([numbers[prompts[request]] for request in requests], device=device)
        if batch.shared:
            batch.shared.take(cache, list(map(len, texts)), rows.tolist())
        batch.cache.append(cache, rows)
        batch.requests += requests
        batch.lengths += [0 if batch.shared else len(prompts[request][1]) for request in requests]
        batch.last = torch.cat([batch.last, rows])
        return logits[rows]

    def _step(self, batch: _Batch, prompts: Sequence[_Text], done: list[Completion]) -> Tensor:
        """Run the tokens chosen last; return the logits `[rows, vocabulary]` that follow."""
        batch.lengths = [length + 1 for length in batch.lengths]
        with batch.around([prompts[request][0] for request in batch.requests]):
            logits, routed = self._forward(batch.last[:, None], batch.lengths, batch.cache, batch.shared)
        if routed is not None:
            for request, experts in zip(batch.requests, routed, strict=True):
                done[request].routed.append(experts)
        return logits

    def _forward(
        self, tokens: Tensor, lengths: list[int], cache: Cache, shared: Shared | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run `tokens` `[rows, new]`, after which row i has `lengths[i]` tokens in the cache, aligned at the right.

        Returns logits `[rows, vocabulary]` and, where they are recorded, experts `[rows, new, layers, k]` on the CPU.
        """
        width = cache.get_seq_length() + tokens.shape[1]
        padding = width - torch.tensor(lengths, device=tokens.device)[:, None]
        columns = torch.arange(width, device=tokens.device)
        positions = (columns[-tokens.shape[1] :] - padding).clamp(min=0)
        extra = {"shared": shared.attend} if shared else {}
        run = partial(
            self.model,
            input_ids=tokens,
            attention_mask=columns >= padding,
            position_ids=positions + torch.tensor(shared.starts())[:, None] if shared else positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            **extra,
        )
        if self.routers is None:
            return run().logits[:, -1], None
        output, routed = self.routers.record(run)
        return output.logits[:, -1], routed.unflatten(0, tokens.shape).cpu()


def decode_batch(model: PreTrainedModel, prompts: list[list[int]], count: int) -> list[tuple[list[int], list[float]]]:
    """Continue prompts with a cache, for the trial whether that is right."""
    made = Generator(model, None, way=Way(True, True)).generate(prompts, count, stop_ids=())
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
    return [tokenizer.decode(made.tokens[:-1] if made.finished else made.tokens) for made in completions]
