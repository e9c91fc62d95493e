"""Which parameters an optimizer treats in its own way, told from group, name and shape alone. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Names = str | tuple[str, ...]  #: a list, or one string with commas between; `all` for everything

#: Roles of parameters inside the model that have two dimensions or more.
INSIDE = ("matrix", "query_key")


def is_matrix(group: Mapping[str, Any], shape: tuple[int, ...]) -> bool:
    """Whether a parameter of this shape is a matrix inside the model: neither embedding nor head nor vector nor a stack.

    One row or column, such as the head of a critic, is a vector to methods for matrices.
    """
    return len(shape) == 2 and min(shape) > 1 and group.get("role", "matrix") in INSIDE


def is_named(name: str, modules: Names) -> bool:
    """Whether one of these modules, such as `q_proj`, stands in the path of a parameter; `all` is every one."""
    wanted = {part.strip() for part in (modules.split(",") if isinstance(modules, str) else modules)}
    return "all" in wanted or not wanted.isdisjoint(name.split("."))


def block_of(name: str) -> str:
    """Return the path up to the first number, such as `model.layers.3`; empty for what stands outside the layers."""
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), -1)
    return ".".join(parts[: number + 1])
