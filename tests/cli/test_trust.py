"""A run names functions in its manifest; whoever wrote the manifest chose them. None is called without --trust."""

import json
import shutil

import pytest

from langevin.cli.main import app
from langevin.storage import manifest as manifests
from tests.cli.command import DIGITS, QUICK, langevin, run

PARTS = ["model", "data", "likelihood", "prior"]
NEEDS_TRUST = {"model": {"resume", "evaluate", "report"}, "data": {"resume"}, "likelihood": set(), "prior": set()}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A run that nobody has touched."""
    path = tmp_path_factory.mktemp("runs") / "honest"
    langevin("sample", *QUICK, "--out", path)
    return path


@pytest.fixture
def owned(tmp_path):
    """The file that the hostile manifest's function would make."""
    return tmp_path / "owned"


def forge(honest, path, part, owned):
    """A copy of a run whose manifest, signed, has os.system make a file."""
    shutil.copytree(honest, path)
    manifest = manifests.read(path)
    recipe = manifest["tags"]["command"]
    recipe[part] = "os:system"
    recipe[f"{part}_options"] = recipe["made_with"] = {"command": f"touch {owned}"}
    (path / "manifest.json").write_bytes(manifests.text(manifest))
    return path


def commands(hostile, honest):
    """Every command of the app, with arguments that make it read the hostile run in every way that it can."""
    sample = ["sample", *QUICK, "--out", hostile]
    test = ["--test", "digits"]
    return {
        "demo": [["demo", "--out", hostile]],
        "sample": [sample, [*sample, "--resume", "auto"], [*sample, "--resume", "auto", "--log", "tensorboard"]],
        "resume": [["resume", hostile], ["resume", hostile, "--steps", "80", "--log", "tensorboard"]],
        "fit": [["fit", *DIGITS, "--lr", "0.01", "--steps", "10", "--init", hostile, "--out", f"{hostile}-fit"]],
        "evaluate": [["evaluate", hostile, *test], ["evaluate", honest, "--baseline", hostile]],
        "report": [["report", hostile, *test], ["report", honest, "--baseline", hostile, "--out", "page.html"]],
        "status": [["status", hostile]],
        "verify": [["verify", hostile], ["verify", hostile, "--accept-manifest"], ["verify", hostile, "--quarantine"]],
        "doctor": [["doctor", hostile]],
        "cite": [["cite", hostile]],
        "reproduce": [["reproduce", hostile]],
        "bench": [["bench", hostile]],
    }


@pytest.mark.fault("a manifest that names os.system, walked by every command")
@pytest.mark.parametrize("part", PARTS)
def test_no_command_calls_what_a_manifest_names(honest, owned, tmp_path, monkeypatch, part):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("langevin.demo.run_demo", refuse)  # it reads no run, and takes a minute
    hostile = forge(honest, tmp_path / "hostile", part, owned)
    walked = commands(hostile, honest)
    assert set(walked) == {command.name for command in app.registered_commands}
    for name, calls in walked.items():
        for words in calls:
            code, _, said = run(*words)
            assert not owned.exists(), words
            if name in NEEDS_TRUST[part]:
                assert code == 2, words
                assert "names functions to be called, os:system" in said
                assert f"{words_before(words, hostile)} {hostile} --trust." in said


def test_the_manifest_of_the_walk_would_call_its_function(honest, owned, tmp_path):
    """With --trust the function is called, so the walk above is one past a loaded trap."""
    hostile = forge(honest, tmp_path / "hostile", "model", owned)
    assert "os:system must return a torch.nn.Module; it returned int" in langevin("resume", hostile, "--trust", code=2)
    assert owned.exists()


@pytest.mark.parametrize("command", ["resume", "evaluate", "report"])
def test_a_manifest_that_was_edited_by_hand_and_accepted_is_not_trusted(honest, owned, tmp_path, command):
    path = tmp_path / "edited"
    shutil.copytree(honest, path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["tags"]["command"] |= {"model": "os:system", "model_options": {"command": f"touch {owned}"}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert "--accept-manifest" in langevin(command, path, code=2)  # its checksum differs
    langevin("verify", path, "--accept-manifest")
    assert f"langevin {command} {path} --trust." in langevin(command, path, code=2)
    assert not owned.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"sampler": {"name": "os.system", "options": {"command": "touch owned"}}},
        {"schedule": {"name": "os.system", "options": {"command": "touch owned"}}},
        {"likelihood": {"name": "os.system", "options": {"command": "touch owned"}}},
        {"method": {"name": "os.system", "options": {"command": "touch owned"}}},
        {"method": "os:system"},
        {"sampler": {"name": 3}},
        {"tags": {"command": "os:system"}},
        {"tags": {"command": {"model": ["os:system"]}}},
        {"settings": {"steps": "many", "chains": "\x1b[2J"}},
    ],
)
def test_other_entries_of_a_manifest_are_looked_up_in_registries_only(honest, tmp_path, monkeypatch, changes):
    monkeypatch.chdir(tmp_path)
    hostile = tmp_path / "hostile"
    shutil.copytree(honest, hostile)
    (hostile / "manifest.json").write_bytes(manifests.text(manifests.read(hostile) | changes))
    for words in (
        ["sample", *QUICK, "--out", hostile, "--resume", "auto"],
        ["resume", hostile, "--steps", "80", "--trust"],
        ["fit", *DIGITS, "--lr", "0.01", "--steps", "10", "--init", hostile, "--out", "fit"],
        ["evaluate", hostile, "--trust"],
        ["status", hostile],
        ["verify", hostile],
        ["cite", hostile],
    ):
        run(*words)
        assert not (tmp_path / "owned").exists(), words


def words_before(words, path):
    """The command as the remedy writes it, up to the path."""
    return "langevin " + " ".join(str(word) for word in words[: words.index(path)])


def refuse(out):
    raise ValueError("not here")
