from gym_export.config import SafetensorsExporter as SafetensorsExporter

__version__: str
