"""How linear layers' weights are stored and multiplied with: one file a scheme."""
