"""Where a run may be started: nothing that is not ours is ever removed."""

import json

import pytest
import torch
from safetensors.torch import save_file

import langevin as lv
from langevin.storage.directory import DirectoryStore
from tests.helpers import toy_data, toy_posterior


def draw(out, **options):
    return lv.sample(toy_posterior(), toy_data(), lv.SGLD, lr=1e-2, steps=20, out=out, progress=False, **options)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "checkpoints/mine.safetensors", "fixed.safetensors", "notes.txt"]
)
def test_a_directory_with_files_of_somebody_else_is_refused_and_left_alone(tmp_path, name):
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    save_file({"w": torch.ones(3)}, file) if file.suffix == ".safetensors" else file.write_text("mine")
    before = file.read_bytes()
    with pytest.raises(lv.RunError, match=r"contains files that are not a run's"):
        draw(tmp_path / "out")
    assert file.read_bytes() == before


def test_an_empty_name_is_not_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    save_file({"w": torch.ones(3)}, tmp_path / "checkpoints" / "best.safetensors")
    for out in ("", "."):
        with pytest.raises(lv.RunError, match="out is empty"):
            draw(out)
    assert (tmp_path / "checkpoints" / "best.safetensors").exists()


@pytest.mark.parametrize("resume", [None, "auto"])
def test_samples_without_a_manifest_are_not_overwritten(tmp_path, resume):
    draw(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*.safetensors")}
    with pytest.raises(lv.RunError, match=r"samples but no manifest\.json.*Restore the manifest"):
        draw(tmp_path / "run", resume=resume)
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*.safetensors")} == before


def test_what_a_failed_start_left_is_replaced(tmp_path, monkeypatch):
    def fail(self):
        raise OSError("no manifest today")

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryStore, "write_manifest", fail)
        with pytest.raises(OSError, match="today"):
            draw(tmp_path / "run")
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    assert len(draw(tmp_path / "run")) > 0


def test_two_starts_in_one_new_directory_do_not_disturb_each_other(tmp_path):
    """The second, created before the first has written its manifest, removes nothing and is refused."""
    manifest = draw(None).manifest
    first, second = (DirectoryStore.create(tmp_path / "run", manifest) for _ in range(2))
    with first.writing():
        first.write_fixed({})
        with pytest.raises(lv.RunError, match="is being written by"), second.writing():
            pass
        assert (tmp_path / "run" / "fixed.safetensors").exists()
        first.write_manifest()
    with pytest.raises(lv.RunError, match="Another process has just started"), second.writing():
        pass
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["run"] == first.manifest["run"]
    assert (tmp_path / "run" / "fixed.safetensors").exists()
