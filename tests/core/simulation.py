"""Runs a scheduler with a simulated device, which records what blocks hold, and checks every rule after every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.request import Request
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.core.step import BlockOpKind, RequestOutput, StepOutputs, StepPlan, StepResult
from octavo_engine.core.step_cost import StepCost
from octavo_engine.sampling_params import SamplingParams


def make_scheduler(
    *,
    blocks: int = 64,
    block_size: int = 16,
    seqs: int = 8,
    tokens: int = 64,
    model_len: int | None = None,
    prefix: bool = True,
    groups: Sequence[KVGroup] | None = None,
    eviction: str = "lru",
    ttl: float | None = None,
    swap_blocks: int = 0,
    **rules: object,
) -> Scheduler:
    """A scheduler over one KV group, or over `groups`; `rules` are fields of SchedulerSettings."""
    memory = KVMemory(
        [replace(group, swap_blocks=swap_blocks) for group in groups or [KVGroup(blocks)]],
        block_size,
        prefix_caching=prefix,
        eviction=eviction,
        ttl=ttl,
        max_chunk=tokens,
    )
    settings = SchedulerSettings(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=model_len or blocks * block_size,
        **rules,  # type: ignore[arg-type]
    )
    return Scheduler(settings, memory)


class FixedCost(StepCost):
    """A cost of steps that does not learn how much context one may read."""

    def observe(self, prompt_tokens: int, seconds: float, decodes: int = 0, context: int = 0) -> None:
        super().observe(prompt_tokens, seconds, decodes)


def limit_context(scheduler: Scheduler, context: float) -> None:
    """Let the decodes of each step read `context` tokens, and its chunks as many."""
    scheduler.planner.cost = FixedCost(context_limit=context)


def make_engine(**rules: object) -> tuple[Scheduler, Device]:
    """A scheduler with the device of its groups."""
    scheduler = make_scheduler(**rules)  # type: ignore[arg-type]
    groups = rules.get("groups") or (KVGroup(0),)
    return scheduler, Device(scheduler.memory.block_size, groups)  # type: ignore[arg-type]


def make_request(
    name: str,
    prompt: int | Sequence[int],
    max_tokens: int = 4,
    *,
    seed: int | None = None,
    stop: tuple[int, ...] = (),
    **kwargs: object,
) -> Request:
    """A request with a prompt of its own, or with the given tokens."""
    first = crc32(name.encode())
    tokens = [(first + i) % 50_000 for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
    sampling = SamplingParams(max_tokens=max_tokens, seed=seed, stop_token_ids=stop)
    return Request(request_id=name, prompt_token_ids=tuple(tokens), sampling=sampling, **kwargs)  # type: ignore[arg-type]


def make_state(
    name: str, prompt: int | Sequence[int], max_tokens: int = 4, *, arrival: float = 0.0, **kwargs: object
) -> RequestState:
    """The scheduler's state of such a request, without a scheduler."""
    request = make_request(name, prompt, max_tokens, **kwargs)  # type: ignore[arg-type]
    return RequestState(request, arrival, len(request.prompt_token_ids) + max_tokens)


def add(
    scheduler: Scheduler,
    name: str,
    prompt: int | Sequence[int],
    max_tokens: int = 4,
    *,
    arrival: float = 0.0,
    **kwargs: object,
) -> RequestState:
    """Let such a request wait in a scheduler."""
    return scheduler.add(make_request(name, prompt, max_tokens, **kwargs), arrival)  # type: ignore[arg-type]


def extend_digest(digest: int, token: int) -> int:
    """Return the pretended model's digest of a sequence after one more token."""
    return (digest * 31 + token + 1) % 2_147_483_647


def digest_of(tokens: Sequence[int]) -> int:
    """Return the pretended model's digest of a whole sequence."""
    digest = 17
    for token in tokens:
        digest = extend_digest(digest, token)
    return digest


def next_token(digest: int, seed: int | None) -> int:
    """Return the pretended model's next token: a function of all tokens and of the seed, so that forks diverge."""
    return (digest + 7_919 * (seed or 0)) % 49_999


@dataclass
class Row:
    """A row of the state table."""

    request_id: str
    tokens: list[int]
    digests: list[int]
    """After each of its tokens."""
    tables: list[list[int]]
    seed: int | None
    owner: str
    """Whose keys and values these are: requests of different owners may say the same and still never share."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Put tokens behind the known ones."""
        for token in tokens:
            self.tokens.append(token)
            self.digests.append(extend_digest(self.digests[-1], token))

    def sample(self, drafts: Sequence[int]) -> list[int]:
        """Return the token that follows those before `drafts`, the row's last ones, and each draft that is right."""
        known = len(self.tokens) - len(drafts)
        del self.tokens[known:], self.digests[known:]
        sampled: list[int] = []
        for draft in (*drafts, None):
            sampled.append(next_token(self.digests[-1], self.seed))
            self.extend(sampled[-1:])
            if sampled[-1] != draft:
                break
        return sampled


class PretendedProposer:
    """Knows how each request goes on. It says so, or something else in one place, or nothing, by its number."""

    def __init__(self) -> None:
        self.texts: dict[str, list[int]] = {}
        """Prompt and answer of each request, on beyond where it stops."""

    def propose(self, request_id: str, token_ids: Sequence[int]) -> Sequence[int]:
        number, known = crc32(f"{request_id} {len(token_ids)}".encode()), len(token_ids)
        count, wrong = number % 6, number // 6 % 6
        right = self.texts[request_id][known : known + count]
        return [token + (place == wrong) for place, token in enumerate(right)]

    def remove(self, request_id: str) -> None:
        """Texts stay known: requests are run again."""


@dataclass
class Device:
    """Keeps rows and cache contents as a worker would, and refuses what a worker could not compute rightly."""

    block_size: int
    groups: Sequence[KVGroup] = (KVGroup(0),)
    owners: dict[str, str] = field(default_factory=dict)
    """Request id -> all that separates it from others in the prefix cache."""
    rows: dict[int, Row] = field(default_factory=dict)
    blocks: dict[tuple[int, int], dict[int, object]] = field(default_factory=dict)
    """(group, block) -> offset -> (position, digest, owner); a recurrent state: offset 0 -> (tokens, digest, owner)."""
    swapped: dict[tuple[int, int], dict[int, object]] = field(default_factory=dict)

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a plan; AssertionError if it reads what was never written or writes where another reads."""
        self._apply(plan)
        drafts = {plan.decode_rows[index]: tokens for index, tokens in plan.drafts.items()}
        for index, tokens in drafts.items():
            self.rows[index].extend(tokens)
        work = [
            (row, start, 1 + len(drafts.get(row, ())))
            for row, start in zip(plan.decode_rows, plan.decode_starts, strict=True)
        ]
        sampling = list(plan.decode_rows)
        for chunk in plan.chunks:
            work.append((chunk.row, chunk.start, chunk.num_tokens))
            if chunk.samples:
                sampling.append(chunk.row)
        written: set[tuple[int, int, int]] = set()
        for index, start, count in work:
            assert start + count <= len(self.rows[index].tokens), "a token is computed that is not known yet"
            for position in range(start, start + count):
                self._write(self.rows[index], position, written)
        for index, start, count in work:
            self._read(self.rows[index], start, start + count)
        results = [self.rows[index].sample(drafts.get(index, ())) for index in sampling]
        more = {index: tuple(tokens[1:]) for index, tokens in enumerate(results) if len(tokens) > 1}
        return StepResult(plan.step, [tokens[0] for tokens in results], more, seconds=0.01)

    def _apply(self, plan: StepPlan) -> None:
        for new in plan.new_rows:
            digests, digest = [], 17
            for token in new.token_ids:
                digest = extend_digest(digest, token)
                digests.append(digest)
            owner = self.owners.get(new.request_id, "")
            tables: list[list[int]] = [[] for _ in self.groups]
            self.rows[new.row] = Row(new.request_id, list(new.token_ids), digests, tables, new.sampling.seed, owner)
        for change in plan.table_changes:
            table = self.rows[change.row].tables[change.group]
            table += [-1] * (change.index - len(table))
            table[change.index :] = change.blocks
        for op in plan.block_ops:
            source, target = (op.group, op.source), (op.group, op.target)
            if op.kind is BlockOpKind.COPY:
                self.blocks[target] = dict(self.blocks[source])
            elif op.kind is BlockOpKind.SWAP_OUT:
                self.swapped[target] = dict(self.blocks[source])
            else:
                self.blocks[target] = dict(self.swapped[source])

    def _write(self, row: Row, position: int, written: set[tuple[int, int, int]]) -> None:
        for index, group in enumerate(self.groups):
            if group.kind == "recurrent":
                self._advance(row, position, index)
                continue
            block, offset = row.tables[index][position // self.block_size], position % self.block_size
            assert block >= 0, f"{row.request_id} writes into a block that was given back"
            assert (index, block, offset) not in written, "two tokens of one step write to one slot"
            written.add((index, block, offset))
            self.blocks.setdefault((index, block), {})[offset] = (position, row.digests[position], row.owner)

    def _advance(self, row: Row, position: int, index: int) -> None:
        block = row.tables[index][0]
        expected = (position, row.digests[position - 1], row.owner) if position else None
        state = self.blocks.get((index, block), {}).get(0) if position else None
        assert state == expected, f"{row.request_id} goes on from a state that is not its own at {position}"
        self.blocks[index, block] = {0: (position + 1, row.digests[position], row.owner)}

    def _read(self, row: Row, start: int, end: int) -> None:
        """All that the tokens at `start` to `end` see, each place once: what must stand there is the same for all."""
        for index, group in enumerate(self.groups):
            if group.kind == "recurrent":
                continue
            table, digests, owner = row.tables[index], row.digests, row.owner
            for seen in range(max(0, start - group.window + 1) if group.window else 0, end):
                content = self.blocks[index, table[seen // self.block_size]].get(seen % self.block_size)
                assert content == (seen, digests[seen], owner), f"{row.request_id} reads what is not its own at {seen}"


def news(outputs: StepOutputs) -> list[RequestOutput]:
    """All news of a step, one by one."""
    plain = zip(outputs.request_ids, outputs.token_ids, strict=True)
    return [RequestOutput(request_id, (token,)) for request_id, token in plain] + outputs.events


def step(scheduler: Scheduler, device: Device, now: float = 0.0) -> tuple[StepPlan, list[RequestOutput]]:
    """One step, its results taken in at once. There must be something to compute."""
    plan = scheduler.schedule(now)
    assert plan is not None
    check_plan(scheduler, plan)
    outputs = news(scheduler.update(plan, device.execute(plan), now))
    scheduler.check_integrity()
    return plan, outputs


def run_steps(scheduler: Scheduler, device: Device, steps: int, *, seconds: float = 0.1) -> None:
    """Run this many steps from time 0 on, each `seconds` after the one before. None may be empty."""
    for number in range(steps):
        step(scheduler, device, number * seconds)


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
        plan = scheduler.schedule(float(step))
        if plan is not None:
            check_plan(scheduler, plan)
            launched.append((plan, device.execute(plan)))
        if launched and (plan is None or len(launched) > ahead):
            outputs += news(scheduler.update(*launched.popleft(), float(step)))
            scheduler.check_integrity()
        elif plan is None and not scheduler.has_work and step >= at_least:
            return outputs
    raise AssertionError(f"still working after {most} steps")


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """The bounds that hold for every plan."""
    assert 0 < plan.num_tokens <= scheduler.settings.max_num_batched_tokens
    rows = [*plan.decode_rows, *(chunk.row for chunk in plan.chunks)]
    assert len(rows) <= scheduler.settings.max_num_seqs
    assert len(set(rows)) == len(rows)
    assert all(chunk.num_tokens > 0 for chunk in plan.chunks)
    named = {*rows, *(new.row for new in plan.new_rows), *(change.row for change in plan.table_changes)}
    assert named <= {request.row for request in scheduler.running}, "a plan names a row that no running request has"


def answer_of(outputs: Sequence[RequestOutput], name: str) -> list[int]:
    """All tokens a request was given."""
    return [token for output in outputs if output.request_id == name for token in output.token_ids]


def expected_answer(request_tokens: Sequence[int], max_tokens: int, seed: int | None = None) -> list[int]:
    """Return the pretended model's answer to a prompt alone."""
    answer, digest = [], digest_of(request_tokens)
    for _ in range(max_tokens):
        answer.append(next_token(digest, seed))
        digest = extend_digest(digest, answer[-1])
    return answer


def expected(state: RequestState) -> list[int]:
    """The full answer to a request that runs alone."""
    request = state.request
    return expected_answer(request.prompt_token_ids, request.sampling.max_tokens, request.sampling.seed)
