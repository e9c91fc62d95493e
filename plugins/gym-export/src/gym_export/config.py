"""The exporters as a recipe sees them: options, defaults, documentation. Nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from gym_export.kinds import CertifiedExporter

Block = Literal["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
GGUFType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0",
                   "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "q3_k_m", "q2_k"]  # fmt: skip
#: How far weights may be off, relative (Frobenius): each number of a block by as much as its format says, at the worst.
WEIGHTS_OFF: dict[str, float] = {
    "f32": 0.0, "f16": 2**-11, "bf16": 2**-8, "q8_0": 0.025, "q5_1": 0.2, "q5_0": 0.36, "q4_1": 0.4, "q4_0": 0.71,
    "q6_k": 0.1, "q5_k_m": 0.15, "q5_k_s": 0.15, "q4_k_m": 0.25, "q4_k_s": 0.25, "q3_k_m": 0.4, "q2_k": 0.7,
}  # fmt: skip
#: How far logits may be off, relative to their norm; of a format of few bits a model of random weights is off the most.
LOGITS_OFF: dict[str, float] = {
    "f32": 1e-3, "f16": 1e-2, "bf16": 2e-2, "q8_0": 0.05, "q5_1": 0.25, "q5_0": 0.3, "q4_1": 0.45, "q4_0": 0.5,
    "q6_k": 0.15, "q5_k_m": 0.25, "q5_k_s": 0.25, "q4_k_m": 0.35, "q4_k_s": 0.4, "q3_k_m": 0.5, "q2_k": 0.9,
}  # fmt: skip
KQUANTS = frozenset(name for name in WEIGHTS_OFF if "_k" in name)  #: written by llama.cpp's library alone


class SafetensorsExporter(CertifiedExporter):
    """A plain Hugging Face model directory: adapters and deltas merged in, weights in safetensors shards."""

    format: ClassVar[str] = "gym_export.formats.safetensors:Safetensors"
    tasks: ClassVar[tuple[str, ...]] = ("causal-lm", "sequence-classification", "token-classification")

    shard_gigabytes: Annotated[float, Field(gt=0)] = 5.0
    """Largest size of one file of weights."""
    dtype: Literal["keep", "fp32", "bf16", "fp16"] = "keep"
    """Number format of the weights; `keep` is that of the base model."""


class GGUF(CertifiedExporter):
    """One GGUF file for llama.cpp, LM Studio or Ollama: weights, tokenizer and chat template.

    Its weights are read back and compared number by number; where llama-cpp-python is installed, llama.cpp also answers.
    """

    format: ClassVar[str] = "gym_export.formats.gguf:GGUFFormat"

    type: GGUFType = "f16"
    """Number format of matrices; norms, biases and routers stay in fp32. Those with `_k` are written by llama.cpp's library."""
    runtime: Literal["auto", "gguf", "llama.cpp"] = "auto"
    """What reads it again: llama.cpp, which must be there; `gguf`, which compares weights and vocabulary alone; or `auto`, which
    is llama.cpp where it is installed."""

    imatrix: Path | None = None
    """A file of plain text on which it is measured how much each column of a matrix matters; k-quants keep those closer."""

    @model_validator(mode="after")
    def _imatrix_is_for_kquants(self) -> Self:
        if self.imatrix is not None and self.type not in KQUANTS:
            raise ValueError(f"`imatrix` is for types with `_k`, and says nothing to {self.type}")
        return self

    def error_bound(self) -> float:
        """Return how far the format rounds weights, at the worst."""
        return WEIGHTS_OFF[self.type]


class Ollama(GGUF):
    """A folder for `ollama create`: a GGUF file and a Modelfile with the chat template as Ollama writes it."""

    format: ClassVar[str] = "gym_export.formats.ollama:OllamaFormat"

    num_ctx: Annotated[int | None, Field(gt=0)] = None
    """Tokens of context; by default what the model has positions for, 8192 at most."""
    system: str | None = None
    """What the model is told where a conversation has no system message; by default what its chat template says then."""


class ONNX(CertifiedExporter):
    """An ONNX graph with a key-value cache for onnxruntime, in fp32, its tokenizer beside it."""

    format: ClassVar[str] = "gym_export.formats.onnx:ONNXFormat"
    compares: ClassVar[str] = "logits"

    exporter: Literal["torchscript", "dynamo"] = "torchscript"
    """Which exporter of torch makes the graph: by tracing, or by `torch.export`, which takes longer and needs onnxscript."""
    opset: Annotated[int, Field(ge=14, le=21)] = 18
    """Version of the operators."""

    def error_bound(self) -> float:
        """Return what another order of summation makes of fp32."""
        return 1e-5


class TorchScript(CertifiedExporter):
    """A traced program with a key-value cache that libtorch runs without Python, in fp32, its tokenizer beside it."""

    format: ClassVar[str] = "gym_export.formats.torchscript:TorchScriptFormat"
    compares: ClassVar[str] = "logits"

    def error_bound(self) -> float:
        """Return what another order of summation makes of fp32."""
        return 1e-5


class ExecuTorch(CertifiedExporter):
    """An ExecuTorch program with a key-value cache for phones and small devices, in fp32, its tokenizer beside it."""

    format: ClassVar[str] = "gym_export.formats.executorch:ExecuTorchFormat"
    compares: ClassVar[str] = "logits"
    outside: ClassVar[str] = "the library executorch"

    max_tokens: Annotated[int, Field(ge=256)] = 512
    """Tokens that a call takes at most, and tokens that it may find in the cache; memory for so many is planned."""

    def error_bound(self) -> float:
        """Return what another order of summation makes of fp32."""
        return 1e-5


class OpenVINO(CertifiedExporter):
    """An OpenVINO model with a key-value cache, its tokenizer beside it."""

    format: ClassVar[str] = "gym_export.formats.openvino:OpenVINOFormat"
    compares: ClassVar[str] = "logits"
    outside: ClassVar[str] = "the library openvino"

    exporter: Literal["torchscript", "dynamo"] = "torchscript"
    """Which exporter of torch makes the graph: by tracing, or by `torch.export`, which takes longer and needs onnxscript."""
    dtype: Literal["fp32", "fp16"] = "fp32"
    """Number format of the weights; computed is in fp32."""

    def error_bound(self) -> float:
        """Return what the precision rounds."""
        return 1e-2 if self.dtype == "fp16" else 1e-4
