"""The quantization schemes: the name of each and its file beside this one.

No scheme is imported here, so that the command line and the HTTP process know the names without importing torch.
"""

ONLINE_SCHEMES = ("fp8", "int8", "int4")
"""Names that --quantization takes: these can quantize while weights are loaded."""
SCHEMES = (
    *ONLINE_SCHEMES,
    "gptq",
    "awq",
    "auto_round",
    "pack_quantized",
    "int_quantized",
    "bitsandbytes",
    "fp4",
    "mxfp8",
    "modelopt",
    "torchao",
)
"""The schemes in which checkpoints are read; `<name>.py` has the scheme as `SCHEME`."""
GGUF = "gguf"
"""A further value of --quantization for GGUF files: their blocks stay quantized in memory."""
