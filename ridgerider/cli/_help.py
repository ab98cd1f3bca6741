"""How commands speak: of switches without a type, and in errors of options as they are typed."""

import re
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from ridgerider.cli._errors import is_of_user

# Options that have another name where they are checked: the field of a rule, or an argument.
FIELDS = {"size": "step_size"}


class Command(TyperCommand):
    """A command whose switches are shown without a type, and whose errors name its options."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            if error.args and not is_of_user(error):
                error.args = (with_option(str(error), self.params), *error.args[1:])
            raise


def with_option(sentence: str, params: Iterable[Any]) -> str:
    """A sentence about an argument as one about the option that sets it."""
    options = {one.name: one.opts[0] for one in params if one.param_type_name == "option"}

    def typed(found: re.Match[str]) -> str:
        name = options.get(FIELDS.get(found[1], found[1]))
        return found[0] if name is None else f"`{name}`"

    return re.sub(r"\A`(\w+)`", typed, sentence)


class Group(TyperGroup):
    """The same for the command as a whole."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


def _plain(params: list[Any]) -> list[Any]:
    for one in params:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return params
