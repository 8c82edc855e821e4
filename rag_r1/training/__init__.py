"""`rag-r1 train`, its preflight and its guard, and the commands `stages`, `recipes` and `doctor`."""
