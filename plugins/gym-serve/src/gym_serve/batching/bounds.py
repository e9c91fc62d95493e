"""What a request may ask of a model, and which tokens end its reply: the same whatever decodes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gym_serve.batching.batch_model import Words
from gym_serve.batching.middle import middle_ends
from gym_serve.contract import Limits, Request, Sampling
from gym_serve.errors import BadRequest, TooLong


def check(sampling: Sampling, limits: Limits, vocabulary: int) -> None:
    """Raise BadRequest for tokens that are none of a vocabulary of this size, and for more alternatives than are given."""
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= limits.max_logprobs:
        raise BadRequest(f"from 0 to {limits.max_logprobs} alternatives are given", key="top_logprobs")
    check_tokens(sampling.logit_bias, vocabulary, "logit_bias")
    check_tokens(sampling.stop_token_ids, vocabulary, "stop_token_ids")


def check_tokens(tokens: Iterable[int], vocabulary: int, key: str) -> None:
    """Raise BadRequest for tokens that are none of a vocabulary of this size."""
    if not all(0 <= token < vocabulary for token in tokens):
        raise BadRequest(f"tokens are numbers from 0 to {vocabulary - 1}", key=key)


def check_prompt(limits: Limits, context: int, prompt: int, request: Request) -> None:
    """Raise TooLong for a prompt of more tokens than fit."""
    most = min(context - 1, limits.max_prompt_tokens or context)
    if prompt > most:
        key = "messages" if request.messages is not None else "prompt"
        raise TooLong(f"the prompt is too long: it has {prompt} tokens, and may have {most}", key=key)


def limit(limits: Limits, context: int, prompt: int, request: Request) -> int:
    """Return the most tokens of a reply to a prompt of so many that fits. Raises BadRequest where those are none."""
    bounds = [context - prompt, limits.max_tokens, request.sampling.max_tokens]
    found = min(bound for bound in bounds if bound is not None)
    if found < 1:
        raise BadRequest("at least one token must be asked for", key="max_tokens")
    return found


def ends(request: Request, usual: Collection[int], words: Words) -> frozenset[int]:
    """Return the tokens that end a reply of a model which usually ends with these."""
    sampling = request.sampling
    going_on = sampling.ignore_eos and sampling.grammar is None  # a grammar has such a token at its end alone
    own = frozenset(usual) | (middle_ends(words) if request.suffix else frozenset())
    return frozenset(sampling.stop_token_ids) | (frozenset() if going_on else own)
