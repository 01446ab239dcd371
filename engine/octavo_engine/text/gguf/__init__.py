"""The tokenizer that a GGUF file's metadata describes: a module for each kind of vocabulary."""
