"""`gym predict`: answers to rows whose answers are known, and how alike the two are."""
