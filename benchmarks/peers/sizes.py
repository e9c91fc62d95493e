"""Models of the sizes that people train on one GPU, what a step of each costs, and who trains it how. No torch is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

RANK = 16  #: of LoRA
GIB = 2**30
#: By way, who can do so; the first is this project. After a name comes in which form it does, of `FORMS`.
PEERS: Mapping[str, tuple[str, ...]] = {
    "full": ("gym", "gym compiled", "gym fp8", "trl", "llamafactory", "unsloth"),
    "lora": ("gym", "gym compiled", "gym fp8", "trl", "llamafactory", "unsloth"),
    "qlora": ("gym", "trl", "llamafactory", "unsloth"),
    "grpo": ("gym", "gym vllm", "trl", "trl vllm"),
    "decode": ("gym", "gym eager", "transformers"),
}
#: Options of a worker's spec by form: layers compiled, products in fp8 in compiled layers, answers by vLLM, steps without graphs.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "compiled": {"compiled": True},
    "fp8": {"compiled": True, "fp8": "rowwise"},
    "vllm": {"vllm": True},
    "eager": {"graphs": False},
}
#: By way, bytes of a parameter beside activations: fp32 weights, gradients and two moments; or bf16; or 4 bits and scales.
STATE = {"full": 16.0, "grpo": 16.0, "lora": 2.0, "qlora": 0.57, "decode": 2.0}
#: By way, how often a product with a frozen or trained weight is computed: forward, for what came in, and for the weight.
PASSES = {"full": 3, "grpo": 3, "lora": 2, "qlora": 2}


@dataclass(frozen=True)
class Size:
    """A model by its `config.json`."""

    config: Mapping[str, Any]

    @property
    def layer(self) -> int:
        """Parameters in the matrices of a layer."""
        hidden, heads, dim = (self.config[key] for key in ("hidden_size", "num_attention_heads", "head_dim"))
        attention = hidden * dim * (2 * heads + 2 * self.config["num_key_value_heads"])
        return int(attention + 3 * hidden * self.config["intermediate_size"])

    @property
    def head(self) -> int:
        """Parameters of the head."""
        return int(self.config["hidden_size"] * self.config["vocab_size"])

    @property
    def parameters(self) -> int:
        """All that count: matrices, embeddings and head."""
        tied = self.config["tie_word_embeddings"]
        return int(self.config["num_hidden_layers"] * self.layer + self.head * (1 if tied else 2))

    @property
    def adapted(self) -> int:
        """Parameters of LoRA of every matrix of the layers."""
        hidden, wide, dim = (self.config[key] for key in ("hidden_size", "intermediate_size", "head_dim"))
        query, key = (dim * self.config[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
        ends = 2 * (hidden + query) + 2 * (hidden + key) + 3 * (hidden + wide)
        return int(RANK * ends * self.config["num_hidden_layers"])

    def forward(self, squares: float, head: float = 1.0) -> float:
        """Return the FLOPs of a token forward: 2 a parameter, and attention over what it sees.

        `squares` is how many tokens a token sees, in the mean; `head` the share of tokens that are scored.
        """
        heads, layers = self.config["num_attention_heads"] * self.config["head_dim"], self.config["num_hidden_layers"]
        return float(2 * (layers * self.layer + head * self.head) + 4 * layers * heads * squares)

    def step(self, way: str, squares: float, head: float = 1.0) -> float:
        """Return the FLOPs that a token needs in training, without any that are computed again."""
        return PASSES[way] * self.forward(squares, head) + (6 * self.adapted if way in ("lora", "qlora") else 0)

    def state(self, way: str) -> float:
        """Return the bytes of weights, gradients and moments."""
        return STATE[way] * self.parameters + (16 * self.adapted if way in ("lora", "qlora") else 0)


def _size(
    kind: str, hidden: int, wide: int, layers: int, heads: int, kv: int, dim: int, words: int, tied: bool
) -> Size:
    name = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[kind]
    return Size(
        {
            "model_type": kind,
            "architectures": [name],
            "hidden_size": hidden,
            "intermediate_size": wide,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv,
            "head_dim": dim,
            "vocab_size": words,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": tied,
        }
    )


SIZES = {
    "0.6B": _size("qwen3", 1024, 3072, 28, 16, 8, 128, 151_936, tied=True),
    "7B": _size("llama", 4096, 11_008, 32, 32, 32, 128, 32_000, tied=False),
}
TINY = _size("qwen3", 64, 96, 2, 4, 2, 16, 512, tied=True)  #: to try the plan itself with
MINIATURE = _size("qwen3", 64, 96, 2, 4, 2, 16, 8_192, tied=True)  #: to try the workers with, on a CPU


@dataclass(frozen=True)
class Case:
    """What is measured: a model, how it is trained, by whom, and why not."""

    size: str
    way: str
    peers: tuple[str, ...]
    left_out: str = ""


def cases(room: float, quick: bool) -> Iterator[Case]:
    """Yield what to measure on a device with so many bytes of memory; `quick` leaves 7B out."""
    for size in list(SIZES)[: 1 if quick else None]:
        for way, peers in PEERS.items():
            needs = SIZES[size].state(way)
            if needs > 0.9 * room:
                yield Case(size, way, (), f"weights and optimizer take {needs / GIB:.0f} GiB of {room / GIB:.0f} GiB")
            else:
                yield Case(size, way, tuple(filter(_installed, peers)))


def _installed(peer: str) -> bool:
    """Whether a peer is there, and what its form needs."""
    name, _, form = peer.partition(" ")
    needed = [*([] if name == "gym" else [name]), *(["vllm"] if form == "vllm" else [])]
    return all(find_spec(package) is not None for package in needed)


def of_llamafactory(
    model: str, folder: str, data: str, way: str, output: str, steps: int, rows: int, length: int, recompute: bool
) -> dict[str, Any]:
    """Return the arguments of LLaMA-Factory at its best: FlashAttention, Liger's kernels and packing."""
    adapter = {"finetuning_type": "lora", "lora_rank": RANK, "lora_alpha": 2 * RANK, "lora_target": "all"}
    quantized = {"quantization_bit": 4, "quantization_method": "bnb"} if way == "qlora" else {}
    return {
        "stage": "sft",
        "do_train": True,
        "model_name_or_path": model,
        "dataset_dir": folder,
        "dataset": data,
        "template": "qwen",
        "cutoff_len": length,
        "packing": True,
        "neat_packing": True,
        "flash_attn": "fa2",
        "enable_liger_kernel": True,
        "bf16": True,
        **({"finetuning_type": "full"} if way == "full" else adapter),
        **quantized,
        "max_steps": steps,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "include_num_input_tokens_seen": True,
        "disable_gradient_checkpointing": not recompute,
        "output_dir": output,
    }
