"""gym-export: what was trained, carried into other runtimes, with proof that it is still the same model.

The public names below are imported on first use; nothing heavy is imported until an exporter is built.
"""

from __future__ import annotations

from gym_core.lazy import lazily
from gym_torch.log_filters import drop_log_messages

__version__ = "0.1.0"
drop_log_messages()  # before anything below imports transformers, which imports torchao where it is installed

_HOMES = {
    "gym_export.config": "GGUF ONNX ExecuTorch Ollama OpenVINO SafetensorsExporter TorchScript",
    "gym_export.kinds": "CertifiedExporter",
}
__all__, __getattr__, __dir__ = lazily(__name__, _HOMES)
