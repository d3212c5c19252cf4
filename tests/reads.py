"""Which attributes of given classes the code reads, found in its syntax trees, as far as annotations tell types."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Scope = dict[str, str]
"""Variables by name, and the classes that their annotations and values name."""


class Read(NamedTuple):
    """An attribute that is read; ``owner`` None: of an object whose class is not known."""

    owner: str | None
    name: str


@dataclass(slots=True)
class Reader:
    """Collects reads. ``fields``: the classes that matter, and of each the class of each of its fields, '' for others.

    ``members`` holds the classes of other classes' attributes, as their bodies and ``__init__`` annotate them.
    """

    fields: Mapping[str, Mapping[str, str]]
    members: dict[str, dict[str, str]] = field(default_factory=dict)
    returns: dict[str, set[str]] = field(default_factory=dict)
    """By the name of a function or method: what all of that name return."""
    reads: set[Read] = field(default_factory=set)

    def find_unread(self) -> set[Read]:
        """Return the fields that nothing reads.

        A read of an object of unknown class counts where no other class has an attribute of that name.
        """
        owners = Counter(name for own in (*self.fields.values(), *self.members.values()) for name in own)
        return {
            Read(owner, name)
            for owner, own in self.fields.items()
            for name in own
            if Read(owner, name) not in self.reads and not (Read(None, name) in self.reads and owners[name] == 1)
        }

    def learn(self, tree: ast.Module) -> None:
        """Find out what classes' own attributes are, and what functions return."""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
                self.returns.setdefault(node.name, set()).add(self._named(node.returns))
            if isinstance(node, ast.ClassDef) and node.name not in self.fields:
                known = self.members.setdefault(node.name, {})
                for part in node.body:
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                        known[part.target.id] = self._named(part.annotation)
                    elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
                        given = self._parameters(part)
                        for step in ast.walk(part):
                            if isinstance(step, ast.Assign) and isinstance(step.targets[0], ast.Attribute):
                                known[step.targets[0].attr] = self._type(step.value, given, "")

    def read(self, tree: ast.AST, within: str = "", scope: Scope | None = None) -> None:
        """Collect all reads below a node."""
        scope = {} if scope is None else scope
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef):
                self.read(node, node.name, dict(scope))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                self._read_function(node, within, scope)
            else:
                self.read(node, within, scope)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    self.reads.add(Read(self._type(node.value, scope, within) or None, node.attr))

    def _read_function(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, within: str, outer: Scope
    ) -> None:
        scope = outer | self._parameters(function)
        for _ in range(2):  # a value may be named before what it is made of
            for name, value in _bindings(function):
                if found := self._type(value, scope, within):
                    scope[name] = found
        self.read(function, within, scope)

    def _parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Scope:
        given = function.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        return {one.arg: self._named(one.annotation) if one.annotation else "" for one in every}

    def _named(self, annotation: ast.expr) -> str:
        """Return the one known class that an annotation names, be it behind ``| None`` or in a list."""
        names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
        known = [name for name in names if name in self.fields or name in self.members]
        return known[0] if len(set(known)) == 1 else ""

    def _type(self, value: ast.expr, scope: Scope, within: str) -> str:
        match value:
            case ast.Name(id="self"):
                return within
            case ast.Name(id=name):
                return scope.get(name, "")
            case ast.Attribute(value=inner, attr=name):
                owner = self._type(inner, scope, within)
                return self.fields.get(owner, {}).get(name) or self.members.get(owner, {}).get(name, "")
            case ast.Subscript(value=inner) | ast.Await(value=inner) | ast.Starred(value=inner):
                return self._type(inner, scope, within)
            case ast.BoolOp(values=values):
                return next(filter(None, (self._type(one, scope, within) for one in values)), "")
            case ast.IfExp(body=body, orelse=orelse):
                return self._type(body, scope, within) or self._type(orelse, scope, within)
            case ast.Call(func=ast.Name(id=name)) if name in self.fields:
                return name
            case ast.Call(func=called, args=args):
                given = [one.id for one in args if isinstance(one, ast.Name) and one.id in self.fields]
                name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                found = self.returns.get(name, set())
                # A call that is given a class makes one of it: parsers are.
                return given[0] if given else next(iter(found)) if len(found) == 1 else ""
        return ""


def _bindings(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield names that are bound in a function, and the values, or what holds the values."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _pairs(target, value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield from _pairs(target, value)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                yield name, value
            case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)):
                yield name, value


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
            for one, other in zip(names, values, strict=True):
                yield from _pairs(one, other)
        case ast.Tuple(elts=[_, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[values]):
            yield from _pairs(inner, values)
