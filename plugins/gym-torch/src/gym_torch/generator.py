"""Batched decoding: finished rows leave, waiting ones enter, and no row depends on its company.

Identical prompts are computed once. Nothing here knows about chat or rewards; `complete` at the end
is the one bridge from messages to texts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.kvcache import RowCache
from gym_torch.sampling import choose, uniform

if TYPE_CHECKING:
    from gym_data.tokenizer import Tokenizer

_LAYERS = {"full_attention", "sliding_attention"}


@dataclass
class Completion:
    """What was generated for one prompt."""

    tokens: list[int] = field(default_factory=list)  #: the token that ended it included
    log_probs: list[float] = field(default_factory=list)  #: of each token; see `gym_torch.sampling.choose`
    finished: bool = False  #: whether a stop token ended it, rather than the length


@dataclass
class _Batch:
    """Rows in flight. All lists and tensors have one entry a row."""

    requests: list[int]  #: which prompt
    lengths: Tensor  #: tokens in the cache
    last: Tensor  #: token chosen last, not in the cache yet
    cache: RowCache

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows, and the columns that only they used."""
        if len(rows) == len(self.requests):
            return
        index = torch.tensor(rows, dtype=torch.long, device=self.last.device)
        self.requests = [self.requests[row] for row in rows]
        self.lengths, self.last = self.lengths[index], self.last[index]
        if rows:
            self.cache.select(index, int(self.lengths.max()))

    def join(self, other: _Batch) -> None:
        """Take in the rows of another batch."""
        self.requests = self.requests + other.requests
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.last = torch.cat([self.last, other.last])
        self.cache.append(other.cache)


class Generator:
    """Generates with a causal language model, many prompts at a time."""

    def __init__(self, model: PreTrainedModel, tokenizer: Tokenizer, max_batch: int = 64) -> None:
        """Use a model as it is at each call: a model in training may be given once and asked again and again.

        Args:
            model: any transformers causal language model with full or sliding-window attention.
            tokenizer: names the token that ends a turn.
            max_batch: most rows in one forward pass.

        Raises:
            GymError: the model keeps a state that rows cannot leave or enter.

        """
        kinds = set(model.config.get_text_config().to_dict().get("layer_types") or ())
        if not kinds <= _LAYERS:
            raise GymError(
                f"the generator does not know {', '.join(sorted(kinds - _LAYERS))} layers", where=type(model).__name__
            )
        self.model = model
        self.max_batch = max_batch
        ends = model.generation_config.eos_token_id if model.generation_config else None
        ends = ends if isinstance(ends, list) else [ends]
        self._stop = {token for token in (tokenizer.eos_id, *ends) if token is not None}

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop_ids: Collection[int] | None = None,
    ) -> list[Completion]:
        """Continue each prompt until a stop token or `max_new_tokens`.

        Sampling is a function of `seed`, the index of the prompt in the list and the position, whatever the batch. For
        several samples of one prompt, repeat it.

        Args:
            prompts: token ids, at least one each.
            max_new_tokens: most tokens to generate for a prompt.
            temperature: 0 is greedy.
            top_p: see `gym_torch.sampling.choose`.
            seed: any integer.
            stop_ids: tokens that end a completion; by default those of tokenizer and model.

        Returns:
            A completion for each prompt, in order.

        """
        if not all(prompts):
            raise GymError("a prompt has no tokens", where="Generator.generate")
        done = [Completion() for _ in prompts]
        stop = self._stop if stop_ids is None else set(stop_ids)
        # Longest first: neighbours are alike in length, identical prompts meet, and too little memory shows at once.
        waiting = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), list(prompts[index])))
        if max_new_tokens < 1:
            waiting = []

        def extend(batch: _Batch, logits: Tensor) -> _Batch:
            """Choose and record a token for each row; drop the rows it ends."""
            places = [(request, len(done[request].tokens)) for request in batch.requests]
            draws = [uniform(seed, *place) for place in places] if temperature else []
            batch.last, log_probs = choose(logits, temperature, top_p, draws)
            going = []
            chosen = zip(batch.requests, batch.last.tolist(), log_probs.tolist(), strict=True)
            for row, (request, token, log_prob) in enumerate(chosen):
                completion = done[request]
                completion.tokens.append(token)
                completion.log_probs.append(log_prob)
                completion.finished = token in stop
                if not completion.finished and len(completion.tokens) < max_new_tokens:
                    going.append(row)
            batch.keep(going)
            return batch

        training = self.model.training
        self.model.eval()
        running: _Batch | None = None
        while waiting or running:
            free = self.max_batch - (len(running.requests) if running else 0)
            # A forward pass for one new row costs about as much as for many, so wait until a quarter is free.
            if waiting and (running is None or free * 4 >= self.max_batch):
                requests = [waiting.pop() for _ in range(min(free, len(waiting)))]
                entering = extend(*self._prefill(requests, prompts))
                if running and entering.requests:
                    running.join(entering)
                elif not running:
                    running = entering
            if running and running.requests:
                running = extend(running, self._step(running))
            if running and not running.requests:
                running = None
        self.model.train(training)
        return done

    def _prefill(self, requests: list[int], prompts: Sequence[Sequence[int]]) -> tuple[_Batch, Tensor]:
        """Run the prompts, each distinct one once; return the rows and the logits `[rows, vocabulary]` that follow."""
        texts = {tuple(prompts[request]): None for request in requests}
        numbers = {text: number for number, text in enumerate(texts)}
        width = max(map(len, texts))
        device = self.model.device
        tokens = torch.tensor([(0,) * (width - len(text)) + text for text in texts], device=device)
        lengths = torch.tensor([len(text) for text in texts], device=device)
        cache = RowCache()
        logits = self._forward(tokens, lengths, cache)
        rows = torch.tensor([numbers[tuple(prompts[request])] for request in requests], device=device)
        if len(rows) > len(texts):
            cache.select(rows, width)
            lengths, logits = lengths[rows], logits[rows]
        return _Batch(requests, lengths, rows, cache), logits

    def _step(self, batch: _Batch) -> Tensor:
        """Run the tokens chosen last; return the logits `[rows, vocabulary]` that follow."""
        batch.lengths = batch.lengths + 1
        return self._forward(batch.last[:, None], batch.lengths, batch.cache)

    def _forward(self, tokens: Tensor, lengths: Tensor, cache: RowCache) -> Tensor:
        """Run `tokens` `[rows, new]`, after which row i has `lengths[i]` tokens in the cache, aligned at the right."""
        width = cache.get_seq_length() + tokens.shape[1]
        columns = torch.arange(width, device=tokens.device)
        positions = columns - (width - lengths[:, None])  # [rows, width], negative in the padding
        output = self.model(
            input_ids=tokens,
            attention_mask=(positions >= 0).long(),
            position_ids=positions[:, -tokens.shape[1] :].clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


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
