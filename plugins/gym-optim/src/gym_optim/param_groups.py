"""What an optimizer is told about the parameters it updates: their names, and in each group what they do in the model.

`role` of a group is one of

* `query_key`: projections to queries and keys of attention, whose rows come in heads of `head_dim`;
* `matrix`: everything else with two dimensions inside the model, and stacks of matrices, one for each expert of a mixture;
* `kernel`: the kernels of convolutions, and angles of rotations (OFT), a row for each block: of two dimensions, and no matrix;
* `embedding`: embeddings of tokens, virtual ones too, with a row for each;
* `head`: the map to logits, with a row for each token, where it is not an embedding too;
* `vector`: norms, biases (those of all experts in one tensor too), factors of single units and rates of decay of a state space,
  which do not decay.

A group without a role is taken by the dimensions of its parameters. The LoRA pairs of layers that scale them differently
stand in different groups, each with its `scaling`. Those of all experts of a layer lie in two matrices, which are no pair: their
groups have `experts` and `expert_dim` instead, by which each holds a stack of factors (`gym_optim.parameter_roles.stacked`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

ROLES = ("query_key", "matrix", "kernel", "embedding", "head", "vector")
#: Last part of the names that models give to the projections to queries and keys.
QUERY_KEY = frozenset({"q_proj", "k_proj", "wq", "wk", "query", "key"})
#: Names of parameters of two dimensions that map nothing: a row for each virtual token, and logarithms for each channel, which
#: decay would draw to one another.
VIRTUAL, RATES = "prompt_embeddings", "A_log"
GAIN = "scale"  #: what a module that keeps lengths calls its factors, which may be those of each head
ANGLES = "oft_R"  #: module of peft that holds what is above the diagonals of skew-symmetric blocks
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@runtime_checkable
class HasHead(Protocol):
    """A model that says which layer maps to logits, as those of transformers do."""

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the layer, if there is one."""
        ...


def parameter_groups(
    model: nn.Module, head: nn.Module | None = None, head_dim: int | None = None
) -> list[dict[str, Any]]:
    """Return what trains of a model as named parameters, in one group for each role.

    Args:
        model: any module; parameters without `requires_grad` are left out, tied ones come once.
        head: the layer that maps to logits; by default what a model of transformers says.
        head_dim: rows of one attention head; without it no projection is taken apart by heads.

    """
    last = model.get_output_embeddings() if head is None and isinstance(model, HasHead) else head
    outputs = set(last.modules()) if last is not None else set()
    # What an adapter puts beside a table of tokens has rows for tokens too.
    tables = {
        f"{path.removesuffix('.base_layer')}.": "embedding" if isinstance(module, nn.Embedding) else "head"
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.Embedding) or module in outputs
    }
    groups: dict[tuple[str, tuple[tuple[str, float], ...]], list[tuple[str, Tensor]]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            path, _, leaf = name.rpartition(".")
            by_head = head_dim and path.rpartition(".")[2] in QUERY_KEY and weight.shape[0] % head_dim == 0
            table = next((role for start, role in tables.items() if name.startswith(start)), None)
            module = model.get_submodule(path)
            kernel = isinstance(module, CONVOLUTIONS) or ANGLES in path.split(".")
            table = "embedding" if leaf == VIRTUAL else table
            role = table or ("kernel" if kernel else "query_key" if by_head else "matrix")
            # (IA)3 and BOFT hold their factors as a column or a row, which decay would draw to zero rather than to one.
            factors = leaf != "weight" and weight.numel() == max(weight.shape, default=1)
            # Norms of each head, such as those of Cohere, hold what they multiply by as [heads, numbers].
            factors |= leaf == GAIN or type(module).__name__.endswith("Norm")
            vector = weight.dim() < 2 or factors or leaf.endswith("bias") or leaf == RATES
            key = ("vector", ()) if vector else (role, tuple(_of_pair(model, path).items()))
            groups.setdefault(key, []).append((name, weight))
    more: Mapping[str, dict[str, Any]] = {"query_key": {"head_dim": head_dim}, "vector": {"weight_decay": 0.0}}
    return [
        {"params": groups[key], "role": key[0], **more.get(key[0], {}), **dict(key[1])}
        for key in sorted(groups, key=lambda key: ROLES.index(key[0]))
    ]


def _of_pair(model: nn.Module, path: str) -> dict[str, float]:
    """Return what is said of half a LoRA pair: what its layer, held as peft does, multiplies B A by, or how experts lie in it."""
    layer, pair, adapter = path.replace(".lora_B.", ".lora_A.").rpartition(".lora_A.")
    held = vars(model.get_submodule(layer)) if pair else {}
    if held.get("num_experts", 1) > 1:  # peft lays A out by expert and then rank, and B by rank and then expert
        return {"experts": held["num_experts"], "expert_dim": int(".lora_B." in path)}
    scaling = held.get("scaling", {}).get(adapter)
    return {"scaling": scaling} if scaling else {}
