"""How far each format is off: the tiny model, written, loaded again in its runtime in a fresh process, and compared.

Formats whose runtime is not installed are left out and named. With `GYM_LLAMACPP` set (by `nox -s llamacpp`) it is an error when
llama.cpp does not answer for GGUF.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import report

import gym_tiny
from gym_core import Artifact
from gym_export import GGUF, ONNX, ExecuTorch, OpenVINO, SafetensorsExporter, TorchScript
from gym_export.config import KQUANTS, WEIGHTS_OFF
from gym_export.kinds import CertifiedExporter
from gym_tiny.corpus import documents

TINY = Path(gym_tiny.__file__).parent / "model"
#: Of the relative difference of logits.
LIMITS = {
    "gguf f16": 1e-2, "onnx": 1e-5, "torchscript": 1e-5, "executorch": 1e-5, "openvino": 1e-5, "openvino fp16": 1e-3,
}  # fmt: skip
#: What of a certificate is shown.
SHOWN = (
    "weights_relative_difference",
    "outputs_relative_difference",
    "max_difference",
    "relative_difference",
    "greedy",
)


def cases(quick: bool, llamacpp: bool, texts: Path) -> dict[str, CertifiedExporter]:
    """Return what is exported, by name; k-quants also by the importances of columns on a file of texts."""
    found: dict[str, CertifiedExporter] = {"safetensors": SafetensorsExporter()}
    for kind in ["f16", "q8_0"] if quick else WEIGHTS_OFF:
        if llamacpp or kind not in KQUANTS:
            found[f"gguf {kind}"] = GGUF(type=kind)  # type: ignore[arg-type]
    for kind in ("q4_k_m", "q3_k_m", "q2_k") if llamacpp and not quick else ():
        found[f"gguf {kind} imatrix"] = GGUF(type=kind, imatrix=texts)  # type: ignore[arg-type]
    found |= {"torchscript": TorchScript()}
    found |= {"onnx": ONNX()} if find_spec("onnxruntime") else {}
    found |= {"executorch": ExecuTorch()} if find_spec("executorch") else {}
    return found | ({"openvino": OpenVINO(), "openvino fp16": OpenVINO(dtype="fp16")} if find_spec("openvino") else {})


def measure(out: report.Report, quick: bool) -> None:
    """Export in each format; `quick` leaves most types of GGUF out."""
    llamacpp = find_spec("llama_cpp") is not None
    assert llamacpp or "GYM_LLAMACPP" not in os.environ, "llama-cpp-python is not installed"
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.txt"
        texts.write_text("\n".join(documents(2000, seed=1)), encoding="utf-8")
        for name, exporter in cases(quick, llamacpp, texts).items():
            written = exporter.build().export(Artifact(TINY), Path(folder) / name.replace(" ", "-"))
            told = json.loads((written / "certificate.json").read_text(encoding="utf-8"))
            out.figures[name] = {key: told[key] for key in SHOWN if key in told}
            if "relative_difference" in told and name in LIMITS:
                out.check(f"{name}: relative difference of logits", told["relative_difference"], at_most=LIMITS[name])
                missed = told["greedy"]["tokens"] - told["greedy"]["same"]
                out.check(f"{name}: greedy tokens that differ", missed, at_most=0)


if __name__ == "__main__":
    report.main(measure, __doc__ or "")
