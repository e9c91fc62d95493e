"""Text from a model: batched decoding that is equal to decoding one by one."""
