"""The engine `local`: models in this process, decoded by continuous batching."""
