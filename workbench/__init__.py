"""Choose and verify an LLM server's parameters before (and after) the GPU is there."""
