"""The quantization schemes: the name of each and its file beside this one.

No scheme is imported here, so that the command line and the HTTP process know the names without importing torch.
"""

SCHEMES = ("fp8", "int8")
"""Names that --quantization takes. `<name>.py` has the scheme as `SCHEME`."""
