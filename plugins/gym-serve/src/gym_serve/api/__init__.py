"""The HTTP API: what clients of OpenAI and of Anthropic speak."""
