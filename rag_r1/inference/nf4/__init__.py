"""Models whose frozen weights are in nf4 (QLoRA, arXiv 2305.14314): loaded, read back, exported.

- `weights`     loads a model in nf4 with bitsandbytes, and reads its weights as numbers of 16 or 32 bits
- `checkpoint`  reads the adapters that a training has saved
- `export`      `rag-r1 model export-nf4`: writes adapters and dequantised weights, or both in one model
"""
