"""One forward pass over new tokens of rows whose earlier tokens are in a cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from gym_torch.generation.cuda_graphs import graphs_for
from gym_torch.generation.kv_cache import RowCache
from gym_torch.generation.shared_prompts import SharedPrompts
from gym_torch.model.expert_routing import Routers


def runner(model: PreTrainedModel, routers: Routers | None, alone: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return `run_tokens` of a model for one decoding, with steps as CUDA graphs where they can be.

    `alone` says that no context surrounds a pass: a CUDA graph would not replay its effects. Nor does a graph record experts.
    """
    plain = partial(run_tokens, model, routers)
    graphs = graphs_for(model) if alone and routers is None else None

    def run(
        tokens: Tensor, lengths: list[int], cache: Cache, shared: SharedPrompts | None = None, keep: int = 1
    ) -> tuple[Tensor, Tensor | None]:
        every = partial(plain, tokens, lengths, cache, shared, keep)
        if graphs is None or shared or tokens.shape[1] > 1 or not isinstance(cache, RowCache):
            return every()
        return graphs.run(tokens, lengths, cache, lambda: every()[0]), None

    return run


def run_tokens(
    model: PreTrainedModel,
    routers: Routers | None,
    tokens: Tensor,
    lengths: list[int],
    cache: Cache,
    shared: SharedPrompts | None = None,
    keep: int = 1,
) -> tuple[Tensor, Tensor | None]:
    """Run `tokens` `[rows, new]`, after which row i has `lengths[i]` tokens in the cache, aligned at the right.

    Returns logits `[rows * keep, vocabulary]` that follow the last `keep` tokens of each row and, where there are routers to
    record, experts `[rows, new, layers, k]` on the CPU.
    """
    width = cache.get_seq_length() + tokens.shape[1]
    padding = width - torch.tensor(lengths, device=tokens.device)[:, None]
    columns = torch.arange(width, device=tokens.device)
    positions = (columns[-tokens.shape[1] :] - padding).clamp(min=0)
    extra = {"shared": shared.attend} if shared else {}
    run = partial(
        model,
        input_ids=tokens,
        attention_mask=columns >= padding,
        position_ids=positions + torch.tensor(shared.starts())[:, None] if shared else positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=keep,
        **extra,
    )
    if routers is None:
        return run().logits[:, -keep:].flatten(0, 1), None
    output, routed = routers.record(run)
    return output.logits[:, -keep:].flatten(0, 1), routed.unflatten(0, tokens.shape).cpu()
