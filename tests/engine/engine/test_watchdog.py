"""The watchdog, which the server's loop writes and the thread that answers probes reads."""

from __future__ import annotations

from octavo_engine.engine.watchdog import Watchdog


def test_an_answer_that_comes_while_another_thread_reads_the_silence_ends_it() -> None:
    def clock() -> float:
        watchdog.answer(1)
        return 5.0

    watchdog = Watchdog(30.0, clock)
    assert watchdog.next_ping() == 1
    assert watchdog.silence == 0.0
