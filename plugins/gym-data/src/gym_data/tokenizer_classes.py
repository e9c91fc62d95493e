"""Tokenizers whose class decides more than their file says.

transformers builds many tokenizers anew from vocabulary and merges, by rules of the class that `tokenizer_config.json` names:
`LlamaTokenizer` puts blanks where `legacy` and `add_prefix_space` say, whatever `tokenizer.json` holds. A model meets the tokens
of that class wherever it is used, so they are asked for, where transformers is installed.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gym_core import DataError

#: Classes that take `tokenizer.json` as it is.
PLAIN = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json", "added_tokens.json")


def rebuilt(path: Path, config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]] | None:
    """Return what `tokenizer.json` would say if it held the tokens of the class, and the tokens with a role.

    `config` is what `tokenizer_config.json` says. None where the file says it all, where nobody but code of the model's own knows
    the class, and without transformers.
    """
    model = json.loads((path / "config.json").read_text(encoding="utf-8")) if (path / "config.json").is_file() else {}
    named = config.get("tokenizer_class") or model.get("tokenizer_class")
    own_code = "auto_map" in config
    if named in PLAIN or own_code or (named is None and not model.get("model_type")) or not find_spec("transformers"):
        return None
    content, roles = _asked(path, tuple(_state(path / name) for name in FILES))
    return json.loads(content), json.loads(roles)


def _state(file: Path) -> tuple[int, int] | None:
    return (file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else None


@lru_cache(4)
def _asked(path: Path, state: tuple[tuple[int, int] | None, ...]) -> tuple[str, str]:
    """Return both as JSON text, which costs seconds; `state` changes with the files."""
    from transformers import AutoTokenizer

    try:
        theirs = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        roles = {role: str(token) for role, token in theirs.special_tokens_map.items() if isinstance(token, str)}
        return theirs.backend_tokenizer.to_str(), json.dumps(roles)
    except Exception as error:  # whatever the files make of the class
        raise DataError(
            f"transformers cannot build this tokenizer: {(str(error).strip().splitlines() or [''])[0][:200]}",
            where=str(path),
            fix="mend tokenizer_config.json; `tokenizer_class: PreTrainedTokenizerFast` takes tokenizer.json as it is",
        ) from error
