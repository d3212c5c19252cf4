"""Whether a chat template reads a message's content as text or as a list of parts, by the rules of vLLM.

A loop over a message's content says "parts". A message is what a loop over ``messages``, or over another name or a
slice of it, runs through; its content may have gone through filters, and into a macro as one of its arguments. A loop
over a plain ``content`` counts too, outside of macros, where the name may mean anything.
"""

from collections import deque
from collections.abc import Iterator

from jinja2 import nodes


class UnknownTarget(Exception):
    """A name was to be followed, and is no plain name."""


def takes_parts(tree: nodes.Template) -> bool:
    """Say whether the template reads content as parts; a template that cannot be followed reads text."""
    try:
        return any(_loops_over_content(tree))
    except UnknownTarget:
        return False


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _leads_to(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Say whether an expression is a name, or ``key`` of it, or a filtered or sliced form of that."""
    match node:
        case nodes.Filter(node=inner) | nodes.Test(node=inner) | nodes.Getitem(node=inner, arg=nodes.Slice()):
            return _leads_to(inner, name, key)
        case nodes.Getitem(node=inner, arg=nodes.Const(value=value)) if key is not None:
            return value == key and _is_name(inner, name)
        case nodes.Getattr(node=inner, attr=attr) if key is not None:
            return attr == key and _is_name(inner, name)
    return key is None and node is not None and _is_name(node, name)


def _name_of(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise UnknownTarget
    return target.name


def _names_of_messages(tree: nodes.Template) -> list[str]:
    """Return the names that stand for all messages, or some of them."""
    names, waiting = ["messages"], deque(["messages"])
    while waiting:
        name = waiting.popleft()
        for assignment in tree.find_all(nodes.Assign):
            if _leads_to(assignment.node, name):
                other = _name_of(assignment.target)
                if other not in names:
                    names.append(other)
                    waiting.append(other)
    return names


def _names_of_message(tree: nodes.Template) -> list[str]:
    """Return the names that stand for one message."""
    several = _names_of_messages(tree)
    return [
        _name_of(loop.target)
        for loop in tree.find_all(nodes.For)
        if any(_leads_to(loop.iter, name) for name in several)
    ]


def _loops_over_content(tree: nodes.Template) -> Iterator[bool]:
    """Give True for each loop over a content."""
    messages = _names_of_message(tree)
    in_macros: dict[int, frozenset[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        given = _parameters_with_content(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macros[id(loop)] = given or in_macros.get(id(loop), frozenset())
    for loop in tree.find_all(nodes.For):
        names = in_macros.get(id(loop), frozenset({"content"}))
        is_content = isinstance(loop.iter, nodes.Name) and loop.iter.name in names
        if is_content or any(_leads_to(loop.iter, name, "content") for name in messages):
            _name_of(loop.target)
            yield True


def _parameters_with_content(tree: nodes.Template, macro: nodes.Macro, messages: list[str]) -> frozenset[str]:
    """Return the macro's parameters that some call gives a message's content."""
    parameters = [argument.name for argument in macro.args]
    found = set()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            given = [*zip(parameters, call.args, strict=False), *((word.key, word.value) for word in call.kwargs)]
            found |= {
                name
                for name, value in given
                if name in parameters and any(_leads_to(value, message, "content") for message in messages)
            }
    return frozenset(found)
