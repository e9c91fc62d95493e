# The public names with their types, for type checkers; `__init__.py` imports them on first use.
from gym_export.config import GGUF as GGUF
from gym_export.config import ONNX as ONNX
from gym_export.config import ExecuTorch as ExecuTorch
from gym_export.config import Ollama as Ollama
from gym_export.config import OpenVINO as OpenVINO
from gym_export.config import SafetensorsExporter as SafetensorsExporter
from gym_export.config import TorchScript as TorchScript
from gym_export.kinds import CertifiedExporter as CertifiedExporter

__version__: str
