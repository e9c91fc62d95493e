"""Files of LLaMA-Factory's second version, which have `train_dataset`: other names, rows and defaults."""
