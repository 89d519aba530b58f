"""Work on ranges of files in several threads: results in order, a few under way at a time, so memory stays constant.

The threads really run at once: the codec, the check sums and positioned reads and writes all release the interpreter.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
UNDER_WAY = 2  # jobs a thread: one runs, one waits


def in_order(jobs: Iterator[Callable[[], T]], threads: int) -> Iterator[T]:
    """The results of all jobs, in their order. The first error ends it; jobs that have not begun are dropped."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(job))
                if len(waiting) > UNDER_WAY * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for left in waiting:
                left.cancel()


def read_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fills `buffer` from `offset`; returns how many bytes there were."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], offset + done)
        if not count:
            break
        done += count
    return done


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """All of `data` at `offset`."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
