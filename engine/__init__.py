"""engine: serve Qwen3.5/3.6 models (dense and MoE, NVFP4 and FP8). Importing this package imports nothing else."""
