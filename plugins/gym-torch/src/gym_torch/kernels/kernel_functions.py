"""Operations of layers that a library of kernels may implement: norms, gates, rotary positions, attention and others.

The engine has some for a CPU, and libraries bring others (`gym_torch.KernelLibrary`). Each is compared with torch and with
float64 before it is used (`gym_torch.kernels.kernel_trials`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from gym_torch.segment_spans import Spans


@dataclass(frozen=True)
class Scores:
    """How attention scores are computed from products of queries and keys."""

    scale: float
    window: int | None = None  #: most positions back that a token sees, itself included
    softcap: float | None = None  #: largest absolute score


@dataclass(frozen=True, eq=False)
class Places:
    """The layout of a decoding step: which new tokens belong to which row, and how many tokens a row has. All int64 on the CPU.

    Tokens of row r are `first[r]` to `first[r + 1]` of the new ones. A row may continue a prompt that others continue too: rows
    of group g are `members[bounds[g]:bounds[g + 1]]`, and continue prompt `prompt[g]`, or none where that is -1.
    """

    first: Tensor  #: `[rows + 1]`
    lengths: Tensor  #: `[rows]`, tokens that are kept of a row, without the new ones and without the prompt
    members: Tensor  #: `[rows]`
    bounds: Tensor  #: `[groups + 1]`
    prompt: Tensor  #: `[groups]`
    prompt_lengths: Tensor  #: `[prompts]`


@dataclass(frozen=True, eq=False)
class Kept:
    """Keys and values of one layer `[rows, heads, held, head_dim]`, and those of prompts `[prompts, heads, width, head_dim]`."""

    keys: Tensor
    values: Tensor
    prompt_keys: Tensor
    prompt_values: Tensor
    places: Places


@dataclass(frozen=True, eq=False)
class LinearProducts:
    """The products of a linear layer, of many rows, all of one dtype; none has a derivative, or changes what it is given.

    `rows` are `[n, inputs]`, `weight` is `[outputs, inputs]`, and `by_out` is the gradient of what comes out, contiguous
    `[n, outputs]`.
    """

    forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]  #: `(rows, weight, bias)`: `rows weight^T + bias`
    to_input: Callable[[Tensor, Tensor], Tensor]  #: `(by_out, weight)`: `by_out weight`
    to_weight: Callable[[Tensor, Tensor], Tensor] | None = None  #: `(by_out, rows)`: `by_out^T rows`; None: torch's
    summed: Callable[[Sequence[Tensor], Sequence[Tensor], float, Tensor | None], Tensor] | None = None
    """`(left, right, scale, bias)`: `scale left[0] right[0] + left[1] right[1] + ... + bias`, rounded once; at most four.

    Left factors `[n, k]`, of at least one column, are of one dtype, to which right ones `[k, m]`, which may be transposed views,
    are rounded from fp32.
    """


@dataclass(frozen=True, eq=False)
class KernelFunctions:
    """The operations of a library of kernels; None for one that it does not implement.

    All but `label_scores`, `product`, `linear` and `cached_attention` are differentiable once, and change none of their inputs.
    Numbers that are not finite come out where the definition has them.
    """

    name: str  #: as `run.json` says it, such as `liger 0.8.5`
    version: str  #: names the code and options that decide what is computed and how fast: trials are remembered by it
    devices: frozenset[str]  #: types of torch devices whose tensors they take
    dtypes: frozenset[torch.dtype]  #: that they take and give, in any mixture
    without_data: bool = False  #: whether tensors without data, such as plans are traced with, get such results
    rms_norm: Callable[[Tensor, Tensor, float, torch.dtype], Tensor] | None = None
    """`(given, weight, eps, dtype)`: `given / sqrt(mean(given^2) + eps) * weight` along the last dimension, in a dtype
    (arXiv:1910.07467, equation 4)."""
    gated: Callable[[Tensor, Tensor, bool], Tensor] | None = None
    """`(gate, up, tanh)`: `act(gate) * up` `[..., rows, dim]` in their dtype; act is GELU by tanh or SiLU (arXiv:2002.05202,
    equations 5 and 6). Rows of both may lie apart, as the halves of one tensor do."""
    rotate: Callable[[Tensor, Tensor, Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor]] | None = None
    """`(query, key, cos, sin, dtype)`: both `[rows, heads, tokens, dim]`, turned by halves with `cos` and `sin`
    `[rows or 1, tokens, dim]`, which are constants, in a dtype (arXiv:2104.09864, equation 34)."""
    label_scores: Callable[[Tensor, Tensor, bool], Tensor] | None = None
    """`(logits, labels, residual)`: `log p(label)` `[rows]` in fp32 for contiguous logits `[rows, vocabulary]`, which are
    overwritten with `p - 1` if `residual`; without a derivative. A label outside the vocabulary is an error, or scores NaN."""
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None
    """`(given, weight, bias)`: `given weight^T + bias` of few rows, `[..., inputs]` by `[outputs, inputs]`; no derivative."""
    linear: LinearProducts | None = None
    """The products of training by the weight of a linear layer."""
    cached_attention: Callable[[Tensor, Tensor, Tensor, Kept, Scores], Tensor] | None = None
    """`(query, key, value, kept, scores)`: causal attention of new tokens, `[tokens, heads, 1, head_dim]` as `query` is, to what
    is kept of their rows and to each other; keys and values may have fewer heads, and are written behind what is kept. Without
    a derivative."""
    attention: Callable[[Tensor, Tensor, Tensor, Spans, Scores], Tensor | None] | None = None
    """`(query, key, value, spans, scores)`: causal attention within the segments of a row, `[1, heads, tokens, dim]` as `query`
    is; keys and values, of one shape, may have fewer heads. None where it cannot, as where segments continue others."""

    def takes(self, given: Sequence[Tensor]) -> bool:
        """Return whether the functions support these tensors (device, dtype and layout)."""
        kinds = _WITHOUT_DATA if self.without_data else _PLAIN
        for part in given:
            if type(part) not in kinds or part.dtype not in self.dtypes or part.device.type not in self.devices:
                return False
        return True


@cache
def spelled(*dtypes: torch.dtype) -> str:
    """Return the dtypes of an operation as part of its name."""
    return " to ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


_PLAIN = (Tensor, nn.Parameter)
_WITHOUT_DATA = (*_PLAIN, FakeTensor)
