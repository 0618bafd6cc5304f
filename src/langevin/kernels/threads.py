"""A small pool of threads for kernels that release the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count

import torch

PIECE = 1 << 17  # weights: fewer do not pay for waking a thread


def each_piece(work: Callable[[int, int], None], size: int) -> None:
    """Call work(start, stop) for pieces that cover range(size), in as many threads as torch uses.

    The calling thread works too, and takes what the others have not begun: on a busy machine it waits for none of them.
    """
    if size <= PIECE:
        work(0, size)
        return
    pieces = -(-size // PIECE)
    threads = min(torch.get_num_threads(), pieces)
    bounds = [size * k // pieces for k in range(pieces + 1)]
    following = count()

    def some() -> None:
        while (k := next(following)) < pieces:
            work(bounds[k], bounds[k + 1])

    if threads == 1:
        some()
        return
    helpers = [_pool(os.getpid(), threads).submit(some) for _ in range(threads - 1)]
    try:
        some()
    finally:
        for helper in helpers:
            if not helper.cancel():
                helper.result()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """A pool per process: a forked process does not inherit its parent's threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="langevin-kernel")
