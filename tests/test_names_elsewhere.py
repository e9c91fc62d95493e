"""Every option of TRL and of the Trainer of transformers is one here, or its error says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields

import pytest

from gym_core import Train
from gym_core.component import Component
from gym_core.discovery import catalogue, entries, named
from gym_core.errors import PluginError
from gym_core.loading import find, load, load_component
from gym_core.sections import SECTION_OF, SECTIONS, named_elsewhere
from gym_manage.elsewhere import NAMES

CONFIGS = [
    "SFTConfig",
    "DPOConfig",
    "GRPOConfig",
    "KTOConfig",
    "RewardConfig",
    "RLOOConfig",
    "ModelConfig",
    "ScriptArguments",
]

#: Options of open-unlearning, of the code of SimNPO and of that of WMDP.
UNLEARNING = """gamma alpha beta delta retain_loss_type steering_coeff module_regex trainable_params_regex npo_coeff
grad_diff_coeff layer_id layer_ids param_ids forget_split retain_split"""

#: Keys of verl's `ppo_trainer.yaml` that training depends on.
VERL = """actor_rollout_ref adv_estimator balance_batch clip_ratio clip_ratio_c clip_ratio_high clip_ratio_low cliprange_value
critic_warmup custom_reward_function default_local_dir enable_gradient_checkpointing entropy_coeff experiment_name
filter_groups filter_overlong_prompts gamma gpu_memory_utilization grad_clip horizon kl_coef kl_ctrl kl_loss_coef kl_loss_type
kl_penalty lam log_prob_micro_batch_size_per_gpu logger loss_agg_mode loss_mode lr lr_warmup_steps lr_warmup_steps_ratio
max_actor_ckpt_to_keep max_assistant_turns max_model_len max_num_gen_batches max_prompt_length max_response_length min_p
multi_turn n_gpus_per_node nnodes norm_adv_by_std_in_grpo overlong_buffer policy_loss ppo_epochs ppo_max_token_len_per_gpu
ppo_micro_batch_size_per_gpu ppo_mini_batch_size project_name resume_mode reward_manager rollout_is rollout_is_threshold
rollout_rs save_freq seed target_kl tau_neg tau_pos temperature tensor_model_parallel_size test_freq tool_config_path top_k top_p
total_epochs total_training_steps train_batch_size use_dynamic_bsz use_kl_in_reward use_kl_loss use_remove_padding
val_before_train val_kwargs warmup_style weight_decay"""


@pytest.fixture(scope="module")
def sections() -> dict[str, list[type]]:
    """Return the options that each section can have."""
    found: dict[str, list[type]] = {"train": [Train]}
    for kind, section in SECTION_OF.items():
        loaded: list[type[Component]] = [load_component(kind, entry.qualified)[1] for entry in entries(kind)]
        found[section] = list(loaded)
    return found


def test_what_is_advised_exists(sections: dict[str, list[type]]) -> None:
    """A section, or an option of one, whatever the advice is."""
    for key, advice in NAMES.items():
        for place in re.findall(r"did you mean `([\w.]+)`|`((?:train|data|model|algorithm)\.\w+)`", advice):
            section, _, option = "".join(place).partition(".")
            assert section in SECTIONS, key
            assert not option or any(option in cls.model_fields for cls in sections[section]), (key, advice)  # type: ignore[attr-defined]


def test_what_is_advised_for_a_component_exists() -> None:
    advised = {name: advice for name, advice in catalogue().items() if "did you mean" in advice}
    assert len(advised) > 20
    for name, advice in advised.items():
        kind, ours = name.split("/")[1], re.findall(r"did you mean `(\w+)`", advice)[0]
        assert named(kind, ours), name
        for option in re.findall(r"with `(\w+)[:`]", advice):
            assert option in {*SECTIONS, *load_component(kind, ours)[1].model_fields}, name


@pytest.mark.parametrize(
    ("kind", "name", "ours"),
    [
        ("optimizers", "adamw_torch", "adamw"),  # and not `adamw_8bit`, which looks more like it
        ("optimizers", "apollo_adamw", "apollo"),
        ("schedulers", "constant_with_warmup", "constant"),
        ("adapters", "qlora", "lora"),
    ],
)
def test_a_component_by_the_name_of_other_software_is_answered_with_ours(kind: str, name: str, ours: str) -> None:
    with pytest.raises(PluginError, match=f"did you mean `{ours}`"):
        find(kind, name)


@pytest.mark.parametrize("near", ["", "gamma"])
def test_a_key_that_nobody_knows_is_no_riddle_to_advice(near: str) -> None:
    """Every package that gives advice is asked about it, one after another."""
    asked = entries("advice")
    assert len(asked) > 1
    assert [load(entry)("zqxjv", near) for entry in asked] == [None] * len(asked)


def lacking(asked: Iterable[str], sections: dict[str, list[type]]) -> str:
    """Return which names have neither an option here nor an answer."""
    classes = [cls for group in sections.values() for cls in group]
    own = {name for cls in classes for name in cls.model_fields}  # type: ignore[attr-defined]
    return ", ".join(sorted(key for key in {*asked} - own - NAMES.keys() if not named_elsewhere(key, classes)))


def test_every_option_of_trl_has_an_answer(sections: dict[str, list[type]]) -> None:
    trl = pytest.importorskip("trl")
    asked = {field.name for name in CONFIGS for field in fields(getattr(trl, name))}
    assert len(asked) > 200
    assert not lacking(asked, sections)


@pytest.mark.parametrize("keys", [VERL, UNLEARNING], ids=["verl", "unlearning"])
def test_every_key_of_other_software_has_an_answer(sections: dict[str, list[type]], keys: str) -> None:
    assert not lacking(keys.split(), sections)


def test_no_answer_says_that_an_option_is_not_there(sections: dict[str, list[type]]) -> None:
    """What an installed component has is said from its options, as `belongs to`; advice that was written before hides that."""
    own = {name for cls in sections["algorithm"] for name in cls.model_fields}  # type: ignore[attr-defined]
    assert [key for key, advice in NAMES.items() if key in own and advice.startswith("leave it out")] == []
