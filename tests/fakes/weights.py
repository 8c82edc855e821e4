"""A file of weights without a tensor, as safetensors writes it."""

NO_TENSORS = (2).to_bytes(8, "little") + b"{}"
