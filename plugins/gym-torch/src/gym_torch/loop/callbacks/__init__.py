"""What watches every run: progress on the screen, metrics and plots on disk, a model card."""
