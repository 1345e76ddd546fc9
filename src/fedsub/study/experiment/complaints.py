"""What is wrong with a configuration, in sentences that say where, what was seen and what is expected."""

from __future__ import annotations

import json
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedsub.errors import nearest


def explain(error: ValidationError, origin: str, root: type[BaseModel]) -> str:
    """All complaints about a configuration of the form ``root``, a line each."""
    lines: dict[str, str] = {}
    for item in error.errors(include_url=False):
        path, annotation = _follow(item["loc"], root)
        name = ".".join(path)
        if item["type"] == "extra_forbidden":
            lines[name] = f"there is no setting {name!r}; {_nearest(path, root)}"
        elif item["type"] == "missing":
            lines[name] = f"{name} is missing; give {' or '.join(words(annotation))}."
        elif item["type"] == "value_error":
            said = item["msg"].removeprefix("Value error, ")
            lines[name] = f"{name}: {said}." if name else f"{said}."
        elif item["type"] in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
            wanted = item["msg"].removeprefix("Input should be ")
            lines[name] = f"{name} is {show(item['input'])}, expected a number {wanted}."
        else:
            expected = " or ".join(words(annotation))
            lines.setdefault(name, f"{name} is {show(item['input'])}, expected {expected}.")
    # Of a setting that may be a number or a table, what is wrong within the table says it all.
    kept = [line for name, line in lines.items() if not any(other.startswith(f"{name}.") for other in lines)]
    return f"{origin}: " + "\n".join(kept)


def _follow(loc: tuple[int | str, ...], root: type[BaseModel]) -> tuple[list[str], Any]:
    """The part of pydantic's location that is a path of ours (the rest names union members), and its type."""
    path: list[str] = []
    annotation: Any = root
    for step in loc:
        if _several(annotation) and (section := _section(annotation)):
            if step != section.__name__:
                break
            annotation = section
        elif section := _section(annotation):
            path.append(str(step))
            field = section.model_fields.get(str(step))
            if field is None:
                break
            annotation = field.annotation
        elif get_origin(annotation) is dict:  # a method's label
            path.append(str(step))
            annotation = get_args(annotation)[1]
        else:
            break
    return path, annotation


def _several(annotation: Any) -> bool:
    """Whether it may be one thing or another, so that pydantic names which one it tried."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    return len([member for member in members if member is not NoneType]) > 1


def _section(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) in (Union, UnionType):  # one that may be left out
        annotation = next((part for part in get_args(annotation) if _section(part)), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _of_table(annotation: Any) -> type[BaseModel] | None:
    """The type of what a table holds under names of the user's own."""
    return _section(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def _nearest(path: list[str], root: type[BaseModel]) -> str:
    """The setting that was probably meant: one of the same name elsewhere, or a similar one here."""
    sections = {name: s for name, f in root.model_fields.items() if (s := _section(f.annotation))}
    for name, section in sections.items():
        if path[-1] in section.model_fields and len(path) <= 2:
            return f"did you mean '{name}.{path[-1]}'?"
    own = root
    for step in path[:-1]:
        if step in own.model_fields:  # else it is a name that the user chose
            own = _section(own.model_fields[step].annotation) or _of_table(own.model_fields[step].annotation) or own
    prefix = "".join(f"{step}." for step in path[:-1])
    return nearest(".".join(path), [prefix + field for field in own.model_fields])


def words(annotation: Any) -> list[str]:
    """What a type is called in a sentence."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return words(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [w for part in get_args(annotation) for w in words(part)]
    if origin is Literal:
        return [", ".join(f'"{choice}"' for choice in get_args(annotation))]
    if origin is list:
        return [f"a list of {'whole numbers' if get_args(annotation)[0] is int else 'names'}"]
    if origin is dict or _section(annotation):
        return ["a table"]
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: None}
    word = names.get(annotation, str(annotation))
    return [word] if word else []


def show(value: Any) -> str:
    """A value as the user wrote it, shortened."""
    if isinstance(value, str):
        return f"the text {value!r}"
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
