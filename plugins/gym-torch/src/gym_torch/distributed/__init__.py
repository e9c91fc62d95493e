"""The processes of a run: how a model is spread over them, how they agree, and how the run ends when one is lost."""
