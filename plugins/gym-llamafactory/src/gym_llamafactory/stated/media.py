"""Keys about images, video and audio beyond what is read of them."""

from __future__ import annotations

from gym_llamafactory.stated.entry import OFF, Stated, refused

_WHY, _FIX = "is about video or audio, or cuts images up, which is not done yet", "leave it out"
_STAYS = "the language model trains, and other parts stay as they are"
MEDIA: dict[str, Stated] = {
    **refused(
        (None,),
        _WHY,
        _FIX,
        ("video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen"),
    ),
    **refused(OFF, _WHY, _FIX, ("image_do_pan_and_scan", "crop_to_patches", "use_audio_in_video")),
    **refused(OFF, _STAYS, _FIX, ("freeze_language_model",)),
    **refused((True, None), _STAYS, _FIX, ("freeze_vision_tower", "freeze_multi_modal_projector")),
}
