"""Keys about images, video and audio, which are not read yet."""

from __future__ import annotations

from gym_llamafactory.stated.entry import OFF, Stated, refused

_WHY, _FIX = "is about images, video or audio, which are not read yet", "name a model and a dataset of text"
MEDIA: dict[str, Stated] = {
    **refused(
        (None,),
        _WHY,
        _FIX,
        ("image_max_pixels", "image_min_pixels", "video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen"),
    ),
    **refused(
        OFF, _WHY, _FIX, ("freeze_language_model", "image_do_pan_and_scan", "crop_to_patches", "use_audio_in_video")
    ),
}
