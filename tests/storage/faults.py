"""Processes that are killed, for the tests of faults."""

import multiprocessing
import os
import sys
import time
from functools import partial

import torch

import langevin as lv
from langevin.storage import files
from tests.helpers import toy_data, toy_posterior

server = multiprocessing.get_context("fork")  # everything is imported already

OPTIONS = {"steps": 150, "burn_in": 12, "thin": 3, "chains": 2}
PHASES = ("start", "step", "samples", "checkpoint", "manifest")


def sampler(posterior=None, data=None, **options):
    return partial(lv.sample, posterior or toy_posterior(), data or toy_data(), partial(lv.SGHMC, lr=1e-3), **options)


def uninterrupted(mode):
    """The run that nothing happens to."""
    return sampler(mode=mode, progress=False, **OPTIONS)()


def watched(path, mode, saved, phase, resumed):
    """Sample or resume, slowly; `saved` and `phase` tell the parent how many samples are saved and what is going on."""
    _quiet()
    torch.set_num_threads(1)
    write = files.write

    def slowly(file, *rest):
        before = phase.value
        folder = file.parent.name
        phase.value = PHASES.index(
            "samples" if "chain-" in folder else "checkpoint" if folder == "checkpoints" else "manifest"
        )
        write(file, *rest)
        phase.value = before

    def tell(info):
        phase.value = PHASES.index("step")
        saved.value = info.saved
        time.sleep(0.001)

    def slow_disk(descriptor, fsync=os.fsync):
        time.sleep(0.002)
        fsync(descriptor)

    files.write, os.fsync = slowly, slow_disk
    options = {"callbacks": [tell], "progress": False, "checkpoint_steps": 5, "mode": mode}
    if resumed:
        del options["mode"]
        lv.resume(path, toy_posterior(), toy_data(), **options)
    else:
        sampler(out=path, **OPTIONS, **options)()


def child(path, function, *args, **options):
    """Run a function in a process of its own; its exit code, and its error as text."""
    process = server.Process(target=_told, args=(path, function, args, options))
    process.start()
    process.join(60)
    return process.exitcode, path.read_text() if path.exists() else ""


def _told(path, function, args, options):
    _quiet()
    torch.set_num_threads(1)
    try:
        function(*args, **options)
    except BaseException as error:
        path.write_text(f"{type(error).__name__}: {error}")
        raise


def self_killing(path, call, name):
    """Kill this very process at the n-th call of a function of the system that writes a file."""
    _quiet()
    torch.set_num_threads(1)
    genuine, count = getattr(os, name), 0

    def deadly(*args, **options):
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), 9)
        return genuine(*args, **options)

    setattr(files.os, name, deadly)
    sampler(out=path, progress=False, checkpoint_steps=5, mode="sequential", **OPTIONS)()


def _quiet():
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
