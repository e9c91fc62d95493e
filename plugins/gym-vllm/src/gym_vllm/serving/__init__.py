"""The engine `vllm` of `gym chat`, `gym api` and `gym inference`: a vLLM server answers."""
