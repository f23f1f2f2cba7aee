"""Selection: which modules and parameters of a model are watched, and their names."""

from __future__ import annotations

import copy
import difflib
import fnmatch
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from torch import nn

from hookstats._torch import WRAPPED

Selector = (
    str
    | re.Pattern[str]
    | type[nn.Module]
    | Callable[[str, nn.Module], bool]
    | Collection["Selector"]
)
"""A glob or a regular expression for names, a module type, a callable (name, module) -> bool, or
several of these, one of which must match."""


class Selection:
    """The chosen modules and parameters of a model by their names, each once.

    Without `include` these are all parameters, and all modules that have no children or have
    parameters themselves, such as blocks; torch's own attention, which uses the weights of its
    child, is one of these. With `include`, they are the modules that it matches, and the parameters
    that it matches or whose module it matches. `exclude` removes modules and parameters in the same
    way. A glob must match the whole name, a regular expression some part of it; a string that is a
    name is no glob. Names are qualified names without the prefixes of wrappers; a module or
    parameter that has several names goes by the first, and is found by each.

    Raises:
        ValueError: include or exclude is no Selector.
    """

    def __init__(
        self, model: nn.Module, include: Selector | None = None, exclude: Selector | None = None
    ) -> None:
        named = list(_named_modules(model))
        self._others = {} if include is None and exclude is None else _other_names(model, named)
        included = None if include is None else _Matcher("include", include, self._others)
        excluded = _Matcher("exclude", () if exclude is None else exclude, self._others)
        self.modules: dict[str, nn.Module] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.owners: dict[str, tuple[nn.Module, str]] = {}
        """The module that has each chosen parameter, and the module's name for it."""
        self._included, self._excluded = included, excluded
        self.all_modules: dict[str, nn.Module] = dict(named)
        """Chosen or not."""
        self._names: list[str] = []
        seen: set[nn.Parameter] = set()
        unused = {
            part for whole in filter(_uses_weights, model.modules()) for part in whole.modules()
        }
        for name, module in named:
            self._names.append(name)
            is_leaf = _uses_weights(module) or (module not in unused and _is_leaf(name, module))
            wanted = included.module(name, module) if included else is_leaf
            if wanted and not excluded.module(name, module) and not _wrapped(module):
                self.modules[name] = module
            for key, parameter in module.named_parameters(recurse=False):
                if parameter in seen:
                    continue
                seen.add(parameter)
                full = f"{name}.{key}" if name else key
                self._names.append(full)
                wanted = included is None or included.parameter(full, name, module)
                if wanted and not excluded.parameter(full, name, module):
                    self.parameters[full] = parameter
                    self.owners[full] = module, key

    def names(self) -> Selection:
        """The selection without what it chose: it keeps no module alive."""
        found = copy.copy(self)
        found.modules, found.parameters, found.owners, found.all_modules = {}, {}, {}, {}
        return found

    def wants(self, name: str, module: nn.Module) -> bool:
        """Whether a module that is no part of the model is chosen: all are without `include`."""
        included = self._included is None or self._included.module(name, module)
        return included and not self.excludes(name, module)

    def excludes(self, name: str, module: nn.Module) -> bool:
        return self._excluded.module(name, module)

    def has(self, name: str, parameters: bool) -> bool:
        """Whether a module in the model has that name, chosen or not.

        parameters: whether a parameter may have it, too.
        """
        return self._others.get(name, name) in self._known(parameters)

    def close_names(self, selector: object, parameters: bool) -> list[str]:
        """Names in the model like `selector`, or any names if none is like it, for error messages.

        parameters: whether to include names of parameters.
        """
        names = self._known(parameters)
        if isinstance(selector, str) and (close := difflib.get_close_matches(selector, names, n=3)):
            return close
        return [name for name in names if name][:3]

    def _known(self, parameters: bool) -> list[str]:
        return self._names if parameters else list(self.all_modules)


def check_selector(argument: str, selector: Selector | None) -> None:
    """Raise a ValueError if the value of `argument` is no Selector."""
    if selector is not None:
        _Matcher(argument, selector)


def exact_names(selector: Selector | None) -> Iterator[str]:
    """The names in a selector: its globs without wildcards."""
    if isinstance(selector, str):
        if not re.search(r"[*?[]", selector):
            yield selector
    elif isinstance(selector, Collection):
        for item in selector:
            yield from exact_names(item)


class _Matcher:
    """A selector, as functions that match names and modules."""

    def __init__(
        self, argument: str, selector: Selector, known: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """known: all names, each with the one that the module or parameter goes by."""
        self._known = known
        self._names: list[Callable[[str], object]] = []
        self._modules: list[Callable[[str, nn.Module], object]] = []
        self._add(argument, selector)

    def _add(self, argument: str, selector: Selector) -> None:
        if isinstance(selector, str):
            exact = self._known.get(selector)
            glob = fnmatch.translate(selector) if exact is None else re.escape(exact)
            self._names.append(re.compile(glob).fullmatch)
        elif isinstance(selector, re.Pattern):
            self._names.append(selector.search)
        elif isinstance(selector, type) and issubclass(selector, nn.Module):
            self._modules.append(lambda _, module: isinstance(module, selector))
        elif callable(selector) and not isinstance(selector, (type, nn.Module)):
            self._modules.append(selector)
        elif isinstance(selector, Collection):
            for item in selector:
                self._add(argument, item)
        else:
            raise ValueError(
                f"{argument} = {selector!r}: expected a glob, a compiled regular expression, a "
                "module type, a callable (name, module) -> bool, or several of these"
            )

    def module(self, name: str, module: nn.Module) -> bool:
        return any(matches(name) for matches in self._names) or any(
            matches(name, module) for matches in self._modules
        )

    def parameter(self, name: str, module_name: str, module: nn.Module) -> bool:
        return any(matches(name) for matches in self._names) or self.module(module_name, module)


def _named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, with its name; if wrappers make two names equal, the later one keeps its
    prefixes."""
    modules = dict(model.named_modules())
    wrapped = {full: _wrapped(module) for full, module in modules.items()}
    given: set[str] = set()
    for full, module in modules.items():
        name = _without_wrappers(full, wrapped)
        if not wrapped[full]:
            name = full if name in given else name
            given.add(name)
        yield name, module


def _without_wrappers(full: str, wrapped: Mapping[str, set[str]]) -> str:
    """A name without the prefixes of wrappers; wrapped: `_wrapped` of modules by full names."""
    parts = full.split(".")
    holders = [".".join(parts[:i]) for i in range(len(parts))]
    return ".".join(
        part for part, holder in zip(parts, holders, strict=True) if part not in wrapped[holder]
    )


def _other_names(model: nn.Module, named: Sequence[tuple[str, nn.Module]]) -> dict[str, str]:
    """All names of modules and parameters, each with the one that goes by it."""
    first: dict[int, str] = {}
    for name, module in named:
        first.setdefault(id(module), name)
        for key, parameter in module.named_parameters(recurse=False):
            first.setdefault(id(parameter), f"{name}.{key}" if name else key)
    known = {name: name for name in first.values()}
    modules = dict(model.named_modules(remove_duplicate=False))
    wrapped = {full: _wrapped(module) for full, module in modules.items()}
    for full, module in modules.items():
        name = _without_wrappers(full, wrapped)
        known.setdefault(name, first[id(module)])
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            known.setdefault(f"{name}.{key}" if name else key, first[id(parameter)])
    return known


def _wrapped(module: nn.Module) -> set[str]:
    """The names of those children of which `module` is a mere wrapper."""
    children = {name for name, _ in module.named_children()}
    # DataParallel, DistributedDataParallel, AveragedModel, ...: nothing but a `module`.
    return children if children == {"module"} else children & WRAPPED


def _uses_weights(module: nn.Module) -> bool:
    """Whether a module uses the weights of its children, and never calls these."""
    return getattr(type(module), "forward", None) is nn.MultiheadAttention.forward


def _is_leaf(name: str, module: nn.Module) -> bool:
    """Whether a module computes something, and either no child does or it has parameters itself.

    The model as a whole is no leaf by its own parameters: a child of it returns the same tensor.
    """
    # The class of a ScriptModule has no forward.
    forward = getattr(type(module), "forward", None)
    if forward is nn.Module.forward or "parametrizations" in name.split("."):
        return False
    if name and any(True for _ in module.parameters(recurse=False)):
        return True
    return all(child == "parametrizations" for child, _ in module.named_children())
