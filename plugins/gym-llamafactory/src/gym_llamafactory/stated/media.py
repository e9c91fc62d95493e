"""Keys about images, video and audio beyond what is read of them."""

from __future__ import annotations

from gym_dialect.stated import OFF, Stated, refused, unread

_CUT, _FIX = "would cut images up, which is not done here", "leave it out"
_VIDEO = "no video or audio is read: rows that have any are left out, and counted"
MEDIA: dict[str, Stated] = {
    **unread(
        _VIDEO,
        (
            "video_max_pixels",
            "video_min_pixels",
            "video_fps",
            "video_maxlen",
            "use_audio_in_video",
            "audio_sampling_rate",
        ),
    ),
    **refused(OFF, _CUT, _FIX, ("image_do_pan_and_scan", "crop_to_patches")),
}
