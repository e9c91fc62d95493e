"""What lies beside the weights of an embedding model, so that sentence-transformers and what reads its files knows it."""

from __future__ import annotations

import json
from pathlib import Path

from gym_torch.auxiliary_module import AuxiliaryModule

LIBRARY = "sentence_transformers.models"
MODULES = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
MODES = {"last_token": "pooling_mode_lasttoken", "mean": "pooling_mode_mean_tokens"}
EVERY_MODE = (
    "pooling_mode_cls_token",
    "pooling_mode_mean_tokens",
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
)


class Pooling(AuxiliaryModule):
    """How states become an embedding. Nothing of it trains; it is written as sentence-transformers has it since its version 2."""

    def __init__(self, width: int, pooling: str) -> None:
        """Take the width of a state, and `Embedding.pooling`."""
        super().__init__()
        self.width, self.pooling = width, pooling
        self.longest: int | None = None  #: most tokens of a text in training, at which texts are cut off later

    def save(self, path: Path, exact: bool = False) -> None:
        """Write the files."""
        modules = [
            {"idx": number, "name": str(number), "path": folder, "type": f"{LIBRARY}.{name}"}
            for number, (name, folder) in enumerate(MODULES)
        ]
        pooled = {"word_embedding_dimension": self.width} | {name: name == MODES[self.pooling] for name in EVERY_MODE}
        _write(path / "modules.json", modules)
        _write(path / "1_Pooling" / "config.json", pooled | {"include_prompt": True})
        _write(path / "2_Normalize" / "config.json", {})
        _write(path / "sentence_bert_config.json", {"max_seq_length": self.longest, "do_lower_case": False})
        own: dict[str, object] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
        _write(path / "config_sentence_transformers.json", own)

    def restore(self, path: Path) -> None:
        """Do nothing: all of it follows from the recipe."""


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
