"""A manifest can't make the library allocate more than the stored weights take."""

import resource

import pytest

import langevin as lv
from langevin.cli.main import main
from langevin.storage.directory import DirectoryStore


@pytest.mark.parametrize("widths", [[90_000, 90_000], [100, 90_000, 90_000]])
def test_forged_sizes_are_refused_before_memory_is_allocated(tmp_path, monkeypatch, widths):
    command = ["langevin", "sample", "--model", "mlp", "--data", "digits", "--sampler", "sgld", "--lr", "0.01"]
    monkeypatch.setattr("sys.argv", [*command, "--steps", "8", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert len(lv.load(tmp_path / "run")) > 0
    store = DirectoryStore.open(tmp_path / "run")
    store.manifest["tags"]["command"]["made_with"]["widths"] = widths
    store.write_manifest()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(lv.RunError, match="names a network whose"):
        lv.load(tmp_path / "run")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1e6  # kilobytes
