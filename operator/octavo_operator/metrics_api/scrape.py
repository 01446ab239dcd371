"""Asks a pod for its metrics, with limits of time and bytes, since the sender is not trusted."""

from __future__ import annotations

import asyncio

import aiohttp

from octavo_operator.metrics_api.collector import ScrapeError
from octavo_operator.metrics_api.load import Load, NoMetricsError, parse
from octavo_operator.metrics_api.pods import EnginePod
from octavo_operator.reconcile.polling.poll_pods import TooLongError, bounded_answer, why_unreachable

TIMEOUT_SECONDS = 2.0
AT_ONCE = 64
MOST_BYTES = 4 << 20


class Scraper:
    """Asks pods, a limited number at once. Ended by `close`."""

    def __init__(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=20)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def scrape(self, pod: EnginePod) -> Load:
        """Return the pod's load; ScrapeError says why there is none."""
        try:
            async with self._turns:
                status, data = await bounded_answer(self._session, pod.url, MOST_BYTES)
            if status != 200:
                raise ScrapeError(f"its /metrics answers {status}")
            return parse(data.decode(errors="replace"))
        except TimeoutError:
            raise ScrapeError(f"its /metrics does not answer within {TIMEOUT_SECONDS:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ScrapeError(f"its /metrics cannot be reached: {why_unreachable(error)}") from None
        except NoMetricsError as error:
            raise ScrapeError(str(error)) from None
        except TooLongError:
            raise ScrapeError(f"its /metrics is larger than {MOST_BYTES >> 20} MiB") from None
