"""What naming a component may import."""

import subprocess
import sys

HEAVY = ("torch", "numpy", "transformers", "datasets", "pyarrow", "tokenizers", "jinja2", "rich")


def test_the_configuration_imports_nothing_heavy():
    code = (
        "import sys, gym_data, gym_data.formats, gym_data.templates, gym_data.sources, gym_data.commands;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_preparing_data_imports_no_torch():
    code = (
        "import sys, gym_data.prepare, gym_data.preview; print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
