"""Whether a model can be decoded with a key-value cache in batches whose rows enter and leave; tried on a miniature of it.

The reference is a forward pass over the whole text of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from gym_torch.attention import cached_attention
from gym_torch.attention.segment_attention import NAME
from gym_torch.model.hidden_states import no_cache
from gym_torch.model.miniature import likeness, miniature
from gym_torch.model.rope_scaling import steady

Decode = Callable[
    [PreTrainedModel, list[list[int]], int, "CacheSupport"], Sequence[tuple[Sequence[int], Sequence[float]]]
]
"""Continues prompts greedily by a number of tokens with a cache, as the support allows; returns tokens and log-probabilities."""

PROMPTS, NEW = (3, 30, 12), 14  #: lengths of prompts on both sides of every threshold, and new tokens that cross some
LONG = (66, 70)  #: lengths of prompts that are long enough to be shared


@dataclass(frozen=True)
class CacheSupport:
    """How a model can be decoded."""

    cached: bool  #: whether with a cache at all; else each token computes its whole text
    shared: bool = False  #: whether a prompt that several rows continue can be kept once
    ragged: bool = False  #: whether rows need no padding: see `gym_torch.generation.ragged_rows`
    why: str = ""  #: why there is no cache


_KNOWN: dict[tuple[object, ...], CacheSupport] = {}


def cache_support_of(model: PreTrainedModel, longest: int, decode: Decode) -> CacheSupport:
    """Return how texts of up to `longest` tokens can be decoded; remembered for models of the same configuration."""
    key = likeness(model, longest)
    if key not in _KNOWN:
        _KNOWN[key] = _tried(model, longest, decode)
    return _KNOWN[key]


@torch.autocast("cpu", enabled=False)  # whoever generates may round; what is found out holds for all of them
def _tried(model: PreTrainedModel, longest: int, decode: Decode) -> CacheSupport:
    try:
        small = miniature(model, longest)
        steady(small)
        vocabulary = small.config.get_text_config().vocab_size - 4
        texts = [[3 + (7 * place + length) % vocabulary for place in range(length)] for length in (*PROMPTS, *LONG)]
        found = _differs(small, texts[: len(PROMPTS)], decode, CacheSupport(True))
        if found > 1e-3:
            return CacheSupport(False, why=f"with a cache its log-probabilities differ by {found:.2g}")
        several = [*[texts[-2]] * 3, *[texts[-1]] * 3]
        shared = (
            small.config._attn_implementation == NAME
            and _differs(small, several, decode, CacheSupport(True, True)) < 1e-3
        )
        return CacheSupport(True, shared, _may_be_ragged(small) and _ragged(small, [*texts, *several], decode))
    except Exception as error:  # the code of a family, called in a way that it may not know
        return CacheSupport(False, why=f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}")


def _may_be_ragged(model: PreTrainedModel) -> bool:
    """Whether it attends as torch does, or through `gym_torch.attention.segment_attention`, which also caps scores."""
    implementation, options = model.config._attn_implementation, model.config.get_text_config()
    return implementation == NAME or (implementation == "sdpa" and not getattr(options, "attn_logit_softcapping", None))


def _ragged(model: PreTrainedModel, texts: list[list[int]], decode: Decode) -> bool:
    try:
        with cached_attention.CHOICES.untried():
            return _differs(model, texts, decode, CacheSupport(True, ragged=True)) < 1e-3
    except Exception:  # the code of a family, called in a way that it may not know
        return False


@torch.no_grad()
def _differs(model: PreTrainedModel, prompts: list[list[int]], decode: Decode, support: CacheSupport) -> float:
    """Return the largest absolute error of the log-probabilities of decoded tokens."""
    largest = 0.0
    for prompt, (tokens, log_probs) in zip(prompts, decode(model, prompts, NEW, support), strict=True):
        text = torch.tensor([[*prompt, *tokens]])
        scores = (
            model(input_ids=text, **no_cache(type(model).forward))
            .logits[0, len(prompt) - 1 : -1]
            .float()
            .log_softmax(-1)
        )
        wanted = scores.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        largest = max(largest, float((wanted - torch.tensor(log_probs)).abs().max()))
    return largest if largest == largest else float("inf")
