"""What the site has beyond the pages in docs/: API pages, pages from elsewhere in the repository, and their links.

API pages are written from `dir(langevin)`, so a new sampler has one as soon as it is registered. Pages that are not in
docs/ (CONTRIBUTING, CHANGELOG, the reproduced papers) are taken from where they are. A link to a file of the repository
that is not on the site becomes the file's name, or a link into the repository if its address is known.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

ELSEWHERE = {  # page of the site → file of the repository
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "autopilot/table.md": "docs/autopilot/README.md",
    "experiments/index.md": "experiments/README.md",
    **{f"experiments/{p.parent.name}.md": f"experiments/{p.parent.name}/README.md"
       for p in sorted((ROOT / "experiments").glob("*/README.md"))},
}  # fmt: skip
OPTIONAL = ("leaderboard.md",)  # pages that a command writes; until then they are not in the navigation
_FITS = 88  # characters of code beside the navigation and the contents at 1280 pixels
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")

# the order of the API's sections; what is in none of them is under "Everything else"
_FIRST = ["Posterior", "sample", "resume", "load", "Run", "Ensemble", "fit", "Fit", "Recorder", "evaluate", "compare"]


def public_names() -> dict[str, Any]:
    """Every public name of langevin but modules and `__version__`, with its object."""
    import langevin

    found = {name: getattr(langevin, name) for name in dir(langevin) if not name.startswith("_")}
    return {name: entry for name, entry in found.items() if not isinstance(entry, ModuleType)}


def public_modules() -> dict[str, ModuleType]:
    """The modules that are `lv.NAME`, and those of `lv.integrations`, and a report's and a prediction's."""
    import langevin

    found = {name: getattr(langevin, name) for name in dir(langevin)}
    modules = {name: entry for name, entry in found.items() if isinstance(entry, ModuleType)}
    integrations = importlib.import_module("langevin.integrations")
    for name in integrations._MODULES:
        modules[f"integrations.{name}"] = _imported_or_read(f"langevin.integrations.{name}")
    for name in ("calibration", "corruptions", "ood", "scores", "selective", "small_data"):
        modules[f"evaluation.{name}"] = importlib.import_module(f"langevin.evaluation.{name}")
    for name in ("convergence", "curvature", "directions", "stationarity", "temperature", "verdict"):
        modules[f"diagnostics.{name}"] = importlib.import_module(f"langevin.diagnostics.{name}")
    return modules


def _imported_or_read(name: str) -> ModuleType:
    """A module, or what its source says of it where a library that it needs is not installed."""
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError):
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    module = ModuleType(name, ast.get_docstring(tree))
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            setattr(module, node.name, type(node.name, (), {"__module__": name, "__doc__": ast.get_docstring(node)}))
    return module


def members(module: ModuleType) -> dict[str, Any]:
    """What a module offers: its `__all__`, or the public classes and functions of this library in it."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    package = hasattr(module, "__path__")
    return {
        name: entry
        for name, entry in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(entry) or inspect.isfunction(entry))
        and (entry.__module__ == module.__name__ or (package and entry.__module__.startswith(module.__name__)))
    }


def path_of(entry: Any) -> str:
    """Where an object is defined."""
    return f"{entry.__module__}.{entry.__qualname__}"


def api_pages() -> dict[str, str]:
    """The API pages by their path on the site."""
    names, modules = public_names(), public_modules()
    pages = {f"api/{name}.md": _page_of_name(name, entry) for name, entry in names.items()}
    for name, module in modules.items():
        pages[f"api/{name}.md"] = _page_of_module(name, module, names)
    pages["api/classes.md"] = _page_of_classes()
    pages["api/command-line.md"] = _page_of_commands()
    pages["api/index.md"] = _index(names, modules)
    return pages


def _page_of_name(name: str, entry: Any) -> str:
    lines = [f"# lv.{name}", ""]
    module = inspect.getmodule(entry)
    if _is_method(entry) and module is not None and module.__doc__:
        lines += [_documentation(module), ""]  # the citation, the update, the target, the noise
    lines += [f"::: {path_of(entry)}", "    options:", "      show_root_heading: true"]
    if inspect.isclass(entry) and _has_own_interface(entry):
        lines += ["      inherited_members: true"]
    return "\n".join(lines) + "\n"


def _is_method(entry: Any) -> bool:
    from langevin.approximations import APPROXIMATIONS
    from langevin.samplers import SAMPLERS

    return entry in SAMPLERS.values() or entry in APPROXIMATIONS.values()


def _has_own_interface(entry: type) -> bool:
    return entry.__name__ in ("Run", "Fit", "Ensemble")


def _page_of_module(name: str, module: ModuleType, names: dict[str, Any]) -> str:
    known = {id(entry): other for other, entry in names.items()}
    lines = [f"# lv.{name}", "", _documentation(module), ""]
    rest = []
    for member, entry in members(module).items():
        if not (inspect.isclass(entry) or inspect.isfunction(entry)):
            continue
        if id(entry) in known:
            lines.append(f"- [`lv.{known[id(entry)]}`]({known[id(entry)]}.md): {_first_sentence(entry)}")
        else:
            rest.append((member, entry))
    lines.append("")
    for _, entry in rest:
        lines += [f"::: {path_of(entry)}", ""]
    return "\n".join(lines) + "\n"


def _documentation(module: ModuleType) -> str:
    """The docstring of a module: doctests as code, up to the next empty line; remarks beside equations moved nearer."""
    lines = inspect.cleandoc(module.__doc__ or "").splitlines()
    text = "\n".join(re.sub(r"(?<=\S) {5,}(?=\S)", "    ", line) if len(line) > _FITS else line for line in lines)
    return re.sub(r"^>>> .*(?:\n.+)*", lambda match: f"```pycon\n{match.group(0)}\n```", text, flags=re.MULTILINE)


def _page_of_classes() -> str:
    """Classes that calls return, which nobody constructs."""
    from langevin.ensembles.distill import Distilled
    from langevin.ensembles.last_layer import LastLayer
    from langevin.ensembles.prediction import ClassPrediction, ValuePrediction
    from langevin.ensembles.tuning import Decision, Tuning
    from langevin.inference.callbacks import StepInfo
    from langevin.inference.distributed import Mesh
    from langevin.inference.find_lr import RateSearch
    from langevin.report import Finding, Picture, Report, Table

    entries = [ClassPrediction, ValuePrediction, Report, Finding, Table, Picture, RateSearch, Tuning, Decision,
               LastLayer, Distilled, StepInfo, Mesh]  # fmt: skip
    lines = ["# What calls return", "", "Classes that you get from calls, and do not construct yourself.", ""]
    for entry in entries:
        lines += [f"::: {path_of(entry)}", ""]
    return "\n".join(lines)


def _page_of_commands() -> str:
    """The help of every command."""
    import typer

    from langevin.cli.main import app

    group = typer.main.get_command(app)
    lines = ["# Command line", "", "What `langevin COMMAND --help` says.", ""]
    for name in sorted(group.commands):  # type: ignore[attr-defined]
        command = group.commands[name]  # type: ignore[attr-defined]
        if command.hidden:
            continue
        context = command.make_context(name, [], resilient_parsing=True)
        lines += [f"## langevin {name}", "", inspect.cleandoc(command.help or ""), ""]
        rows = [p.get_help_record(context) for p in command.params]
        table = [f"| `{row[0]}` | {_cell(row[1])} |" for row in rows if row]
        lines += ["| option | |", "|---|---|", *table, ""] if table else []
    return "\n".join(lines)


def _cell(text: str) -> str:
    """For a table: one line, and what is not code does not become a link or a tag."""
    parts = re.sub(r"\s+", " ", text).replace("|", "\\|").split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("[", "&#91;") for part in parts[::2]]
    return "`".join(parts)


def _first_sentence(entry: Any) -> str:
    text = inspect.cleandoc(entry.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.!?])\s", text)[0]


def _index(names: dict[str, Any], modules: dict[str, ModuleType]) -> str:
    lines = ["# API", "", "`import langevin as lv`; every public name, from its docstring.", ""]
    for title, entries in _sections(names).items():
        lines += [f"## {title}", "", "| | |", "|---|---|"]
        lines += [f"| [`lv.{name}`]({name}.md) | {_cell(_first_sentence(names[name]))} |" for name in entries]
        lines.append("")
    lines += ["## Modules", "", "| | |", "|---|---|"]
    for name, module in modules.items():
        lines.append(f"| [`lv.{name}`]({name}.md) | {_cell(_first_sentence(module))} |")
    lines += [
        "",
        "[What calls return](classes.md): predictions, reports, tuning. [The command line](command-line.md).",
    ]
    return "\n".join(lines) + "\n"


def _sections(names: dict[str, Any]) -> dict[str, list[str]]:
    from langevin.approximations import APPROXIMATIONS
    from langevin.samplers import SAMPLERS

    samplers, fits = sorted(SAMPLERS.exports(), key=str.lower), sorted(APPROXIMATIONS.exports(), key=str.lower)
    first = [name for name in _FIRST if name in names]
    rest = sorted(set(names) - set(first) - set(samplers) - set(fits), key=str.lower)
    return {"Start here": first, "Samplers": samplers, "Approximations": fits, "Everything else": rest}


def _api_nav() -> list[Any]:
    names, modules = public_names(), public_modules()
    sections = [{title: [{f"lv.{n}": f"api/{n}.md"} for n in entries]} for title, entries in _sections(names).items()]
    of_modules = {"Modules": [{f"lv.{name}": f"api/{name}.md"} for name in modules]}
    rest = [{"What calls return": "api/classes.md"}, {"Command line": "api/command-line.md"}]
    return ["api/index.md", *sections, of_modules, *rest]


# what MkDocs calls


def on_config(config: Any) -> Any:
    """Add the API to the navigation, before the project, and drop pages that are not written yet."""
    if "MIKE_DOCS_VERSION" in os.environ:  # the menu of versions, where mike publishes several
        config.extra["version"] = {"provider": "mike"}
    config.nav = [_existing(entry) for entry in config.nav]
    config.nav.insert(-1, {"API": _api_nav()})
    evidence = next(entry["Evidence"] for entry in config.nav if "Evidence" in entry)
    evidence += [page for page in ELSEWHERE if page.startswith("experiments/") and page not in evidence]
    return config


def _existing(entry: Any) -> Any:
    if isinstance(entry, dict):
        kept = {}
        for title, pages in entry.items():
            kept[title] = [_existing(p) for p in pages if _is_there(p)] if isinstance(pages, list) else pages
        return kept
    return entry


def _is_there(page: Any) -> bool:
    return page not in OPTIONAL or (ROOT / "docs" / page).exists()


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, the pages from elsewhere, and the figures of those."""
    from mkdocs.structure.files import File

    for path, content in api_pages().items():
        files.append(File.generated(config, path, content=content))
    for path, source in ELSEWHERE.items():
        files.append(File.generated(config, path, content=(ROOT / source).read_text()))
    for figure in sorted((ROOT / "experiments").glob("*/*.png")):
        where = f"experiments/{figure.parent.name}/{figure.name}"
        files.append(File.generated(config, where, content=figure.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links between pages of the site and files of the repository."""
    here = page.file.src_uri
    source = ELSEWHERE.get(here, f"docs/{here}")
    folder = os.path.dirname(source)

    def rewritten(match: re.Match[str]) -> str:
        text, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if re.match(r"[a-z]+:", target) or here.startswith("api/"):
            return match.group(0)
        in_repository = os.path.normpath(os.path.join(folder, target))
        on_site = _site_path(in_repository)
        found = files.get_file_from_path(on_site)
        if found is not None and found.inclusion.is_included():
            return f"{text}({os.path.relpath(on_site, os.path.dirname(here) or '.')}{anchor})"
        if not _is_there(on_site):
            return text[1:-1]
        if not (ROOT / in_repository).exists():
            return match.group(0)  # a broken link: MkDocs says so
        if config.repo_url:
            return f"{text}({config.repo_url.rstrip('/')}/blob/main/{in_repository}{anchor})"
        return f"{text[1:-1]} (`{in_repository}`)"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else with_scripts(_LINK.sub(rewritten, part)) for part in parts)


def with_scripts(text: str) -> str:
    """A^{1/2} and Σ_{i∈batch} in running text become raised and lowered; code, indented code and equations stay."""
    parts = re.split(r"(\$\$.*?\$\$|\$[^$\n]+\$|`[^`]*`|^(?: {4}|\t)[^\n]*)", text, flags=re.DOTALL | re.MULTILINE)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"\^\{([^{}\n]+)\}", r"<sup>\1</sup>", parts[at])
        parts[at] = re.sub(r"_\{([^{}\n]+)\}", r"<sub>\1</sub>", parts[at])
    return "".join(parts)


def _site_path(in_repository: str) -> str:
    """Where a file of the repository is on the site."""
    for page, source in ELSEWHERE.items():
        if source == in_repository:
            return page
    return in_repository.removeprefix("docs/")
