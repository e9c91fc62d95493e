"""The format GGUF: what models and tokenizers are called there, and how the file is written and read back."""

from __future__ import annotations

from gym_export.formats.gguf.format import GGUFFormat as GGUFFormat
