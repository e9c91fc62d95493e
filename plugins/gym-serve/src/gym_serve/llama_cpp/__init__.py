"""The engine `llama_cpp`: GGUF files, computed by llama.cpp."""
