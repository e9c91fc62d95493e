"""Conversations as text: chat templates, run where they can do no harm, and what of the text is trained on."""
