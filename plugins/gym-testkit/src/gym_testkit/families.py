"""Every family of causal language models that transformers has, each as a tiny random model built from its own configuration.

Nothing here names what is to come of a family. Where the default configuration of transformers is no model that runs, or not
the one that people use, `SHAPES` says what is missing; `LEFT_OUT` says which are no language models of text, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gym_core import GymError
from gym_torch.batch import Piece
from gym_torch.model.layout_support import LayoutSupport, layout_support_of
from gym_torch.model.miniature import VOCABULARY, enlarge, shrunk
from gym_torch.policy import Policy

_DECODER = {"is_decoder": True}
_SPARSE = {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
_HEADS = {"head_dim": 16}
_LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 4096} | {
    "short_factor": [1.0 + number / 48 for number in range(48)],
    "long_factor": [2.0 + number for number in range(48)],
}
#: What is not the default of a configuration. A name with a blank is a variant of the family before it.
SHAPES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"), _DECODER
    ),
    **dict.fromkeys(("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"), _DECODER),
    **dict.fromkeys(("xlm-roberta", "xlm-roberta-xl"), _DECODER),
    "xmod": _DECODER | {"default_language": "en_XX"},
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"), _HEADS),
    "nemotron": _HEADS | {"num_key_value_heads": 2},
    **dict.fromkeys(("deepseek_v2", "dots1"), _SPARSE),
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "bamba": {"attn_layer_indices": [1, 3], "num_hidden_layers": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "num_hidden_layers": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4, "num_dense_layers": 1},
    "llama dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    "llama yarn": {
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
        | {"original_max_position_embeddings": 4096}
    },
    "phi3 longrope": {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 4096},
    "qwen2_moe windows": {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1},
    "qwen3 windows": {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1},
    "phimoe windows": {"sliding_window": 2047},
}
#: Families of the mapping that are none of text alone, or that plain transformers cannot run as a causal language model.
LEFT_OUT: dict[str, str] = {
    "blt": "reads bytes through a second model",
    "cpmant": "sees all tokens at once",
}


def names() -> list[str]:
    """Return all that can be tried: what transformers maps to a causal language model, and variants of it."""
    own = [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in LEFT_OUT]
    return sorted({*own, *SHAPES})


def shape(name: str) -> PretrainedConfig:
    """Return a tiny configuration of a family; thresholds are tiny too."""
    return shrunk(CONFIG_MAPPING[name.split(" ")[0]](**SHAPES.get(name, {})))


def build(name: str) -> PreTrainedModel:
    """Return a tiny model of a family with random weights, always the same ones."""
    config = shape(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        enlarge(model)
    return model.eval()


@dataclass(frozen=True)
class Trial:
    """What became of a family."""

    found: LayoutSupport | None  #: how it is computed; None where transformers does not run it, or it is refused
    error: float = 0.0  #: largest relative difference of the loss of a sample from that of plain transformers
    why: str = ""  #: why it is not run


#: Samples of many lengths, as segments and what they continue: two answers to one prompt among them.
LENGTHS, PREFIXES = (4, 57, 9, 30, 11, 17, 26), (None, None, None, None, None, 4, 4)
AGREES = 1e-4  #: relative difference of losses up to which they are the same but for rounding


def trial(name: str) -> Trial:
    """Compare the loss of each sample with what transformers computes for it alone, in the layout that the engine chooses.

    Samples are longer and shorter than every threshold of the configuration, and others than those of the engine's own trial.
    """
    try:
        model = build(name)
        pieces = samples()
        wanted = torch.stack([plain_loss(model, *text) for text in _texts(pieces)])
    except Exception as error:  # whatever a family raises where it cannot be run by transformers itself
        return Trial(None, why=f"transformers: {type(error).__name__}: {str(error).strip().splitlines()[0][:90]}")
    try:
        found = layout_support_of(model)
    except GymError as error:
        return Trial(None, why=error.problems[0].why)
    with torch.no_grad():
        batch = found.layout.lay_out(pieces, PREFIXES)
        scores = Policy(model)(batch)
    losses = torch.zeros(len(pieces)).index_add(0, batch.target_segment, -scores)
    counted = [number for number, piece in enumerate(pieces) if piece.trained.any()]
    return Trial(found, float(((losses[counted] - wanted) / wanted).abs().max()))


def samples() -> list[Piece]:
    """Return the samples; what others continue is not learnt from."""
    random = np.random.default_rng(1)
    return [
        Piece(
            f"s{number}",
            random.integers(3, VOCABULARY - 4, length).astype(np.int32),
            random.random(length) < (0.0 if number in PREFIXES else 0.7),
        )
        for number, length in enumerate(LENGTHS)
    ]


def _texts(pieces: Sequence[Piece]) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]]:
    """Return each sample that is learnt from as a text of its own, behind what it continues."""
    found = []
    for piece, prefix in zip(pieces, PREFIXES, strict=True):
        before = [] if prefix is None else [pieces[prefix]]
        if piece.trained.any():
            tokens = np.concatenate([part.tokens for part in (*before, piece)])
            found.append(
                (tokens, np.concatenate([np.zeros(len(tokens) - len(piece.tokens), dtype=bool), piece.trained]))
            )
    return found


@torch.no_grad()
def plain_loss(model: PreTrainedModel, tokens: npt.NDArray[np.int32], trained: npt.NDArray[np.bool_]) -> Tensor:
    """Return the loss of a text, summed over its labels, from the logits that transformers gives for it."""
    ids = torch.from_numpy(tokens.astype(np.int64))
    scores = model(input_ids=ids[None]).logits[0].float().log_softmax(-1)
    chosen = torch.from_numpy(np.flatnonzero(trained[1:]))
    return cast(Tensor, -scores[chosen, ids[1:][chosen]].sum())
