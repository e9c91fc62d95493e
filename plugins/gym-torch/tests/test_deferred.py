"""A library that others import wherever it is installed is imported at its first use, and is then what it always was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIBRARY = "class Base:\n    size = 3\n\ndef twice(number):\n    return 2 * number\n"
IMPORTER = """
import rare
import rare.part
import rare.part as part
from rare.part import Base, twice
from importlib.util import find_spec
there = find_spec("rare") is not None
"""
USES = """
import sys
from gym_torch import deferred
deferred.IMPORTERS |= {"lazy_importer": "rare"}
import lazy_importer as lazy
assert lazy.there and not [name for name in sys.modules if name.partition(".")[0] == "rare"]
assert lazy.__loader__.get_source("lazy_importer").lstrip().startswith("import rare")
%s
import rare.part
assert rare.part.__file__ and lazy.rare.part.twice(3) == lazy.part.twice(3) == rare.part.twice(3) == 6
"""
FIRST_USES = (
    "assert lazy.twice(2) == 4",
    "assert lazy.Base.size == 3",
    "assert not isinstance(3, lazy.Base) and isinstance(lazy.Base(), lazy.Base)",
    "class Own(lazy.Base): pass\nassert Own.size == 3 and issubclass(Own, lazy.Base)",
    "assert lazy.rare.part.Base.size == 3",
    "import rare",
)


def _run(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_a_library_is_imported_at_its_first_use(tmp_path: Path) -> None:
    (tmp_path / "rare").mkdir()
    (tmp_path / "rare" / "__init__.py").write_text("")
    (tmp_path / "rare" / "part.py").write_text(LIBRARY)
    (tmp_path / "lazy_importer.py").write_text(IMPORTER)
    for first in FIRST_USES:
        _run(USES % first, tmp_path)


def test_a_library_that_is_not_installed_stays_missing(tmp_path: Path) -> None:
    (tmp_path / "lazy_importer.py").write_text("try:\n    import rare\nexcept ImportError:\n    rare = None\n")
    found = "from gym_torch import deferred; deferred.IMPORTERS |= {'lazy_importer': 'rare'}; import lazy_importer"
    _run(f"{found}; assert lazy_importer.rare is None", tmp_path)


def test_the_models_of_transformers_need_none_of_them(tmp_path: Path) -> None:
    libraries = "from gym_torch.deferred import IMPORTERS; found = {*IMPORTERS.values()} & {*sys.modules}"
    _run(f"import sys, gym_torch, transformers.modeling_utils; {libraries}; assert not found, found", tmp_path)
