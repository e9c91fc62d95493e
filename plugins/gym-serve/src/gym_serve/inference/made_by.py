"""What answers are made by, beside their options: the files of models, adapters and templates. No torch here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from gym_bitdelta.store import VariantStore
from gym_core.files import expanded
from gym_manage.recorded import artifact_in, is_run
from gym_serve.answer_options import DrawingOptions
from gym_torch.model.fingerprint import of_file

#: Files of a model, an adapter or a delta that decide what it answers.
DECIDING = ("*.safetensors", "*.gguf", "*.json", "*.jinja", "*.model")


def made_by(options: DrawingOptions) -> dict[str, str]:
    """Return a hash of each model, adapter and template on this machine that options name, by what says which it is.

    The base of an adapter or a delta is not among them: whoever opens that checks the base. Raises what reading a run or a store
    raises.
    """
    named = {f"model {source.name}": source.path for source in options.sources()}
    asked = options.adapters.get(options.tenant or "")
    named |= {f"adapter {options.tenant}": asked} if asked else {}
    named |= {"template": options.template} if isinstance(options.template, str) else {}
    found = {name: hash_of(expanded(path)) for name, path in named.items() if expanded(path).exists()}
    if options.tenant and options.tenants:
        with VariantStore(options.tenants, create=False) as store:
            found[f"variant {options.tenant}"] = store.get(options.tenant).id
    return found


def hash_of(path: Path) -> str:
    """Return a hash of a model, an adapter, a run or a template by what of its files decides answers."""
    if path.is_file():
        return of_file(path)[:16]
    if is_run(path):
        path = artifact_in(path).path
    files = sorted({file for pattern in DECIDING for file in path.glob(pattern)})
    held = [[file.name, of_file(file)] for file in files]
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()[:16]
