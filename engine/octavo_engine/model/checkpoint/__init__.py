"""A checkpoint's tensors: their names, what layers say of them, and safetensors files."""
