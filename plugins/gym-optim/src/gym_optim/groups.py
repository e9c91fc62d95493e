"""What an optimizer is told about the parameters it updates: their names, and in each group what they do in the model.

`role` of a group is one of

* `query_key`: projections to queries and keys of attention, whose rows come in heads of `head_dim`;
* `matrix`: everything else with two dimensions or more inside the model;
* `embedding`: input embeddings and the language-model head, with a row for each token;
* `vector`: norms, biases and factors of single units, which do not decay.

A group without a role is taken by the dimensions of its parameters. The LoRA pairs of layers that scale them differently
stand in different groups, each with its `scaling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

ROLES = ("query_key", "matrix", "embedding", "vector")
#: Last part of the names that models give to the projections to queries and keys.
QUERY_KEY = frozenset({"q_proj", "k_proj", "wq", "wk", "query", "key"})


def parameter_groups(
    model: nn.Module, head: nn.Module | None = None, head_dim: int | None = None
) -> list[dict[str, Any]]:
    """Return what trains of a model as named parameters, in one group for each role.

    Args:
        model: any module; parameters without `requires_grad` are left out, tied ones come once.
        head: the layer that maps to logits; unless it is tied to an embedding it cannot be told by its class.
        head_dim: rows of one attention head; without it no projection is taken apart by heads.

    """
    outputs = set(head.modules()) if head is not None else set()
    # What an adapter puts beside a table of tokens has rows for tokens too.
    tables = tuple(
        f"{path.removesuffix('.base_layer')}."
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.Embedding) or module in outputs
    )
    groups: dict[tuple[str, float | None], list[tuple[str, Tensor]]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            path, _, leaf = name.rpartition(".")
            by_head = head_dim and path.rpartition(".")[2] in QUERY_KEY and weight.shape[0] % head_dim == 0
            role = "embedding" if name.startswith(tables) else "query_key" if by_head else "matrix"
            # (IA)3 and BOFT hold their factors as a column or a row, which decay would draw to zero rather than to one.
            vector = weight.dim() < 2 or (leaf != "weight" and weight.numel() == max(weight.shape))
            key = ("vector", None) if vector else (role, _scaling(model, path))
            groups.setdefault(key, []).append((name, weight))
    more: Mapping[str, dict[str, Any]] = {"query_key": {"head_dim": head_dim}, "vector": {"weight_decay": 0.0}}
    return [
        {"params": groups[key], "role": key[0], **more.get(key[0], {}), **({"scaling": key[1]} if key[1] else {})}
        for key in sorted(groups, key=lambda key: ROLES.index(key[0]))
    ]


def _scaling(model: nn.Module, path: str) -> float | None:
    """Return what the layer of a LoRA pair, which holds it as peft does, multiplies B A by."""
    layer, pair, adapter = path.replace(".lora_B.", ".lora_A.").rpartition(".lora_A.")
    scalings: Mapping[str, float] = vars(model.get_submodule(layer)).get("scaling", {}) if pair else {}
    return scalings.get(adapter)
