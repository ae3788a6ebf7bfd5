"""Signatures of handlers as text, and whether stored calls survive the change from one to another.

Only what binding looks at counts: order, names and kinds of parameters, and which of them have a default.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from inspect import Parameter, Signature

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class _Default:
    """Stands for any default."""

    def __repr__(self) -> str:
        return "..."


_DEFAULT = _Default()

#: A name that no parameter has.
_OTHER = "another name"


def as_text(signature: Signature) -> str:
    """Return a signature as Python writes it, without annotations, each default as ``...``."""
    plain = [
        parameter.replace(annotation=parameter.empty, default=_default(parameter.default is parameter.empty))
        for parameter in signature.parameters.values()
    ]
    return str(Signature(plain))


def from_text(text: str) -> Signature:
    """Return the signature that ``as_text`` made this of. Raises ValueError; nothing of it is run."""
    try:
        tree = ast.parse(f"def _ {text}: ...")
    except SyntaxError:
        tree = ast.Module([], [])
    match tree.body:
        case [ast.FunctionDef(args=arguments)]:
            return Signature(list(_parameters(arguments)))
    raise ValueError(f"{text!r} is no signature such as '(order_id, copies=...)'")


def breach(before: Signature, after: Signature) -> str | None:
    """Return why some call that fits one signature does not mean the same to another, or None.

    It does not if it does not bind, or if what was given by position would be taken for something else.
    """
    for number, names in _calls(before, after):
        if _misfit(before, number, names) is None:
            reason = _misfit(after, number, names)
            if reason is not None:
                return reason
    if _moved(before, after):
        return "what was given by position would be taken for another parameter"
    return None


def _default(required: bool) -> object:
    return Parameter.empty if required else _DEFAULT


def _parameters(arguments: ast.arguments) -> Iterator[Parameter]:
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    for place, argument in enumerate(plain):
        kind = _POSITIONAL[place >= len(arguments.posonlyargs)]
        yield Parameter(argument.arg, kind, default=_default(place < required))
    if arguments.vararg:
        yield Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield Parameter(argument.arg, Parameter.KEYWORD_ONLY, default=_default(default is None))
    if arguments.kwarg:
        yield Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD)


def _calls(before: Signature, after: Signature) -> Iterator[tuple[int, set[str]]]:
    """Yield calls that stand for all that fit ``before``: how many arguments by position, and which by name.

    For each number by position these are the call with the fewest names and the one with the most. Whatever
    is missing in any other one is missing in the first, and whatever is too much is too much in the second.
    """
    further = any(each.kind is Parameter.VAR_POSITIONAL for each in before.parameters.values())
    longest = max(len(_plain(before)), len(_plain(after))) + 1 if further else len(_plain(before))
    for number in range(longest + 1):
        given = set(_plain(before)[:number])
        left = [
            each for each in before.parameters.values() if each.kind in _BY_NAME and each.name not in given
        ]
        yield number, {each.name for each in left if each.default is each.empty}
        yield number, {each.name for each in left} | _further_names(before, after)


def _further_names(before: Signature, after: Signature) -> set[str]:
    """Return names beyond its parameters with which a signature may have been called, and that may matter."""
    if not any(each.kind is Parameter.VAR_KEYWORD for each in before.parameters.values()):
        return set()
    own = {each.name for each in before.parameters.values() if each.kind in _BY_NAME}
    return (set(after.parameters) | {_OTHER}) - own


def _misfit(signature: Signature, number: int, names: set[str]) -> str | None:
    try:
        signature.bind(*[None] * number, **dict.fromkeys(sorted(names)))
    except TypeError as error:
        return str(error)
    return None


def _moved(before: Signature, after: Signature) -> bool:
    """Whether a place among the positional parameters is another one's now; a new name for one is no move."""
    pairs = zip(_places(before, after), _places(after, before), strict=False)
    olds, news = _names(before), _names(after)
    return any(old != new and (old in news or new in olds) for old, new in pairs)


def _places(signature: Signature, other: Signature) -> list[str]:
    """Return what takes the first argument by position, the second, and so on; ``*``: any further one."""
    plain = _plain(signature)
    further = len(_plain(other)) + 1 - len(plain)
    return [*plain, *["*"] * further] if "*" in _names(signature) else plain


def _plain(signature: Signature) -> list[str]:
    return [each.name for each in signature.parameters.values() if each.kind in _POSITIONAL]


def _names(signature: Signature) -> set[str]:
    return {
        "*" if each.kind is Parameter.VAR_POSITIONAL else each.name for each in signature.parameters.values()
    }
