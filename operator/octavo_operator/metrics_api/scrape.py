"""Asks a pod for its metrics, with limits of time and bytes, since the sender is not trusted."""

from __future__ import annotations

import asyncio

import aiohttp

from octavo_operator.metrics_api.collector import ScrapeError
from octavo_operator.metrics_api.load import Load, NoMetricsError, parse
from octavo_operator.metrics_api.pods import EnginePod

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
            async with self._turns, self._session.get(pod.url, allow_redirects=False) as response:
                if response.status != 200:
                    raise ScrapeError(f"its /metrics answers {response.status}")
                return parse(await _text(response))
        except TimeoutError:
            raise ScrapeError(f"its /metrics does not answer within {TIMEOUT_SECONDS:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            why = getattr(error, "strerror", None) or error or type(error).__name__
            raise ScrapeError(f"its /metrics cannot be reached: {why}") from None
        except NoMetricsError as error:
            raise ScrapeError(str(error)) from None


async def _text(response: aiohttp.ClientResponse) -> str:
    data = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        data += chunk
        if len(data) > MOST_BYTES:
            raise NoMetricsError(f"its /metrics is larger than {MOST_BYTES >> 20} MiB")
    return data.decode(errors="replace")
