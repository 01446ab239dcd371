"""The configurations that test_families.py tests, in one module for each kind of layer."""

from family_cases import compressed, dense, experts, hybrid, latent, mamba, older
from family_cases.case import Case

_KINDS = (dense, experts, hybrid, latent, mamba, older, compressed)

CASES = {name: case for kind in _KINDS for name, case in kind.CASES.items()}

PUBLISHED = {name: published for kind in _KINDS for name, published in kind.PUBLISHED.items()}
"""Fields of published config.json files that matter, and the number of parameters that the model's page states."""

__all__ = ["CASES", "PUBLISHED", "Case"]
