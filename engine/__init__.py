"""A paged-attention LLM engine whose scheduler decides as vLLM V1 does; runs on a real model or a simulated device."""

from engine import compiled

compiled.use()
