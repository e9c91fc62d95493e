"""Keys about images, videos and sounds beyond what is read of them."""

from __future__ import annotations

from gym_dialect.stated import OFF, Stated, refused

_CUT, _FIX = "would cut images up, which is not done here", "leave it out"
_RATE = "is 16000, the rate of every model whose sounds are read"
MEDIA: dict[str, Stated] = {
    "audio_sampling_rate": Stated((16000, None), _RATE, _FIX),
    **refused(OFF, "would put the sound of a video beside it, which is not done here", _FIX, ("use_audio_in_video",)),
    **refused(OFF, _CUT, _FIX, ("image_do_pan_and_scan", "crop_to_patches")),
}
