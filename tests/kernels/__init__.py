"""Every Triton kernel against its reference: interpreted here, on hardware by `make gpu-check`; built for Hopper."""
