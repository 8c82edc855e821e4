"""Files and untrusted input: atomic writes, and JSON, YAML and HTTP that are read within limits."""
