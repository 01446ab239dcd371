"""Describes in one line for the log what an engine did when it died: its steps under way, the scheduler's numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from octavo_engine.core.step import StepPlan
from octavo_engine.engine.scheduler_stats import SchedulerStats


def describe(launched: Iterable[StepPlan], stats: SchedulerStats) -> str:
    """Describe the steps under way, oldest first, and the scheduler's numbers, without any request's tokens or text."""
    steps = "; ".join(_plan(plan) for plan in launched) or "no step was under way"
    numbers = " ".join(f"{f.name}={getattr(stats, f.name)}" for f in fields(stats) if f.name != "step_seconds")
    return f"{steps}. Scheduler: {numbers}"


def _plan(plan: StepPlan) -> str:
    chunks = ", ".join(f"{c.num_tokens} tokens of row {c.row} from {c.start}" for c in plan.chunks[:8])
    more = f" and {len(plan.chunks) - 8} more" if len(plan.chunks) > 8 else ""
    new = ", ".join(f"{new.request_id} in row {new.row}" for new in plan.new_rows[:8])
    return (
        f"step {plan.step}: {plan.num_tokens} tokens, {len(plan.decode_rows)} decodes, {len(plan.chunks)} chunks"
        f"{f' ({chunks}{more})' if chunks else ''}, {len(plan.new_rows)} new rows{f' ({new})' if new else ''}, "
        f"{len(plan.table_changes)} table changes, {len(plan.block_ops)} block operations"
    )
