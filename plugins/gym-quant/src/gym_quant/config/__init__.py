"""What a recipe may say of each quantizer. Nothing here imports torch: that happens when one is built."""
