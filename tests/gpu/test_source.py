"""The source makes tensors where they are needed: no generator of a device, no tensor on a default device.

A factory without `device=` makes a tensor on torch's default device: the CPU, unless the user has changed it, and so
does `torch.as_tensor`, which even moves tensors there. What is listed below does so on purpose, and says why;
`test_default_device.py` changes it.
"""

import ast
from functools import cache
from pathlib import Path

import langevin

SOURCE = Path(langevin.__file__).parent
FACTORIES = {
    *("zeros", "ones", "empty", "full", "arange", "tensor", "eye", "linspace", "logspace", "scalar_tensor"),
    *("rand", "randn", "randint", "randperm", "tril_indices", "triu_indices", "as_tensor", "asarray"),
}

# file (or folder) → why torch's default device is right there
BY_DEFAULT = {
    "models/": "parameters are made where torch's layers make theirs, and moved with their module",
    "core/likelihoods/scales.py": "a buffer or parameter of a module, moved with it",
    "core/likelihoods/ordinal.py": "a parameter of a module, moved with it",
    "demo.py": "its own data, in a program of its own",
    "cli/": "throw-away parameters, to try an option",
}

# generators are of the CPU: what they draw is the same on every device, and drawn outside of steps
GENERATORS = {
    "core/random.py": "draws of priors",
    "evaluation/": "bootstrap, starts of attacks, corruptions, subsets of data",
    "diagnostics/convergence.py": "which weights are looked at",
    "inference/autopilot/burn_in.py": "directions in which predictions are followed",
    "bandits.py": "the game",
    "demo.py": "which patches are shown",
    "data/": "splits and synthetic data",
}


@cache
def nodes():
    """Every node of the source, with its file."""
    files = sorted(SOURCE.rglob("*.py"))
    return [(str(file.relative_to(SOURCE)), node) for file in files for node in ast.walk(ast.parse(file.read_text()))]


@cache
def calls():
    """Calls of torch.NAME(…): the file, the line, the name, its keyword arguments and the arguments before them."""
    found = []
    for file, node in nodes():
        called = getattr(node, "func", None)
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "torch":
            keywords = {keyword.arg for keyword in node.keywords}
            found.append((file, node.lineno, called.attr, keywords, node.args))
    return found


def passed():
    """Factories that are arguments, as in `tree_map(torch.as_tensor, x)`: the file and the line."""
    found = []
    for file, node in nodes():
        for given in node.args if isinstance(node, ast.Call) else ():
            if isinstance(given, ast.Attribute) and ast.unparse(given) in {f"torch.{name}" for name in FACTORIES}:
                found.append(f"{file}:{node.lineno} {ast.unparse(given)}")
    return found


def listed(file, names):
    return any(file == name or (name.endswith("/") and file.startswith(name)) for name in names)


def test_no_tensor_is_made_on_a_default_device():
    found = [
        f"{file}:{line} torch.{name}"
        for file, line, name, keywords, _ in calls()
        if name in FACTORIES and not {"device", "out"} & keywords and not listed(file, BY_DEFAULT)
    ]
    assert not found, found
    assert not passed()


def test_no_generator_belongs_to_a_device():
    found = [
        f"{file}:{line}"
        for file, line, name, keywords, arguments in calls()
        if name == "Generator" and (keywords or arguments or not listed(file, GENERATORS))
    ]
    assert not found, found


def test_only_torch_is_seeded_that_is_in_use():
    """`torch.manual_seed` would set how a device that the user has not touched yet begins."""
    found = [f"{file}:{line}" for file, line, name, _, _ in calls() if name == "manual_seed"]
    assert {place.partition(":")[0] for place in found} <= {"demo.py", "cli/recipes.py"}, found  # programs of their own


def test_the_lists_have_no_entry_too_many():
    made = [file for file, _, name, keywords, _ in calls() if name in FACTORIES and "device" not in keywords]
    assert not [entry for entry in BY_DEFAULT if not any(listed(file, [entry]) for file in made)]
    drawn = [file for file, _, name, _, _ in calls() if name == "Generator"]
    assert not [entry for entry in GENERATORS if not any(listed(file, [entry]) for file in drawn)]
