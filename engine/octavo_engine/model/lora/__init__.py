"""LoRA adapters: PEFT directories are checked and read, and many of them computed in one batch beside the base."""
