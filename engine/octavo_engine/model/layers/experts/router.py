"""Chooses each token's experts, and their weights, from the router's logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo_engine.model.spec import ExpertGroups, RouterSpec


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(dim=-1)


def _root_of_softplus(logits: Tensor) -> Tensor:
    return torch.nn.functional.softplus(logits).sqrt()


_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": _softmax,
    "sigmoid": torch.sigmoid,
    "root of softplus": _root_of_softplus,
}


def choose(
    logits: Tensor, router: RouterSpec, top_k: int, correction: Tensor | None, given: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return each token's chosen experts, int64, and their weights, float32; both [T, top_k].

    `logits` are [T, E]; `correction` [E], float32, is added for the choice alone: to scores, or to logits where only
    the chosen ones are scored. `given`: the choice, where a table makes it.
    """
    if router.softcap is not None:
        logits = torch.tanh(logits.float() / router.softcap) * router.softcap
    if router.scores == "sparsemixer":
        return _sparsemixer(logits.float(), router.jitter)
    if router.scores in ("softmax of chosen", "sigmoid of chosen"):
        ranked = logits if correction is None else logits.float() + correction
        chosen = ranked.topk(top_k, dim=-1).indices
        highest = logits.gather(-1, chosen).float()
        weights = highest.softmax(dim=-1) if router.scores == "softmax of chosen" else highest.sigmoid()
    else:
        scores = _SCORES[router.scores](logits.float())
        ranked = scores if correction is None else scores + correction
        if router.groups is not None:
            ranked = _best_groups(ranked, router.groups)
        chosen = ranked.topk(top_k, dim=-1).indices if given is None else given
        weights = scores.gather(-1, chosen)
    if router.renormalize:
        total = weights.sum(dim=-1, keepdim=True)
        weights = weights / (total.clamp(min=router.sum_floor) + router.sum_offset)
    return chosen, weights if router.scale == 1 else weights * router.scale


def _best_groups(scores: Tensor, groups: ExpertGroups) -> Tensor:
    """Return `scores` [T, E] with `groups.dropped` in all groups of experts but the best."""
    grouped = scores.view(len(scores), groups.count, -1)
    best = grouped.topk(groups.best, dim=-1).values.sum(dim=-1).topk(groups.kept, dim=-1).indices
    dropped = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, value=False)
    return grouped.masked_fill(dropped[..., None], groups.dropped).flatten(-2)


def _sparsemixer(scores: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """Return two experts for each token, chosen one after the other (arXiv 2409.12136, as its reference code infers).

    A weight is the softmax over those that are close to the best one of their round.
    """
    chosen, weights, left = [], [], scores
    for _ in range(2):
        best, expert = left.max(dim=-1, keepdim=True)
        far = (best - scores) / scores.abs().clamp(min=best) > 2 * jitter
        weights.append(left.masked_fill(far, -torch.inf).softmax(dim=-1).gather(-1, expert))
        chosen.append(expert)
        left = left.scatter(-1, expert, -torch.inf)
    return torch.cat(chosen, dim=-1), torch.cat(weights, dim=-1)
