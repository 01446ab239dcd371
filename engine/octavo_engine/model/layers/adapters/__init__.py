"""LoRA adapters beside the weights of linear layers, experts and latent attention."""
