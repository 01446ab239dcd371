"""The spec of rotary position embedding (RoPE): the rotation of query and key by their position."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (arXiv 2104.09864): how fast each pair of dimensions rotates."""

    theta: float
    kind: str = "default"
    """`default`, `linear` (all pairs `factor` slower), `llama3` and `yarn` (slow pairs are slower), `factors` (one
    divisor for each pair), `longrope` (`factors` for short contexts, `long_factors` for long ones; arXiv 2402.13753),
    `proportional` (the first `proportion` of a whole head's pairs, `factor` slower; the others do not rotate).
    """
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    factors: tuple[float, ...] = ()
    """Divisors of the rotary_dim / 2 frequencies, as a GGUF file's `rope_freqs.weight` gives them."""
    beta_fast: float = 32.0
    """YaRN's: pairs that rotate more often than this within `original_max_position` stay as they are."""
    beta_slow: float = 1.0
    """YaRN's: pairs that rotate less often than this are slower by `factor`."""
    truncate: bool = True
    """YaRN's: whether the range between `beta_fast` and `beta_slow` is widened to whole pairs."""
    attention_factor: float = 1.0
    """Cosines and sines are multiplied with it."""
    long_factors: tuple[float, ...] = ()
    """The divisors for sequences that are longer than `original_max_position`."""
    long_attention_factor: float = 1.0
    """The attention factor of those sequences."""
    recomputed: bool = False
    """Whether a sequence that outgrows `original_max_position` while it is generated is recomputed with the long
    factors (Phi-3); otherwise only its further tokens use them."""
    rotary_dim: int | None = None
    """Only the first so many dimensions of a head are rotated; None: all. An odd number is rounded up to whole pairs,
    whose frequencies are those of the odd number."""
    proportion: float = 1.0
    backwards: bool = False
    """Whether pairs rotate by negative angles (NanoChat)."""
    learnt: bool = False
    """Whether frequencies are multiplied with the exponentials of numbers in the checkpoint (Mistral Large 4)."""
    rows: int = 0
    """The number of positions of the table that a checkpoint may hold in place of computed sines and cosines
    (RoFormer); 0: none."""
    interleaved: bool = False
    """Whether checkpoints hold the rows of query and key so that the two dimensions of a pair are neighbours. They are
    permuted while they are loaded: what is computed has dimensions i and i + rotary_dim / 2 as a pair."""
