"""Models whose frozen weights are in nf4 (QLoRA, arXiv 2305.14314): loading, reading back, exporting.

- `weights` loads a model in nf4 with bitsandbytes, and reads its weights back in 16 or 32 bits.
- `checkpoint` reads the adapters that a training saved.
- `export` is `rag-r1 model export-nf4`: it writes adapters and dequantised weights, or both merged.
"""
