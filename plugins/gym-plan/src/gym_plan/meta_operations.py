"""Results and FLOPs of operations on meta tensors that torch does not provide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from gym_torch.attention import attention_operator  # noqa: F401, which registers the operators that are counted here
from gym_torch.kernels import bf16_products  # noqa: F401, likewise
from gym_torch.segment_spans import Spans

_aten = torch.ops.aten


def _cpu_attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    count: int = sdpa_flop_count(query.shape, key.shape, value.shape)
    return count


def _cpu_attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    count: int = sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)
    return count


def _row_attention(query: Tensor, key: Tensor, value: Tensor, spans: Tensor, *args: Any, **kwargs: Any) -> int:
    """Count two products for each token of a segment and each of that segment or of what it continues."""
    with unset_fake_temporarily():  # the segments are data, and stand in a plain tensor
        row = Spans.of(spans)
    pairs = sum(
        length * sum(row.lengths[other] for other in row.lineage(own)) for own, length in enumerate(row.lengths)
    )
    return 4 * query.shape[1] * query.shape[3] * pairs


def _row_attention_backward(grad: Tensor, *given: Any, **kwargs: Any) -> int:
    """Count the scores once more, and the gradients of both factors of either product."""
    return _row_attention(*given) * 5 // 2


def _grouped_product(left: Tensor, right: Tensor, *args: Any, **kwargs: Any) -> int:
    return 2 * left.numel() * right.shape[-1]


def _summed_products(left: Sequence[Tensor], right: Sequence[Tensor], *args: Any, **kwargs: Any) -> int:
    return sum(2 * rows.numel() * factor.shape[1] for rows, factor in zip(left, right, strict=True))


def _grouped_output(left: Tensor, right: Tensor, offsets: Tensor, *args: Any) -> Tensor:
    """Return the output of the products of a mixture of experts; torch has the shape for bf16 alone.

    Rows `[n, k]` times one matrix an expert `[experts, k, m]`, or, for their gradients, `[k, n]` times `[n, m]`.
    """
    experts = offsets.shape if right.dim() == 2 else ()
    return left.new_empty((*experts, left.shape[0], right.shape[-1]))


def _sum(left: Tensor, right: Any, **options: Any) -> Tensor:
    """Add in place where autograd, which asks for a sum of tensors without data, would on others: what nobody shares."""
    if isinstance(right, Tensor) and not torch.is_grad_enabled() and left.shape == right.shape:
        for into, other in ((left, right), (right, left)):
            # The count is two where one tensor holds the storage, for asking holds it as well.
            if torch._C._storage_Use_Count(into.untyped_storage()._cdata) == 2 and into.is_contiguous():
                return into.add_(other, **options)
    total: Tensor = _aten.add.Tensor(left, right, **options)
    return total


#: Floating-point operations, by operation.
FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _aten.addmm_: flop_registry[_aten.addmm],
    _aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward,
    _aten._grouped_mm: _grouped_product,
    torch.ops.gym.sum_of_products: _summed_products,
    torch.ops.gym.attend: _row_attention,
    torch.ops.gym.attend_backward: _row_attention_backward,
}

#: What is done in place of an operation. Two of three are questions for the device, which have a short answer.
STAND_INS: dict[Any, Callable[..., Any]] = {
    _aten._grouped_mm.default: _grouped_output,
    _aten.add.Tensor: _sum,
    torch.ops.prim.device.default: lambda tensor: tensor.fake_device,
}
