"""Runs a scheduler against a device that exists only as bookkeeping, and checks every rule after every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_engine.core.kv_groups import KVGroup, KVMemory
from octavo_engine.core.request import Request, SamplingParams
from octavo_engine.core.scheduler import Scheduler, SchedulerLimits
from octavo_engine.core.step import RequestOutput, RowResult, StepPlan, StepResult


def make_scheduler(
    *,
    blocks: int = 64,
    block_size: int = 16,
    seqs: int = 8,
    tokens: int = 64,
    model_len: int | None = None,
    prefix: bool = True,
) -> Scheduler:
    """A scheduler over one KV group."""
    memory = KVMemory([KVGroup(blocks)], block_size, prefix_caching=prefix)
    return Scheduler(SchedulerLimits(seqs, tokens, model_len or blocks * block_size), memory)


def make_request(
    name: str, prompt: int | Sequence[int], max_tokens: int = 4, arrival: float = 0.0, **kwargs: object
) -> Request:
    """A request with a prompt of its own, or with the given tokens."""
    tokens = list(prompt) if not isinstance(prompt, int) else [(hash(name) + i) % 50_000 for i in range(prompt)]
    return Request(name, tokens, SamplingParams(max_tokens=max_tokens), arrival, **kwargs)  # type: ignore[arg-type]


def next_token(tokens: Sequence[int]) -> int:
    """What the pretended model says after `tokens`: a function of all of them."""
    value = 17
    for token in tokens:
        value = (value * 31 + token) % 49_999
    return value


@dataclass
class Device:
    """Keeps rows and cache contents as a worker would, and refuses what a worker could not compute rightly."""

    block_size: int
    rows: dict[int, list[int]] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)
    """What each slot holds: (position, hash of the tokens up to it)."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a plan; AssertionError if it reads what was never written or writes where another reads."""
        for new in plan.new_rows:
            self.rows[new.row], self.tables[new.row] = list(new.token_ids), []
        results = []
        written: set[int] = set()
        for row in plan.rows:
            self.tables[row.row] += row.new_blocks[0]
            tokens, table = self.rows[row.row], self.tables[row.row]
            for position in range(row.start, row.start + row.num_tokens):
                slot = table[position // self.block_size] * self.block_size + position % self.block_size
                assert slot not in written, "two tokens of one step write to one slot"
                written.add(slot)
                self.slots[slot] = (position, next_token(tokens[: position + 1]))
        for row in plan.rows:
            tokens, table = self.rows[row.row], self.tables[row.row]
            end = row.start + row.num_tokens
            for position in range(end):
                slot = table[position // self.block_size] * self.block_size + position % self.block_size
                expected = (position, next_token(tokens[: position + 1]))
                assert self.slots.get(slot) == expected, f"{row.request_id} reads what is not its own at {position}"
            if row.samples:
                token = next_token(tokens[:end])
                assert len(tokens) == end
                tokens.append(token)
                results.append(RowResult(row.request_id, (token,)))
        return StepResult(plan.step, tuple(results))


def run(
    scheduler: Scheduler,
    *,
    device: Device | None = None,
    ahead: int = 0,
    at_least: int = 0,
    most: int = 10_000,
    between: Callable[[int], None] | None = None,
) -> list[RequestOutput]:
    """Step until nothing is left to do, but `at_least` so often; all outputs. AssertionError if it takes too long.

    `ahead` plans are made before the oldest one's results are taken in, as with overlapping steps.
    """
    device = device or Device(scheduler.memory.block_size)
    outputs: list[RequestOutput] = []
    launched: deque[tuple[StepPlan, StepResult]] = deque()
    for step in range(most):
        if between is not None:
            between(step)
        plan = scheduler.plan(float(step))
        if plan is not None:
            check_plan(scheduler, plan)
            launched.append((plan, device.execute(plan)))
        if launched and (plan is None or len(launched) > ahead):
            outputs += scheduler.update(*launched.popleft())
            scheduler.check_integrity()
        elif plan is None and not scheduler.has_work and step >= at_least:
            return outputs
    raise AssertionError(f"still working after {most} steps")


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """The bounds that hold for every plan."""
    assert plan.num_tokens <= scheduler.limits.max_num_batched_tokens
    assert len(plan.rows) <= scheduler.limits.max_num_seqs
    assert len({row.row for row in plan.rows}) == len(plan.rows)
    assert all(row.num_tokens > 0 for row in plan.rows)


def answer_of(outputs: Sequence[RequestOutput], name: str) -> list[int]:
    """All tokens a request was given."""
    return [token for output in outputs if output.request_id == name for token in output.token_ids]


def expected_answer(request_tokens: Sequence[int], max_tokens: int) -> list[int]:
    """What the pretended model says to a prompt when nobody else is there."""
    tokens = list(request_tokens)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(request_tokens) :]
