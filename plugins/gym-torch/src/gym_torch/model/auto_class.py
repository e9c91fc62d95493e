"""Which class of transformers a model that writes text is of: one of text alone, or one that also reads images."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


class AutoLanguageModel:
    """What `AutoModelForCausalLM` is to models of text, for families that only have models of images and text as well."""

    _model_mapping = ChainMap[Any, Any](MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)
    """Classes of models by those of configurations, as automatic classes of transformers have it."""

    @staticmethod
    def of(config: PretrainedConfig) -> Any:
        """Return the automatic class of transformers for a configuration."""
        own: Mapping[str, Any] = getattr(config, "auto_map", None) or {}  # of a model with code of its own
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in own:
            return AutoModelForCausalLM
        reads = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or "AutoModelForImageTextToText" in own
        return AutoModelForImageTextToText if reads else AutoModelForCausalLM

    @classmethod
    def reads_media(cls, config: PretrainedConfig) -> bool:
        """Whether the model of a configuration is one of images and text; of some families the text part alone is loaded."""
        text, images = (mapping.get(type(config), None) for mapping in cls._model_mapping.maps)
        return images is not None and text in (None, images)

    @classmethod
    def from_config(cls, config: PretrainedConfig, **options: Any) -> PreTrainedModel:
        """Return a model without trained weights."""
        model: PreTrainedModel = cls.of(config).from_config(config, **options)
        return model

    @classmethod
    def from_pretrained(cls, path: Path | str, config: PretrainedConfig | None = None, **options: Any) -> Any:
        """Load the model in a directory, as classes of transformers do."""
        if config is None:
            config = AutoConfig.from_pretrained(path, local_files_only=True)
        return cls.of(config).from_pretrained(path, config=config, **options)
