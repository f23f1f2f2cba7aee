"""The layout of the sources: what lies where, and who imports private parts of torch."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hookstats"
# Marks that torch sets on, or looks for in, objects that are public.
MARKS = {
    "_dynamo_marked_constant",
    "_fsdp_flattened",
    "_fsdp_wrapped_module",
    "_local_tensor",
    "_orig_mod",
    "_torchdynamo_disable",
}


def sources(*folders: str) -> list[Path]:
    """The Python files in `folders` of the checkout."""
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def is_private(name: str) -> bool:
    """Whether a dotted name of torch has a part that torch may change at any time."""
    parts = name.split(".")
    return parts[0] == "torch" and (
        any(part.startswith("_") and not part.startswith("__") for part in parts)
        or name.startswith("torch.fx.experimental")
    )


def dotted(node: ast.AST) -> str:
    """The dotted name that an expression is, "" if it is none."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def private_names(code: str) -> Iterator[str]:
    """The private parts of torch that a module names."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names if is_private(alias.name))
            case ast.ImportFrom(module=str(module), names=names):
                full = [f"{module}.{alias.name}" for alias in names]
                yield from filter(is_private, full)
            case ast.Attribute(attr=attr):
                if is_private(name := dotted(node)) or (name := attr) in MARKS:
                    yield name
            case ast.Constant(value=str(text)) if " " not in text:
                if is_private(text) or text in MARKS:
                    yield text


def test_one_module_imports_private_parts_of_torch() -> None:
    found = {
        str(file.relative_to(ROOT)): names
        for file in sources("hookstats")
        if file != PACKAGE / "_torch.py" and (names := sorted(set(private_names(file.read_text()))))
    }
    assert found == {}


# The functions of torch whose tensors are on torch's default device unless told otherwise.
FACTORIES = {
    *("arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace"),
    *("logspace", "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor"),
    *("tril_indices", "triu_indices", "zeros"),
}


def calls_without_device(code: str) -> Iterator[str]:
    """The calls of torch's factories that leave the device to torch's default."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and (name := dotted(node.func)).startswith("torch."):
            named = {keyword.arg for keyword in node.keywords}
            if name.removeprefix("torch.") in FACTORIES and "device" not in named:
                yield f"{name} in line {node.lineno}"


def test_no_tensor_is_on_the_default_device() -> None:
    # The demo is a training run: its model and data go where training runs have theirs.
    files = [file for file in sources("hookstats") if file != PACKAGE / "cli" / "training.py"]
    found = {
        str(file.relative_to(ROOT)): calls
        for file in files
        if (calls := list(calls_without_device(file.read_text())))
    }
    assert found == {}


def test_cmake_builds_every_program_of_tests_cpp() -> None:
    presets = json.loads((ROOT / "CMakePresets.json").read_text("utf-8"))["buildPresets"]
    (default,) = [preset for preset in presets if preset["name"] == "default"]
    programs = {file.stem for file in (ROOT / "tests" / "cpp").glob("*.cpp")}
    assert "test_core" in programs
    assert programs <= set(default["targets"])
