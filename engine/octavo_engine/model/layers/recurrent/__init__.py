"""Mixers that keep a state of fixed size for each sequence: state space models, linear attention, convolutions."""
