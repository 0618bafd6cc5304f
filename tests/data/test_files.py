"""Finding, downloading and verifying files, against a local HTTP server with injected faults."""

import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from langevin.data import files

CONTENT = os.urandom(300_000)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
PATH = "mnist/things.gz"
CHUNK = 1 << 16  # read size: an incomplete chunk is lost when a connection is dropped


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT. `cuts`: bytes after which each of the next connections is dropped; `ranges`: support Range."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cuts, self.ranges, self.delay, self.status = CONTENT, [], True, 0.0, None
        self.requests = []  # the Range header of each
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        server = self.server
        server.requests.append(self.headers["Range"])
        time.sleep(server.delay)
        start = int(self.headers["Range"][6:-1]) if self.headers["Range"] and server.ranges else 0
        body = server.content[start:]
        status = server.status or (206 if start else 200)
        if start and not body:
            status = 416
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cuts:
            body = body[: server.cuts.pop(0)]
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture
def cache(server, tmp_path, monkeypatch):
    monkeypatch.delenv("LANGEVIN_DATA", raising=False)
    monkeypatch.setenv("LANGEVIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setitem(files.SOURCES, "mnist", (server.url,))
    monkeypatch.setattr(files, "_registry", lambda: {PATH: (DIGEST,)})
    return tmp_path / "cache"


def leftovers(cache: Path) -> set[str]:
    return {p.name for p in (cache / "mnist").iterdir()} - {"things.gz", "things.gz.lock"}


def test_a_missing_file_is_downloaded_once_and_then_found(cache, server):
    file = files.fetch(PATH)
    assert file == cache / PATH
    assert file.read_bytes() == CONTENT
    assert files.fetch(PATH) == file
    assert server.requests == [None]
    assert not leftovers(cache)


def test_the_users_directory_has_priority(cache, server, tmp_path, monkeypatch):
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path / "mine"))
    mine = tmp_path / "mine" / PATH
    mine.parent.mkdir(parents=True)
    mine.write_bytes(CONTENT)
    (cache / "mnist").mkdir(parents=True)
    (cache / PATH).write_bytes(CONTENT)
    assert files.fetch(PATH) == mine
    mine.unlink()
    assert files.fetch(PATH) == cache / PATH
    assert server.requests == []


def test_a_modified_file_in_the_users_directory_is_an_error_not_a_download(cache, server, tmp_path, monkeypatch):
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path / "mine"))
    mine = tmp_path / "mine" / PATH
    mine.parent.mkdir(parents=True)
    mine.write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match="not the published file") as info:
        files.fetch(PATH)
    assert str(mine) in str(info.value)
    assert DIGEST in str(info.value)
    assert mine.exists()
    assert server.requests == []


def test_a_missing_users_directory_is_an_error(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"LANGEVIN_DATA=.*nowhere is not a directory"):
        files.fetch(PATH)


def test_a_corrupted_file_in_the_cache_is_downloaded_again(cache, server):
    files.fetch(PATH).write_bytes(b"corrupted")
    assert files.fetch(PATH).read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_a_copy_with_another_registered_digest_is_accepted(cache, server, monkeypatch):
    other = b"the same content, compressed otherwise"
    monkeypatch.setattr(files, "_registry", lambda: {PATH: (DIGEST, f"sha256:{hashlib.sha256(other).hexdigest()}")})
    (cache / "mnist").mkdir(parents=True)
    (cache / PATH).write_bytes(other)
    assert files.fetch(PATH).read_bytes() == other
    assert server.requests == []


def test_md5_is_no_digest(cache, server, monkeypatch):
    """Files with a given MD5 can be made at will, so no file is known by it."""
    forged = b"another content"
    monkeypatch.setattr(files, "_registry", lambda: {PATH: (DIGEST, f"md5:{hashlib.md5(forged).hexdigest()}")})
    (cache / "mnist").mkdir(parents=True)
    (cache / PATH).write_bytes(forged)
    assert files.fetch(PATH).read_bytes() == CONTENT
    assert len(server.requests) == 1


def test_a_download_with_the_wrong_digest_is_refused_and_leaves_nothing(cache, server):
    server.content = b"something else"
    with pytest.raises(FileNotFoundError, match="does not match the known hash"):
        files.fetch(PATH)
    assert not (cache / PATH).exists()
    assert not leftovers(cache)
    server.content = CONTENT
    assert files.fetch(PATH).read_bytes() == CONTENT


def test_a_dropped_connection_is_resumed_within_the_call(cache, server):
    server.cuts = [2 * CHUNK]
    assert files.fetch(PATH).read_bytes() == CONTENT
    assert server.requests == [None, f"bytes={2 * CHUNK}-"]
    assert not leftovers(cache)


def test_a_download_that_failed_is_resumed_by_the_next_call(cache, server):
    server.cuts = [CHUNK, CHUNK, CHUNK]
    with pytest.raises(FileNotFoundError, match=r"things\.gz"):
        files.fetch(PATH)
    assert not (cache / PATH).exists()
    assert (cache / f"{PATH}.part").stat().st_size == 3 * CHUNK
    assert files.fetch(PATH).read_bytes() == CONTENT
    assert server.requests == [None, *(f"bytes={i * CHUNK}-" for i in (1, 2, 3))]
    assert not leftovers(cache)


def test_a_server_without_ranges_starts_from_zero(cache, server):
    server.ranges = False
    server.cuts = [2 * CHUNK]
    assert files.fetch(PATH).read_bytes() == CONTENT
    assert server.requests == [None, f"bytes={2 * CHUNK}-"]


def test_a_partial_file_longer_than_the_file_is_deleted(cache, server):
    (cache / "mnist").mkdir(parents=True)
    (cache / f"{PATH}.part").write_bytes(CONTENT + b"more")
    assert files.fetch(PATH).read_bytes() == CONTENT
    assert server.requests == ["bytes=300004-", None]


def test_a_transient_server_error_preserves_the_partial_file(cache, server):
    (cache / "mnist").mkdir(parents=True)
    (cache / f"{PATH}.part").write_bytes(CONTENT[:1000])
    server.status = 503
    with pytest.raises(FileNotFoundError, match="503"):
        files.fetch(PATH)
    server.status = None
    assert files.fetch(PATH).read_bytes() == CONTENT
    assert server.requests[-1] == "bytes=1000-"


def test_the_next_server_is_tried(cache, server, monkeypatch):
    monkeypatch.setitem(files.SOURCES, "mnist", ("http://127.0.0.1:9/", server.url))
    assert files.fetch(PATH).read_bytes() == CONTENT


def test_the_offline_error_names_file_locations_and_remedy(cache, tmp_path, monkeypatch):
    monkeypatch.setitem(files.SOURCES, "mnist", ("http://127.0.0.1:9/",))
    monkeypatch.setenv("LANGEVIN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as info:
        files.fetch(PATH)
    message = str(info.value)
    assert message.startswith(f"{PATH} was not found")
    assert str(tmp_path / PATH) in message
    assert str(cache / PATH) in message
    assert "download http://127.0.0.1:9/things.gz elsewhere" in message
    assert f"save it as DIR/{PATH} and set LANGEVIN_DATA=DIR" in message


@pytest.fixture
def read_only(cache, monkeypatch):
    """A cache directory that is read-only for this process, also if the tests run as root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("LANGEVIN_CACHE", str(folder))
    root = os.geteuid() == 0
    yield folder, (lambda: os.seteuid(65534) if root else folder.chmod(0o555))
    if root:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_read_only_cache_is_an_error_with_a_remedy(read_only, server):
    folder, close = read_only
    close()
    with pytest.raises(OSError, match=r"cannot be written.*Set LANGEVIN_CACHE") as info:
        files.fetch(PATH)
    assert str(folder / PATH) in str(info.value)
    assert f"save it as DIR/{PATH} and set LANGEVIN_DATA=DIR" in str(info.value)
    assert server.requests == []


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_read_only_cache_that_has_the_file_serves_it(read_only, server):
    folder, close = read_only
    (folder / "mnist").mkdir()
    (folder / PATH).write_bytes(CONTENT)
    close()
    assert files.fetch(PATH) == folder / PATH
    assert server.requests == []


def test_a_cache_that_is_a_file_is_an_error_with_a_remedy(cache, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANGEVIN_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match="Set LANGEVIN_CACHE"):
        files.fetch(PATH)


def test_several_processes_share_one_download(cache, server):
    server.delay = 1.0
    go = cache.parent / "go"
    script = (
        "import sys, time, pathlib\n"
        "from langevin.data import files\n"
        f"files.SOURCES['mnist'] = ({server.url!r},)\n"
        f"files._registry = lambda: {{{PATH!r}: ({DIGEST!r},)}}\n"
        "print('ready', flush=True)\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
        f"print(files.fetch({PATH!r}))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    go.write_text("")
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert output.strip() == str(cache / PATH)
    assert (cache / PATH).read_bytes() == CONTENT
    assert server.requests == [None]


def test_progress_is_shown_and_includes_the_partial_file(cache, server, monkeypatch):
    import tqdm

    bars = []

    class Bar(tqdm.tqdm):
        def __init__(self, **options):
            super().__init__(**{**options, "disable": False, "file": open(os.devnull, "w")})  # noqa: SIM115
            bars.append(self)

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    server.cuts = [2 * CHUNK]
    files.fetch(PATH)
    assert [(bar.desc, bar.total, bar.initial, bar.n) for bar in bars] == [
        ("things.gz", 300_000, 0, 2 * CHUNK),
        ("things.gz", 300_000, 2 * CHUNK, 300_000),
    ]


def test_every_registered_file_has_digests_and_a_source():
    registry = files._registry()
    assert len(registry) == 4 + 4 + 2 + 1 + 7 + 5 * 43 + 13
    for path, digests in registry.items():
        for digest in digests:
            algorithm, _, value = digest.partition(":")
            assert (algorithm, len(value)) == ("sha256", 64), path
        if "cifar-10-batches-bin" not in path:  # those are in the archive
            assert all(url.startswith("http") for url in files._urls(path)), path


@pytest.mark.skipif(not os.environ.get("LANGEVIN_DATA"), reason="needs the published files")
def test_the_published_files_have_the_registered_digests():
    folder = Path(os.environ["LANGEVIN_DATA"])
    there = [path for path in files._registry() if (folder / path).exists()]
    assert there
    for path in there:
        assert files.find(path) == folder / path
