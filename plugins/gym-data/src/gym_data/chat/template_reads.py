"""Which values a chat template asks for.

Jinja counts every name that some way through a template leaves unset, and so also those which a template sets in each branch
before it reads them. Here a name counts that is read before anything sets it, in the order of the text.
"""

from __future__ import annotations

from jinja2 import meta, nodes
from jinja2.visitor import NodeVisitor

LATE = ("target",)  #: fields of a node that are set by what its other fields read


def values_asked(tree: nodes.Template) -> set[str]:
    """Return the names that a template reads and nothing in it, nor its environment, has set before."""
    first = _First()
    first.visit(tree)
    return meta.find_undeclared_variables(tree) & {name for name, read in first.uses.items() if read}


class _First(NodeVisitor):
    """Notes of each name whether it is read where it first stands."""

    def __init__(self) -> None:
        self.uses: dict[str, bool] = {}

    def visit_Name(self, node: nodes.Name) -> None:  # noqa: N802 - the name is jinja's
        self.uses.setdefault(node.name, node.ctx == "load")

    def generic_visit(self, node: nodes.Node) -> None:
        for late in (False, True):
            for name, value in node.iter_fields():
                if (name in LATE) == late:
                    self._each(value)

    def visit_For(self, node: nodes.For) -> None:  # noqa: N802 - the name is jinja's
        for value in (node.iter, node.target, node.test, node.body, node.else_):
            self._each(value)

    def visit_With(self, node: nodes.With) -> None:  # noqa: N802 - the name is jinja's
        for value in (node.values, node.targets, node.body):
            self._each(value)

    def _each(self, value: object) -> None:
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, nodes.Node):
                self.visit(child)
