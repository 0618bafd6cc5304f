"""What is printed: tables on a terminal, plain columns in a file, and never a control character of somebody else's."""

import warnings

import pytest

from langevin.cli.tables import printable, say, show_findings, show_table
from langevin.storage import manifest as manifests
from tests.cli.command import QUICK, Terminal, langevin, run

CLEAR, TITLE = "\x1b[2J", "\x1b]0;owned\x07"


@pytest.fixture
def hostile(tmp_path):
    """A run whose manifest and file names contain terminal escapes."""
    path = tmp_path / "run"
    langevin("sample", *QUICK, "--out", path)
    manifest = manifests.read(path)
    manifest["sampler"]["options"] |= {f"note{CLEAR}": f"{TITLE}\r\n0 problems."}
    (path / "manifest.json").write_bytes(manifests.text(manifest))
    (path / "samples" / "chain-0000" / f"{CLEAR}.safetensors").write_bytes(b"")
    return path


@pytest.mark.fault("terminal escapes in a manifest and in the name of a file")
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("words", [["status"], ["verify"], ["resume"], ["cite"], ["evaluate"]])
def test_terminal_escapes_of_a_run_are_escaped(hostile, words, terminal):
    _, out, err = run(*words, hostile, out=Terminal() if terminal else None)
    for said in (out, err):
        assert CLEAR not in said
        assert TITLE not in said
        assert "\r" not in said.replace("\r\n", "\n") or words == ["resume"]  # a progress bar has its own
    if words == ["status"]:
        assert r"note\x1b[2J=\x1b]0;owned\x07\r\n0 problems." in out
        assert r"\x1b[2J.safetensors" in out
        assert r"\x1b[2J.safetensors is corrupted" in err
    if words == ["verify"]:
        assert r"\x1b[2J.safetensors" in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("σ² ± 0.1 — “ok”", "σ² ± 0.1 — “ok”"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202eabc", r"\u202eabc"),
        ("\udc80", r"\udc80"),
        ("a\u2028b", r"a\u2028b"),
    ],
)
def test_control_characters_are_escaped(text, shown, capsys):
    assert printable(text) == shown
    say(text)
    assert capsys.readouterr().out == f"{shown}\n"


def test_tables_are_plain_in_a_file(capsys):
    show_table(("", "accuracy"), [("SGD", "91.0%"), ("SGLD", "9.5%")])
    assert capsys.readouterr().out == "      accuracy\n SGD     91.0%\nSGLD      9.5%\n"
    show_findings([("error", "number of data", "num_data=4"), ("ok", "layers", "None.")])
    assert capsys.readouterr().out == "  error  number of data: num_data=4\n     ok  layers: None.\n"


def test_tables_are_drawn_on_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    import sys

    show_table(("", "accuracy [%]"), [("SGLD", f"[red]{CLEAR}")])
    show_findings([("error", "number of data", "num_data=4")])
    said = sys.stdout.getvalue()
    assert "─" in said
    assert "accuracy [%]" in said
    assert r"[red]\x1b[2J" in said  # neither markup nor an escape
    assert CLEAR not in said
    assert "\x1b[1;31merror\x1b[0m" in said


@pytest.mark.parametrize("words", [["status"], ["evaluate"]])
def test_commands_draw_tables_on_a_terminal_only(tmp_path, words):
    langevin("sample", *QUICK, "--out", tmp_path / "run")
    _, plain, _ = run(*words, tmp_path / "run")
    _, drawn, _ = run(*words, tmp_path / "run", out=Terminal())
    assert "─" not in plain
    assert "\x1b" not in plain
    assert "─" in drawn or "\x1b[" in drawn
    assert drawn.splitlines()[0] == plain.splitlines()[0]


def test_warnings_are_sentences(monkeypatch):
    def warned(path):
        warnings.warn(f"The clock is wrong.{CLEAR}", stacklevel=1)
        return "title", [("chain",)], []

    monkeypatch.setattr("langevin.storage.status.describe", warned)
    code, out, err = run("status", "run")
    assert code == 0
    assert out == "title\nchain\n"
    assert err == "langevin: warning: The clock is wrong.\\x1b[2J\n"
