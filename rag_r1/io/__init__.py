"""Files and foreign texts: atomic writes, and JSON, YAML and HTTP read within limits, with retries."""
