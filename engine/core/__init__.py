"""Control plane: which request computes how many tokens in a step, and where their KV lives. No torch, no clock."""
