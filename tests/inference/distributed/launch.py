"""Several processes as torchrun would launch them, forked: everything is imported already."""

import multiprocessing
import os
import socket
import sys
from contextlib import suppress

import torch


def launch(function, size, *args, **options):
    """Call a function in each process; its results, or its errors as text, by rank."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = context.Event()
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=_run, args=(rank, size, port, pipes[rank][1], done, function, args, options))
        for rank in range(size)
    ]
    for process, (_, end) in zip(processes, pipes, strict=True):
        process.start()
        end.close()
    results = []
    for end, _ in pipes:
        result = None
        with suppress(EOFError):
            if end.poll(120):
                result = end.recv()
        results.append(result)
    done.set()
    for process in processes:
        process.join(20)
        if process.is_alive():
            process.kill()
    return results


def _run(rank, size, port, pipe, done, function, args, options):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    torch.set_num_threads(1)
    try:
        pipe.send(function(*args, **options))
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
    done.wait(2.0)  # the first process is the meeting place of all: the others may not have come that far yet
    os._exit(0)
