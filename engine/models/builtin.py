"""Built-in models: small geometries with seeded weights, so that everything runs without a download. No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from engine.model_spec import ModelSpec, RopeSpec

BUILTIN_SPECS: Mapping[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec(
            name="tiny",
            family="llama",
            num_layers=2,
            hidden_size=128,
            intermediate_size=352,
            num_heads=4,
            num_kv_heads=2,
            head_dim=32,
            max_position=2048,
            dtype="float32",
            vocab_size=512,
            bos_token_id=256,
            eos_token_ids=(257,),
        ),
        ModelSpec(
            name="tiny-qwen2",
            family="qwen2",
            num_layers=2,
            hidden_size=96,
            intermediate_size=256,
            num_heads=6,
            num_kv_heads=2,
            head_dim=16,
            max_position=2048,
            qkv_bias=True,
            rope=RopeSpec(theta=1_000_000.0),
            dtype="float32",
            vocab_size=512,
            bos_token_id=256,
            eos_token_ids=(257,),
        ),
        ModelSpec(
            name="tiny-qwen3",
            family="qwen3",
            num_layers=2,
            hidden_size=96,
            intermediate_size=256,
            num_heads=4,
            num_kv_heads=1,
            head_dim=32,
            max_position=2048,
            qk_norm=True,
            tie_word_embeddings=True,
            rope=RopeSpec(theta=1_000_000.0),
            dtype="float32",
            vocab_size=512,
            bos_token_id=256,
            eos_token_ids=(257,),
        ),
        ModelSpec(
            name="small",
            family="llama",
            num_layers=8,
            hidden_size=256,
            intermediate_size=704,
            num_heads=8,
            num_kv_heads=4,
            head_dim=32,
            max_position=4096,
            dtype="float32",
            vocab_size=512,
            bos_token_id=256,
            eos_token_ids=(257,),
        ),
    )
}
"""Name -> geometry. `tiny` for tests and demonstrations, `tiny-qwen*` for the family's other features, `small` for
timings with some weight to them."""
