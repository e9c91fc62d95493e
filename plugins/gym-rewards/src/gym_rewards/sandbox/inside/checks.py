"""Checks of a program: code that calls it, or a call with the result that it must have. Both pass when they return."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import math
import sys
import types
from collections.abc import Set

from .channel import unpack
from .program_loader import loaded
from .proxies import Program
from .supervisor import UNCHECKED

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import, and this starts for every test
    from typing import Any


def examine(test: str) -> None:
    """Run code that calls the program, then the cases of `unittest` that it defines; status UNCHECKED if it could not check.

    Names that the test uses come from the program, except those of Python itself and the modules of its library: a program
    cannot bring its own `all`, or a `math` that has attributes. To a test the program is also the module `solution`.
    """
    program = Program()
    tree = ast.parse(test)
    code = compile(tree, "test.py", "exec", dont_inherit=True)
    test_module = types.ModuleType("__main__")
    sys.modules["__main__"], sys.modules["solution"] = test_module, _module(program)
    names = test_module.__dict__
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    modules = {
        node.value.id for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for name in sorted(used - set(dir(builtins)) | _alone(tree)):
        if name in sys.stdlib_module_names and (name in modules or name not in program.names):
            names[name] = importlib.import_module(name)
        elif name in program.names:
            names[name] = program.get(name)
            program.asked += isinstance(names[name], _DATA) and name in loaded(code)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    if any("unittest" in (getattr(node, "module", ""), *(alias.name for alias in node.names)) for node in imports):
        unittest: Any = importlib.import_module("unittest")
        unittest.main = lambda *_, **__: None  # all cases are run below
        unittest.TestCase.assertSetEqual = _assert_sets_equal
    try:
        exec(code, names)  # noqa: S102 - the row's own test
        _run_cases(names)
    finally:
        if program.refused:
            sys.exit(UNCHECKED)
    if not program.asked:
        sys.exit(UNCHECKED)


def call(spec: str) -> None:
    """Call a function, or a method of a class `Solution`, and compare: packed are name, arguments, expected (some), tolerance.

    What is expected comes from JSON, with no tuples and no keys but texts: a tuple counts as the list, a key as its text.
    """
    wanted = unpack(json.loads(spec), lambda handle: None)
    program = Program()
    if wanted["name"] not in program.names and "Solution" in program.names:
        function = getattr(program.get("Solution")(), wanted["name"])
    else:
        function = program.get(wanted["name"])
    found = _as_json(function(*wanted["arguments"]))
    if not any(_agree(found, _as_json(expected), wanted["tolerance"]) for expected in wanted["expected"]):
        raise AssertionError


_DATA = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, types.NoneType)


def _module(program: Program) -> types.ModuleType:
    def get(name: str) -> Any:
        if name not in program.names:
            raise AttributeError(name)
        return program.get(name)

    module = types.ModuleType("solution")
    module.__dict__.update(__getattr__=get, __all__=sorted(program.names))
    return module


def _alone(tree: ast.Module) -> set[str]:
    """Return the name of Python that a test calls, where it is the only name there is: it is what is tested."""
    nodes = list(ast.walk(tree))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    imports = any(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return called if len(names) == len(called) == 1 and not imports else set()


def _assert_sets_equal(case: Any, first: Any, second: Any, msg: object = None) -> None:
    """Compare as `unittest` does, but for asking the first how it differs: it may be an object of the program."""
    if not (isinstance(first, Set) and isinstance(second, Set) and first == second):
        raise case.failureException(msg)


def _run_cases(names: dict[str, Any]) -> None:
    """Run what derives from `unittest.TestCase`. Raises AssertionError for a case that fails."""
    unittest: Any = sys.modules.get("unittest")
    if unittest is None:
        return
    result = unittest.TestResult()
    for value in list(names.values()):
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            unittest.defaultTestLoader.loadTestsFromTestCase(value).run(result)
    if not result.wasSuccessful():
        raise AssertionError


def _agree(found: Any, wanted: Any, tolerance: float) -> bool:
    if found == wanted:
        return True
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(_agree, found, wanted, [tolerance] * len(wanted)))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return found.keys() == wanted.keys() and all(_agree(found[key], wanted[key], tolerance) for key in wanted)
    if isinstance(wanted, float) and isinstance(found, int | float):
        return math.isclose(found, wanted, rel_tol=tolerance, abs_tol=tolerance)
    return False


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    return value
