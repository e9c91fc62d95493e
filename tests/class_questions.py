"""Finds where code asks for the class of a component, or of what a component builds; it reads sources and imports nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

COMPONENT = "gym_core.component.Component"


@dataclass
class Sources:
    """Modules by their dotted names, read as text."""

    texts: Mapping[str, str]
    kinds: frozenset[str]
    """Qualified names of the base classes of kinds, which may be asked for."""
    contracts: frozenset[str]
    """Qualified names of the classes that kinds promise to build, which may be asked for too."""
    trees: dict[str, ast.Module] = field(init=False)
    nodes: dict[str, list[ast.AST]] = field(init=False)

    def __post_init__(self) -> None:
        """Parse all of them."""
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}
        self.nodes = {name: list(ast.walk(tree)) for name, tree in self.trees.items()}

    @cached_property
    def imports(self) -> dict[str, dict[str, str]]:
        """What each name stands for that a module imports, anywhere in it."""
        found: dict[str, dict[str, str]] = {}
        for module, nodes in self.nodes.items():
            names = found.setdefault(module, {})
            for node in nodes:
                if isinstance(node, ast.ImportFrom) and node.module:
                    names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                elif isinstance(node, ast.Import):
                    for alias in node.names:  # `import a.b` binds a
                        head = alias.name.partition(".")[0]
                        names[alias.asname or head] = alias.name if alias.asname else head
        return found

    @cached_property
    def bases(self) -> dict[str, list[str]]:
        """The qualified names of the bases of each class of the sources."""
        return {
            f"{module}.{node.name}": [self.named(module, base) for base in node.bases]
            for module, tree in self.trees.items()
            for node in tree.body
            if isinstance(node, ast.ClassDef)
        }

    def named(self, module: str, node: ast.expr) -> str:
        """Return the qualified name of what an expression names, where the class stands that it leads to."""
        node = node.value if isinstance(node, ast.Subscript) else node
        head, _, rest = ast.unparse(node).partition(".")
        start = self.imports[module].get(head, f"{module}.{head}")
        return self.defined(f"{start}.{rest}" if rest else start)

    def defined(self, name: str) -> str:
        """Follow a name through the modules that only hand it on."""
        seen = set[str]()
        while name not in seen:
            seen.add(name)
            module, _, last = name.rpartition(".")
            name = self.imports.get(module, {}).get(last, name)
        return name

    def ancestors(self, name: str) -> Iterator[str]:
        """Yield a class and those of the sources that it is made of."""
        yield name
        for base in self.bases.get(name, []):
            yield from self.ancestors(base)

    @cached_property
    def guarded(self) -> set[str]:
        """The classes that only the module that defines them may ask for."""
        components = {name for name in self.bases if COMPONENT in self.ancestors(name)}
        built = {each for target in self._targets(components) for each in self._returned(target.replace(":", "."))}
        protocols = {name for name, bases in self.bases.items() if "typing.Protocol" in bases}
        made = {each for name in built for each in self.ancestors(name) if each in self.bases}
        free = {self.defined(name.replace(":", ".")) for name in self.kinds | self.contracts}
        return (components | made | protocols) - free - {COMPONENT}

    def _targets(self, components: set[str]) -> Iterator[str]:
        for module, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and f"{module}.{node.name}" in components:
                    for line in node.body:
                        value = line.value if isinstance(line, ast.Assign | ast.AnnAssign) else None
                        if isinstance(value, ast.Constant) and ":" in str(value.value):
                            yield str(value.value)

    def _returned(self, target: str) -> Iterator[str]:
        """Yield the class that a target is, or those that it returns where it is a function."""
        name = self.defined(target)
        yield name
        module, _, last = name.rpartition(".")
        for node in self.trees[module].body if module in self.trees else []:
            if isinstance(node, ast.FunctionDef) and node.name == last and node.returns:
                yield from (self.named(module, each) for each in _alternatives(node.returns))

    def questions(self) -> list[str]:
        """Return where a module asks for a class that is another module's own, as `module asks for class, line`."""
        found = []
        for module, nodes in self.nodes.items():
            for node in nodes:
                for asked in _asked(node):
                    name = self.named(module, asked)
                    if name in self.guarded and not name.startswith(f"{module}."):
                        found.append(f"{module} asks for {name}, line {asked.lineno}")
        return sorted(found)


def _asked(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the classes that a piece of code asks for."""
    if isinstance(node, ast.Call) and _named(node.func, "isinstance", "issubclass") and len(node.args) == 2:
        yield from _alternatives(node.args[1])
    elif isinstance(node, ast.MatchClass):
        yield node.cls
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(_class_of(side) for side in sides):
            for side in sides:
                yield from _alternatives(side)


def _named(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _class_of(node: ast.expr) -> bool:
    """Return whether an expression is the class of something."""
    called = isinstance(node, ast.Call) and _named(node.func, "type")
    return called or (isinstance(node, ast.Attribute) and node.attr == "__class__")


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the classes of a tuple, a set, a list or a union."""
    if isinstance(node, ast.BinOp):
        yield from _alternatives(node.left)
        yield from _alternatives(node.right)
    elif isinstance(node, ast.Tuple | ast.Set | ast.List):
        for part in node.elts:
            yield from _alternatives(part)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield node
