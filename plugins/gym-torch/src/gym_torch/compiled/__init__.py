"""Decoder layers as compiled code: made once, kept between runs, and used where it is of the layer that is there."""
