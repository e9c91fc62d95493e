"""Running a program as Python itself would, with the names that those who write programs for a harness count on."""

from __future__ import annotations

import _sitebuiltins  # what the module `site` adds to Python; site packages it would add too
import builtins
import importlib
import sys
import types

#: For every program: prompts give stubs with these in them, and answers repeat the stub without the import.
_TYPING = """
    Any Callable Collection Counter DefaultDict Deque Dict FrozenSet Generator Generic Iterable Iterator List Mapping
    MutableMapping NamedTuple Optional Sequence Set Tuple Type TypeVar Union"""

#: For a class `Solution`, an answer to LeetCode, which imports all of them. The name of a module is the module.
_LEETCODE = {
    "bisect": "bisect_left bisect_right insort insort_left insort_right",
    "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
    "copy": "deepcopy",
    "datetime": "date timedelta",
    "functools": "cache cached_property cmp_to_key lru_cache partial reduce total_ordering",
    "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
    "itertools": "accumulate chain combinations combinations_with_replacement compress count cycle dropwhile groupby islice "
    "pairwise permutations product repeat starmap takewhile zip_longest",
    "math": "ceil comb cos dist e exp factorial fabs floor gcd hypot inf isqrt lcm log log10 log2 perm pi prod sin sqrt tan",
    "operator": "itemgetter xor",
    "random": "choice randint shuffle",
    "re": "",
    "statistics": "mean median",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits",
    "sys": "maxsize",
}


def run(source: str) -> None:
    """Run a program as a script."""
    sys.argv = ["answer.py"]
    execute(source, "__main__")
    sys.stdout.flush()


def execute(source: str, name: str) -> types.ModuleType:
    """Run a program as the module of this name, and return it."""
    code = compile(source, "answer.py", "exec", dont_inherit=True)
    used = loaded(code)
    found = _found("typing", used & set(_TYPING.split()))
    if "Solution" in code.co_names:
        for module, names in _LEETCODE.items():
            found |= _found(module, used & {module, *names.split()})
    # Below all that the program defines or imports itself.
    for key, value in found.items():
        if key not in vars(builtins):
            setattr(builtins, key, value)
    for word in ("exit", "quit"):
        setattr(builtins, word, _sitebuiltins.Quitter(word, "Ctrl-D"))
    program = sys.modules[name] = types.ModuleType(name)
    exec(code, program.__dict__)  # noqa: S102 - what this process is for
    return program


def loaded(code: types.CodeType) -> set[str]:
    """Return the names that code uses, with the functions in it, as globals or attributes."""
    inner = [loaded(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*inner)


def _found(module: str, names: set[str]) -> dict[str, object]:
    """Return what a module has under these names, one of which may be its own."""
    if not names:
        return {}
    imported = importlib.import_module(module)
    own: dict[str, object] = {module: imported} if module in names else {}
    return {name: vars(imported)[name] for name in names - {module}} | own
