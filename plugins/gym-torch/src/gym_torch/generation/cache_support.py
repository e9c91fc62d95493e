"""How a model can be decoded: with a cache, in batches of rows that come and go, or without one. Found out on a miniature of it.

The oracle is a plain pass over the whole text, alone.
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

Decode = Callable[[PreTrainedModel, list[list[int]], int, "Way"], Sequence[tuple[Sequence[int], Sequence[float]]]]
"""Continues prompts by so many tokens with a cache, greedily, in a way; returns tokens and their log-probabilities."""

PROMPTS, NEW = (3, 30, 12), 14  #: lengths that lie on both sides of every threshold, and tokens that cross some
LONG = (66, 70)  #: prompts that are worth sharing


@dataclass(frozen=True)
class Way:
    """What can be done."""

    cached: bool
    shared: bool = False  #: whether prompts that several rows continue can be kept once
    ragged: bool = False  #: whether rows may be as long as they are: see `gym_torch.generation.ragged_rows`
    why: str = ""  #: why not


_KNOWN: dict[tuple[object, ...], Way] = {}


def way_of(model: PreTrainedModel, longest: int, decode: Decode) -> Way:
    """Return how texts of up to `longest` tokens can be decoded, from memory where this was asked of such a model before."""
    key = likeness(model, longest)
    if key not in _KNOWN:
        _KNOWN[key] = _tried(model, longest, decode)
    return _KNOWN[key]


@torch.autocast("cpu", enabled=False)  # whoever generates may round; what is found out holds for all of them
def _tried(model: PreTrainedModel, longest: int, decode: Decode) -> Way:
    try:
        small = miniature(model, longest)
        steady(small)
        vocabulary = small.config.get_text_config().vocab_size - 4
        texts = [[3 + (7 * place + length) % vocabulary for place in range(length)] for length in (*PROMPTS, *LONG)]
        found = _differs(small, texts[: len(PROMPTS)], decode, Way(True))
        if found > 1e-3:
            return Way(False, why=f"with a cache its log-probabilities differ by {found:.2g}")
        several = [*[texts[-2]] * 3, *[texts[-1]] * 3]
        shared = small.config._attn_implementation == NAME and _differs(small, several, decode, Way(True, True)) < 1e-3
        return Way(True, shared, _may_be_ragged(small) and _ragged(small, [*texts, *several], decode))
    except Exception as error:  # the code of a family, called in a way that it may not know
        return Way(False, why=f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}")


def _may_be_ragged(model: PreTrainedModel) -> bool:
    """Whether it attends as torch does, or through `gym_torch.attention.segment_attention`, which also caps scores."""
    implementation, options = model.config._attn_implementation, model.config.get_text_config()
    return implementation == NAME or (implementation == "sdpa" and not getattr(options, "attn_logit_softcapping", None))


def _ragged(model: PreTrainedModel, texts: list[list[int]], decode: Decode) -> bool:
    try:
        with cached_attention.CHOICES.untried():
            return _differs(model, texts, decode, Way(True, ragged=True)) < 1e-3
    except Exception:  # the code of a family, called in a way that it may not know
        return False


@torch.no_grad()
def _differs(model: PreTrainedModel, prompts: list[list[int]], decode: Decode, way: Way) -> float:
    """Return by how much the log-probabilities of what is decoded are off."""
    largest = 0.0
    for prompt, (tokens, log_probs) in zip(prompts, decode(model, prompts, NEW, way), strict=True):
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
