"""The model: loading, layouts, adapters, hidden states, log-probabilities and heads."""
