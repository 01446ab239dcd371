"""AutoRound (arXiv 2309.05516), which publishes its weights in the tensors of GPTQ or of AWQ.

`packing_format` (in older configurations `backend`) says in which, and whether GPTQ's zeros are stored less one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.awq import awq_method
from octavo_engine.model.quantization.expressions import expressions
from octavo_engine.model.quantization.gptq import gptq_method
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.module_rules import Quantization, Rule
from octavo_engine.model.quantization.scheme import Scheme, unsupported
from octavo_engine.model.quantization.unquantized import UNQUANTIZED

_NAME = re.compile(r"[\w.-]+")
_UNQUANTIZED_BITS = 16
_DEFAULT = "auto_round:auto_gptq"
_PACKINGS: dict[str, tuple[Callable[[Fields], LinearMethod], str]] = {
    **dict.fromkeys(("auto", "auto_round:gptq", _DEFAULT), (gptq_method, "gptq")),
    **dict.fromkeys(("auto_round", "auto_round:gptqmodel"), (gptq_method, "gptq_v2")),
    **dict.fromkeys(("auto_round:awq", "auto_round:auto_awq"), (awq_method, "gemm")),
}
"""The reader of a module's values and the layout of its words, by `packing_format`."""


def _auto_round(config: Fields) -> Quantization:
    """Read AutoRound's configuration. `extra_config` has other values for modules, by name, by a part of names or by an
    expression for one; a full name counts first."""
    packing = config.text("packing_format", default=config.text("backend", default=_DEFAULT))
    kind = ":".join(packing.split(":")[:2])  # a third component names the kernel
    if kind not in _PACKINGS:
        raise unsupported(config, f"auto-round with packing_format {packing}; {', '.join(_PACKINGS)} are supported")
    read, layout = _PACKINGS[kind]
    config = replace(config, values={**config.values, "format": layout})
    extra = config.mapping("extra_config") or replace(config, values={})
    methods = {name: _method(_changed(config, extra, name), read) for name in extra.values}
    texts = [name for name in methods if not _NAME.fullmatch(name)]
    patterns = expressions(config, (f".*(?:{text})" for text in texts))
    plain = [(methods[name], frozenset((name,))) for name in methods if _NAME.fullmatch(name)]
    rules = [Rule(method=method, names=name) for method, name in plain]
    rules += [Rule(method=method, parts=name) for method, name in plain]
    rules += [Rule(method=methods[text], patterns=(pattern,)) for text, pattern in zip(texts, patterns, strict=True)]
    of_head = [method for method, names in plain if any(name.endswith("lm_head") for name in names)]
    of_head += [methods[text] for text, pattern in zip(texts, patterns, strict=True) if pattern.match("lm_head")]
    head = any(method is not UNQUANTIZED for method in of_head)
    return Quantization(_method(config, read), tuple(rules), head=head)


def _changed(config: Fields, extra: Fields, name: str) -> Fields:
    """Return the configuration of modules of this name, which has other values for them."""
    own = extra.mapping(name)
    values = {} if own is None else {key: value for key, value in own.values.items() if value is not None}
    return replace(config, values={**config.values, **values})


def _method(config: Fields, read: Callable[[Fields], LinearMethod]) -> LinearMethod:
    """Return the method of one module by its values in the configuration."""
    if config.integer("bits", 0, 64) >= _UNQUANTIZED_BITS:
        return UNQUANTIZED
    if (kind := config.text("data_type", default="int")) != "int":
        raise unsupported(config, f"auto-round with data_type {kind}; int is supported")
    if config.integer("act_bits", 0, 64, default=_UNQUANTIZED_BITS) < _UNQUANTIZED_BITS:
        raise unsupported(config, "auto-round with quantized activations (act_bits)")
    for field in ("rotation_config", "spinquant_config"):  # activations have to be rotated in each step, too
        if config.values.get(field):
            raise unsupported(config, f"auto-round with {field}")
    return read(config)


SCHEME = Scheme(
    name="auto-round",
    readers={"auto-round": _auto_round, "intel/auto-round": _auto_round},
    online=None,
    supported="auto-round in the packing of gptq or awq",
)
