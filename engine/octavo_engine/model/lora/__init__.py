"""LoRA adapters: checks and reads PEFT's directories, and computes many adapters in one batch with the base model."""
