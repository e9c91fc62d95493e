"""Small models of text and images, videos or sounds with random weights, one of each way in which families lay these out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForMultimodalLM, AutoTokenizer

from gym_core.loading import load_component

TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- for part in message.content %}
{{- part.text if part.type == 'text' else {'image': 'IMAGE', 'video': 'VIDEO', 'audio': 'AUDIO'}[part.type] }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "eos_token_id": 2041,
    "pad_token_id": 2039,
    "bos_token_id": None,
}
SIGHT = {"hidden_size": 32, "intermediate_size": 48, "patch_size": 14}
QWEN = {"image_processor_type": "Qwen2VLImageProcessor", "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 784}
WINDOWS = {"num_heads": 2, "depth": 2, "out_hidden_size": 32}
FLAT = {"num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56}

#: Of each family: what marks an image in a chat, the tokens of images, and the parts of its configuration and its processor.
FAMILIES: dict[str, dict[str, Any]] = {
    # positions in three dimensions; as many tokens as an image is large
    "qwen2_5_vl": {
        "mark": "<|vision_start|><|image_pad|><|vision_end|>",
        "tokens": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
        "text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "mrope_section": [1, 1, 2]}},
        "vision": {**SIGHT, **WINDOWS, "window_size": 56, "fullatt_block_indexes": [1]},
        "ids": {"image_token_id": 2, "video_token_id": 3, "vision_start_token_id": 0, "vision_end_token_id": 1},
        "image": {**QWEN, "patch_size": 14, "max_pixels": 12544},
        "processor": {"processor_class": "Qwen2_5_VLProcessor"},
    },
    # states of the vision tower are added to those of several layers
    "qwen3_vl": {
        "mark": "<|vision_start|><|image_pad|><|vision_end|>",
        "tokens": ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
        "text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "mrope_section": [2, 1, 1]}},
        "vision": {**SIGHT, **WINDOWS, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        "ids": {"image_token_id": 2, "video_token_id": 3, "vision_start_token_id": 0, "vision_end_token_id": 1},
        "image": {**QWEN, "patch_size": 14, "max_pixels": 12544},
        "processor": {"processor_class": "Qwen3VLProcessor"},
    },
    # the mark in the chat template is the word that rows use for an image
    "llava": {
        "mark": "<image>\n",
        "tokens": ["<image>"],
        "text": {"model_type": "llama"},
        "vision": {**SIGHT, **FLAT, "model_type": "clip_vision_model", "projection_dim": 32},
        "ids": {"image_token_index": 0},
        "image": {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 56},
            "crop_size": {"height": 56, "width": 56},
        },
        "processor": {
            "processor_class": "LlavaProcessor",
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
            "image_token": "<image>",
        },
    },
    # tokens of an image see each other, also later ones; around them line breaks, which are a token that was added as well
    "gemma3": {
        "mark": "<start_of_image>",
        "tokens": ["<start_of_image>", "<end_of_image>", "<image_soft_token>"],
        "words": ["\n\n"],
        "text": {"sliding_window": 16, "model_type": "gemma3_text"},
        "vision": {**SIGHT, **FLAT, "model_type": "siglip_vision_model"},
        "ids": {"boi_token_index": 0, "eoi_token_index": 1, "image_token_index": 2, "mm_tokens_per_image": 4},
        "image": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 56, "width": 56}},
        "processor": {"processor_class": "Gemma3Processor", "image_seq_length": 4},
        "named": {"boi_token": 0, "eoi_token": 1, "image_token": 2},
    },
    # a processor that asks for parts for sound and videos; images in patches with positions of their own
    "gemma4": {
        "mark": "<image>",
        "tokens": ["<|image>", "<image|>", "<image>", "<|video|>", "<audio>", "<|audio>", "<audio|>"],
        "text": {
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 8,
            "hidden_size_per_layer_input": 8,
            "use_bidirectional_attention": "vision",
        },
        "vision": {
            **SIGHT,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 8,
            "pooling_kernel_size": 2,
            "position_embedding_size": 64,
        },
        "ids": {
            "boi_token_id": 0,
            "eoi_token_id": 1,
            "image_token_id": 2,
            "video_token_id": 3,
            "audio_token_id": 4,
            "boa_token_id": 5,
            "eoa_token_index": 6,
        },
        "image": {
            "image_processor_type": "Gemma4ImageProcessor",
            "patch_size": 8,
            "pooling_kernel_size": 2,
            "max_soft_tokens": 70,
        },
        "processor": {"processor_class": "Gemma4Processor"},
        "named": {
            "boi_token": 0,
            "eoi_token": 1,
            "image_token": 2,
            "audio_token": 4,
            "boa_token": 5,
            "eoa_token": 6,
        },
    },
}
#: Of further families that read videos.
SHOWN: dict[str, dict[str, Any]] = {
    # positions in three dimensions, without the time between frames
    "qwen2_vl": {
        **FAMILIES["qwen2_5_vl"],
        "vision": {"embed_dim": 32, "hidden_size": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14},
        "processor": {"processor_class": "Qwen2VLProcessor"},
    },
    # as many tokens for each frame; images in pieces
    "llava_next_video": {
        **FAMILIES["llava"],
        "video": "<video>\n",
        "tokens": ["<image>", "<video>"],
        "ids": {"image_token_index": 0, "video_token_index": 1},
        "image": {
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"shortest_edge": 56},
            "crop_size": {"height": 56, "width": 56},
            "image_grid_pinpoints": [[56, 112], [112, 56]],
        },
        "further": {"image_grid_pinpoints": [[56, 112], [112, 56]]},
        "moving": {
            "video_processor_type": "LlavaNextVideoVideoProcessor",
            "size": {"shortest_edge": 56},
            "crop_size": {"height": 56, "width": 56},
        },
        "processor": {
            "processor_class": "LlavaNextVideoProcessor",
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    },
}
#: Of families that hear.
HEARD: dict[str, dict[str, Any]] = {
    "qwen2_audio": {
        "mark": "",
        "audio": "Audio: <|audio_bos|><|AUDIO|><|audio_eos|>\n",
        "tokens": ["<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>"],
        "text": {"model_type": "qwen2"},
        "vision": {},
        "further": {
            "audio_config": {
                "d_model": 32,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 48,
                "encoder_layers": 2,
                "num_mel_bins": 16,
                "max_source_positions": 100,
            }
        },
        "ids": {"audio_token_index": 2},
        "image": {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": 16,
            "chunk_length": 2,
            "return_attention_mask": True,
        },
        "processor": {"processor_class": "Qwen2AudioProcessor"},
    }
}
#: Of a family that reads no conversations: its processor frames what is asked in a way of its own.
FRAMED: dict[str, dict[str, Any]] = {
    "paligemma": {
        "mark": "<image>",
        "tokens": ["<image>", "<bos>"],
        "text": {"model_type": "gemma"},
        "vision": {**SIGHT, **FLAT, "model_type": "siglip_vision_model", "projection_dim": 32},
        "ids": {"image_token_index": 0},
        "image": {
            "image_processor_type": "SiglipImageProcessor",
            "size": {"height": 56, "width": 56},
            "image_seq_length": 16,
        },
        "processor": {"processor_class": "PaliGemmaProcessor"},
        "named": {"image_token": 0, "bos_token": 1},
    },
}


def small_model(family: str, folder: Path) -> Path:
    """Write a model of a family, its tokenizer and its processor into a folder, and return it."""
    told = (FAMILIES | SHOWN | HEARD | FRAMED)[family]
    tokenizer = AutoTokenizer.from_pretrained(load_component("families", "tiny")[1]().build())
    tokenizer.add_special_tokens({"additional_special_tokens": told["tokens"]})
    tokenizer.add_tokens(told.get("words", []))
    marks = {"IMAGE": told["mark"], "VIDEO": told.get("video", told["mark"].replace("image", "video"))}
    marks["AUDIO"] = told.get("audio", "")
    tokenizer.chat_template = TEMPLATE
    for name, mark in marks.items():
        tokenizer.chat_template = tokenizer.chat_template.replace(name, mark.replace("\n", "\\n"))
    tokenizer.save_pretrained(folder)
    named = {name: told["tokens"][place] for name, place in told.get("named", {}).items()}
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | named | {"extra_special_tokens": named}))
    ids = {
        name: value if name.startswith("mm_") else tokenizer.convert_tokens_to_ids(told["tokens"][value])
        for name, value in told["ids"].items()
    }
    text = {**TEXT, **told["text"], "vocab_size": len(tokenizer), "vocab_size_per_layer_input": len(tokenizer)}
    ids |= told.get("further", {})
    ids |= {"vision_config": told["vision"]} if told["vision"] else {}
    shape = CONFIG_MAPPING[family](text_config=text, tie_word_embeddings=True, **ids)
    torch.manual_seed(0)
    model = AutoModelForMultimodalLM.from_config(shape)
    for weight in model.parameters():
        if not weight.any():  # such as the projector of Gemma 3, behind which no image would be seen
            torch.nn.init.normal_(weight, std=0.02)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(told["image"]))
    (folder / "processor_config.json").write_text(json.dumps(told["processor"]))
    if "moving" in told:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(told["moving"]))
    return folder
