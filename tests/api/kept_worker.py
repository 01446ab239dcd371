"""A text worker that is kept for the next server of the tests, since each new one takes long to load its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from octavo_engine.server.preparation.prepared import Setup
from octavo_engine.server.preparation.text_pool import Worker


class KeptWorker(Worker):
    """The real worker process. It outlives its server unless it has a task at that moment."""

    idle: ClassVar[list[KeptWorker]] = []

    def __init__(self, program: Sequence[str], setup: Setup) -> None:
        self._key = tuple(program), setup
        self._busy = True
        idle = next((worker for worker in self.idle if worker._key == self._key), None)
        self._reused = idle is not None
        if idle is None:
            super().__init__(program, setup)
        else:
            self.idle.remove(idle)
            self._socket, self._process, self._setup = idle._socket, idle._process, idle._setup

    async def start(self) -> None:
        if not self._reused:
            await super().start()
        self._busy = False

    async def run(self, task: bytes) -> bytes:
        self._busy = True
        result = await super().run(task)
        self._busy = False
        return result

    def close(self) -> None:
        if self._busy:
            self.kill()
        else:
            self.idle.append(self)

    @classmethod
    def end_all(cls) -> None:
        while cls.idle:
            cls.idle.pop().kill()
