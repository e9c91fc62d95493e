"""Which parameters an optimizer treats in its own way, told from group, name and shape alone. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

Names = str | tuple[str, ...]  #: a list, or one string with commas between; `all` for everything


def _some(names: Names) -> Names:
    if not module_names(names) - {""}:
        raise ValueError("no module is named: name some, such as q_proj, or all")
    return names


SomeNames = Annotated[Names, AfterValidator(_some)]  #: at least one

Shape = tuple[int, ...]

#: Roles of parameters inside the model that are matrices.
MATRICES = ("matrix", "query_key")


def stacked(group: Mapping[str, Any], shape: Shape) -> Shape:
    """Return the shape of the stack that a matrix is which holds a factor of each expert; any other shape as it is.

    `experts` of the group says of how many, and `expert_dim` how they lie: 0, rows come expert by expert, [experts rank, in];
    1, columns come rank by rank, [out, rank experts]. Each factor is a matrix [rank, in] or [out, rank].
    """
    if len(shape) != 2 or "experts" not in group:
        return shape
    (rows, columns), experts = shape, group["experts"]
    return (experts, rows, columns // experts) if group["expert_dim"] else (experts, rows // experts, columns)


def is_inside(group: Mapping[str, Any], shape: Shape) -> bool:
    """Whether a parameter of two dimensions or more stands inside the model."""
    return len(shape) >= 2 and group.get("role", "matrix") in (*MATRICES, "kernel")


def is_stack(group: Mapping[str, Any], shape: Shape) -> bool:
    """Whether a parameter holds a matrix for each expert of a mixture, [experts, rows, columns]."""
    return len(shape) == 3 and group.get("role", "matrix") in MATRICES


def is_matrix(group: Mapping[str, Any], shape: Shape) -> bool:
    """Whether a parameter of this shape is a matrix inside the model, or a stack of them: neither embedding, head nor vector.

    One row or column, such as the head of a critic, is a vector to methods for matrices.
    """
    shape = stacked(group, shape)
    matrix = len(shape) == 2 and group.get("role", "matrix") in MATRICES
    return (matrix or is_stack(group, shape)) and min(shape[-2:]) > 1


def is_named(name: str, modules: Names) -> bool:
    """Whether one of these modules, such as `q_proj`, stands in the path of a parameter; `all` is every one."""
    return "all" in module_names(modules) or not module_names(modules).isdisjoint(name.split("."))


def module_names(modules: Names) -> set[str]:
    """Return the names of modules one by one."""
    return {part.strip() for part in (modules.split(",") if isinstance(modules, str) else modules)}


def block_of(name: str) -> str:
    """Return the path up to the first number, such as `model.layers.3`; empty for what stands outside the layers."""
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), -1)
    return ".".join(parts[: number + 1])


EMBEDDING, HEAD = "embedding", "head"  #: blocks of BAdam beside those of layers


def badam_block(group: Mapping[str, Any], name: str) -> str | None:
    """Return the block of BAdam in which a parameter takes turns; None where it rests.

    The group says `include_embedding` and `include_lm_head`.
    """
    if block_of(name):
        return block_of(name)
    if group.get("role") == EMBEDDING:
        return EMBEDDING if group["include_embedding"] else None
    return HEAD if group["include_lm_head"] else None
