"""Which class of transformers a model that writes text is of: one of text alone, or one that also reads images or sounds."""

from __future__ import annotations

from collections import ChainMap, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.auto_factory import _LazyAutoMapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

#: Of models of sounds and text those that were compared with transformers; some others have no `forward` as a whole.
_SOUND = OrderedDict(
    {"qwen2_audio": "Qwen2AudioForConditionalGeneration"}
)  # which takes attributes, as the mapping asks
SOUND: Any = _LazyAutoMapping(CONFIG_MAPPING_NAMES, _SOUND)


class AutoLanguageModel:
    """What `AutoModelForCausalLM` is to models of text, for families that only have models of more than text."""

    _model_mapping = ChainMap[Any, Any](MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, SOUND)
    """Classes of models by those of configurations, as automatic classes of transformers have it."""

    @staticmethod
    def of(config: PretrainedConfig) -> Any:
        """Return the automatic class of transformers for a configuration."""
        own: Mapping[str, Any] = getattr(config, "auto_map", None) or {}  # of a model with code of its own
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in own:
            return AutoModelForCausalLM
        if type(config) in SOUND:
            return AutoModelForMultimodalLM
        reads = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or "AutoModelForImageTextToText" in own
        return AutoModelForImageTextToText if reads else AutoModelForCausalLM

    @classmethod
    def reads_media(cls, config: PretrainedConfig) -> bool:
        """Whether the model of a configuration takes more than text; of some families the text part alone is loaded."""
        text, *others = (mapping.get(type(config), None) for mapping in cls._model_mapping.maps)
        return any(other is not None and text in (None, other) for other in others)

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
