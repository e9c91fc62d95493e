"""What a reference said of responses, kept by content: asked once, read again by every later run over the same tokens."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PretrainedConfig

from gym_core.files import replacing
from gym_data import cache_eviction, token_cache
from gym_data.provenance import maker
from gym_torch.inputs_beside import inputs_of
from gym_torch.prompt_responses import PromptResponses

KEY_BYTES = 16
COMPUTES_NOTHING = {"architectures", "dtype", "transformers_version", "use_cache"}  #: parts of a configuration
Scores = Mapping[bytes, npt.NDArray[np.float32]]  #: by `key_of`, log-probabilities of the trained tokens of responses


class CachedLogProbs:
    """Log-probabilities of the tokens of responses under a reference."""

    def __init__(self, scores: Scores) -> None:
        """Take them, by `key_of`."""
        self.scores = scores

    def of(self, group: PromptResponses) -> Tensor:
        """Return those of the responses to one prompt, one response after another: `[n]` fp32."""
        return torch.from_numpy(self.scores[key_of(group)])

    def write(self, path: Path, name: str) -> None:
        """Write them, all or nothing; `name` says what they are made from, see `name_of`.

        What is kept beside them takes no more than `$GYM_CACHE_SIZE`; the least recently used goes.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        token_cache.collect(path.parent)
        keys = sorted(self.scores)
        tensors = {
            "keys": torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).view(-1, KEY_BYTES),
            "ends": torch.tensor([len(self.scores[key]) for key in keys]).cumsum(0),
            "log_probs": torch.from_numpy(np.concatenate([self.scores[key] for key in keys])),
        }
        with replacing(path) as building:
            save_file(tensors, building, {"format": "pt", "name": name})
        cache_eviction.evict(path.parent, cache_eviction.limit(), path.name)

    @staticmethod
    def there(path: Path, name: str) -> bool:
        """Whether what `write` wrote under this name is there and can be read; it counts as used."""
        try:
            with safe_open(path, "pt") as file:
                found = (file.metadata() or {}).get("name") == name
            os.utime(path)
        except (OSError, SafetensorError):
            return False
        return found

    @classmethod
    def read(cls, path: Path) -> CachedLogProbs:
        """Return what `write` wrote."""
        tensors = load_file(path)
        keys = [row.tobytes() for row in tensors["keys"].numpy()]
        parts = np.split(tensors["log_probs"].numpy(), tensors["ends"].numpy()[:-1])
        return cls(dict(zip(keys, parts, strict=True)))


def key_of(group: PromptResponses) -> bytes:
    """Return bytes that are equal for equal tokens of which the same are trained, with the same images."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for each in group.responses:
        digest.update(inputs_of(each)[1].encode())
    for part in (group.prompt, *(array for each in group.responses for array in (each.tokens, each.trained))):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def name_of(weights: str, how: Sequence[Any], keys: Sequence[bytes]) -> str:
    """Return the name of the scores of responses by weights: of what they are made from, and of how they are computed.

    `how` is plain data; by which version of which code is named as well.
    """
    made_by = [weights, how, maker("gym_preference"), maker("gym_torch")]
    digest = hashlib.blake2b(json.dumps(made_by, sort_keys=True, default=str).encode(), digest_size=16)
    for key in sorted(keys):
        digest.update(key)
    return digest.hexdigest()


def fingerprint(weights: Iterable[Tensor], config: PretrainedConfig) -> str:
    """Return what names a model by what it computes: its configuration, and its weights in their order, by their content.

    An adapter around the weights may have given them other names.
    """
    computes = {key: value for key, value in config.to_diff_dict().items() if key not in COMPUTES_NOTHING}
    digest = hashlib.blake2b(json.dumps(computes, sort_keys=True, default=str).encode(), digest_size=16)
    for weight in weights:
        digest.update(f"{weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
