"""The tensor names of Hy4's checkpoints: transformers' names of modules, and the endings that differ in files."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames

_EXPERTS = "model.layers.{layer}.mlp.experts"
NAMES = TensorNames(
    expert_gate=f"{_EXPERTS}.gate_up_proj", expert_up=f"{_EXPERTS}.gate_up_proj", expert_down=f"{_EXPERTS}.down_proj"
)
ENDINGS = (
    (".learnable_sink_param", ".sinks"),
    (".linear_gate.weight", ".gate_proj.weight"),
    *((f".hc_head_{each}", f".hc_{each}") for each in ("fn", "base", "scale")),
    *((f".hc_head.hc_pre.hc_{each}", f".hc_head.hc_{each}") for each in ("fn", "base", "scale")),
    *(
        (f".hc_pre.hc_{there}_layer.hc_{each}", f".{here}_hc.{each}")
        for there, here in (("attn", "attn"), ("mlp", "ffn"))
        for each in ("fn", "base", "scale")
    ),
)
"""Endings in published files and in those that transformers 5 writes, with the endings of its modules' names."""
