"""Which batch layout a model computes exactly: found by trying, not by its name.

The oracle is each sample by itself. Two trials are run. One is on a miniature of the model (`gym_torch.model.miniature`), on
samples longer than every window, chunk and context of pretraining in its configuration, for what depends on length cannot be
seen on short ones. The other is on the model itself, on a few tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from gym_core import GymError
from gym_torch.attention.segment_attention import NAME
from gym_torch.batch import Piece
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.mapped_weights import LOW, Raised
from gym_torch.model.miniature import LONGEST, VOCABULARY, likeness, miniature
from gym_torch.model.rope_scaling import steady
from gym_torch.packing import ALONE, PACKED, PADDED, Layout

#: Lengths of the segments of a trial, and which of them continues which: short and long ones beside one another, a shared prefix.
LENGTHS, PREFIXES = (5, LONGEST, 3, 12, 6, 22), (None, None, None, None, 3, 3)
SHORT, CONTINUED = (9, 5, 7), (None, None, 0)  #: the same for a model that is not small


@dataclass(frozen=True)
class LayoutSupport:
    """A layout, and why it is not a quicker one."""

    layout: Layout
    why: str = ""


def layout_for(model: PreTrainedModel, samples: int | None = None) -> Layout:
    """Return the layout of `layout_support_of`, and have the model attend by segments where that is PACKED."""
    return layout_support_of(model, samples).layout


def layout_support_of(model: PreTrainedModel, samples: int | None = None, packs: bool = True) -> LayoutSupport:
    """Return the quickest layout that gives what the model gives for each sample by itself.

    A model that can be packed is set to attend by segments; others keep their own attention. `samples` are the tokens of the
    longest sample of the run, where that is known: what a model does beyond them does not count. Without `packs` packed rows are
    not tried.

    Raises GymError where the model is not causal: its tokens see later ones, so there is nothing to predict.
    """
    found = miniature_support(model, samples, packs)
    if found.layout is not PACKED:
        return found
    why = _differs(model, PACKED, SHORT, CONTINUED)
    if why and model.dtype in LOW:  # a router may choose other experts by rounding
        with Raised():
            why = why if _differs(model, PACKED, SHORT, CONTINUED, rounding=1e-4) else ""
    if why:
        return LayoutSupport(PADDED, why)
    model.set_attn_implementation(NAME)
    return found


def miniature_support(model: PreTrainedModel, samples: int | None, packs: bool) -> LayoutSupport:
    """Return what holds for a miniature, from memory where this was asked before."""
    key = (*likeness(model, samples), packs)
    if key not in _KNOWN:
        _KNOWN[key] = _tried(model, samples, packs)
    return _KNOWN[key]


_KNOWN: dict[tuple[object, ...], LayoutSupport] = {}


@torch.autocast("cpu", enabled=False)  # whoever asks may round; what is found out holds for all of them
def _tried(model: PreTrainedModel, samples: int | None, packs: bool) -> LayoutSupport:
    try:
        small = miniature(model, samples)
        steady(small)
        causal = _causal(small)
    except Exception as error:  # the code of a family on a configuration that it never saw
        return LayoutSupport(ALONE, f"no small model of this family can be tried out ({_first_line(error)})")
    if not causal:
        raise GymError(
            f"in {type(model).__name__} tokens see those after them, so there is nothing to predict",
            key="model.path",
            fix="set `is_decoder: true` in its config.json if it was trained so, or use a causal language model",
        )
    why = "it cannot attend by segments" if packs else "model.attention is set"
    if packs:
        own = small.config._attn_implementation
        why = _differs(small, PACKED, LENGTHS, PREFIXES)
        if not why:
            return LayoutSupport(PACKED)
        small.set_attn_implementation(own)
    padded = _differs(small, PADDED, LENGTHS, PREFIXES)
    return LayoutSupport(ALONE, f"{why}; beside others {padded}") if padded else LayoutSupport(PADDED, why)


@torch.no_grad()
def _differs(
    model: PreTrainedModel,
    layout: Layout,
    lengths: Sequence[int],
    prefixes: Sequence[int | None],
    rounding: float | None = None,
) -> str:
    """Return how the states of samples in a batch of this layout differ from those of each alone; nothing where they do not.

    `rounding` is how much of the largest state they may be off, by default what the precision of the model makes of it.
    """
    pieces = _pieces(model, lengths)
    own, training = model.config._attn_implementation, model.training
    model.eval()
    try:
        expected = hidden_states(model, ALONE.lay_out(pieces, prefixes).to(model.device))
        if layout is PACKED:
            model.set_attn_implementation(NAME)
        found = hidden_states(model, layout.lay_out(pieces, prefixes).to(model.device))
    except Exception as error:  # the code of a family, called in a way that it may not know
        return _first_line(error)
    finally:
        if layout is PACKED:
            model.set_attn_implementation(own)
        model.train(training)
    rounding = rounding or (1e-4 if model.dtype == torch.float32 else 5e-2)
    scale = float(expected.abs().max())
    if torch.allclose(found, expected, rtol=0, atol=rounding * scale):
        return ""
    return f"a sample has other hidden states than alone (by {float((found - expected).abs().max()) / scale:.0%})"


@torch.no_grad()
def _causal(model: PreTrainedModel) -> bool:
    """Whether no token changes the states of those before it."""
    whole, start = (ALONE.lay_out(_pieces(model, (length,)), ()) for length in (SHORT[0], SHORT[1]))
    long, short = (hidden_states(model, batch.to(model.device)) for batch in (whole, start))
    return torch.allclose(long[: len(short)], short, rtol=0, atol=1e-3 * float(short.abs().max()))


def _pieces(model: PreTrainedModel, lengths: Sequence[int]) -> list[Piece]:
    tokens = np.arange(3, 3 + sum(lengths), dtype=np.int32)
    tokens = 3 + (tokens * 7 - 21) % (min(model.config.get_text_config().vocab_size, VOCABULARY) - 4)
    parts = np.split(tokens.astype(np.int32), np.cumsum(lengths)[:-1])
    return [Piece("trial", part, np.ones(len(part), dtype=np.bool_)) for part in parts]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]
