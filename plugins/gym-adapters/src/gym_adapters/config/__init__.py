"""What a recipe may say of each adapter. Nothing here imports torch or peft: that happens when one is built."""
