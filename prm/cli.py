"""The command ``prm``: subcommands are functions, and their signatures are the options.

A positional-only parameter of type ``list[str]`` takes one or more arguments, one of type ``str``
takes one; everything else is an option. A function that takes a single dataclass is configured by
its fields (``--config FILE`` reads them from YAML). Modules load when their command is used.

Data goes to stdout or ``--out``, progress and diagnostics to stderr. Exit status: 0 done, 1 bad
input or failed check, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

from prm.errors import PRMError


class Command(NamedTuple):
    """Where a subcommand lives and what it is for."""

    home: str
    summary: str


COMMANDS = {
    "convert": Command("prm.data.convert:convert", "read any trace format, write trace records"),
    "split": Command("prm.data.split:split", "split traces by task"),
    "label": Command("prm.data.labels:label", "annotate the steps of traces"),
    "generate": Command("prm.rl.generate:generate", "write the traces of an embedded environment"),
    "train": Command("prm.training.train:train", "train a step reward model"),
    "score": Command("prm.scoring.score:score", "score every step of traces"),
    "eval steps": Command("prm.eval.evaluate_steps:evaluate_steps", "measure step scores"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        name, rest = _split(arguments)
        if name is None:
            return _usage(arguments)
        run, values = _parse(name, rest)
        run(*values[0], **values[1])
        sys.stdout.flush()
    except PRMError as error:
        print(f"prm: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prm: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of stdout left (`prm convert … | head`); keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"prm: error: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _split(arguments: list[str]) -> tuple[str | None, list[str]]:
    for length in (2, 1):
        name = " ".join(arguments[:length])
        if len(arguments) >= length and name in COMMANDS:
            return name, arguments[length:]
    return None, arguments


def _usage(arguments: list[str]) -> int:
    lines = ["usage: prm COMMAND …", ""]
    lines += [f"  prm {name:<12} {command.summary}" for name, command in COMMANDS.items()]
    lines += ["", "`prm COMMAND --help` lists the options of a command."]
    asked = not arguments or arguments[0] in ("-h", "--help")
    if arguments and arguments[0] == "--version":
        from prm import __version__

        print(__version__)
        return 0
    if not asked:
        lines.insert(0, f"prm: unknown command {' '.join(arguments[:2])!r}")
    print("\n".join(lines), file=sys.stdout if asked and arguments else sys.stderr)
    return 0 if asked and arguments else 2


def _parse(
    name: str, arguments: list[str]
) -> tuple[Callable[..., object], tuple[list[Any], dict[str, Any]]]:
    """The function of a command, with its positional and keyword arguments."""
    from docstring_parser import parse as parse_docstring
    from jsonargparse import ArgumentParser, set_parsing_settings

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    module, _, attribute = COMMANDS[name].home.partition(":")
    run: Callable[..., object] = getattr(importlib.import_module(module), attribute)
    parameters = inspect.signature(run).parameters.values()
    hints = get_type_hints(run)
    docs = parse_docstring(inspect.getdoc(run) or "")
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    shown = [f"{p.upper()} …" if hints[p] == list[str] else p.upper() for p in positional]
    parser = ArgumentParser(
        prog=f"prm {name}",
        usage=" ".join(["%(prog)s", *shown, "[--option VALUE …]"]),
        description=docs.description,
        default_env=False,
    )
    parser.add_argument("--config", action="config", help="YAML file with values for the options")

    configured = [hints[p.name] for p in parameters if dataclasses.is_dataclass(hints[p.name])]
    if configured:
        (config,) = configured
        parser.add_class_arguments(config, None, sub_configs=True)
        parsed = _values(parser, arguments, get_type_hints(config))
        return run, ([config(**{f.name: parsed[f.name] for f in dataclasses.fields(config)})], {})

    texts = {each.arg_name: each.description for each in docs.params}
    for parameter in positional:
        many = "+" if hints[parameter] == list[str] else None
        parser.add_argument(
            parameter, type=str, nargs=many, metavar=parameter.upper(), help=texts.get(parameter)
        )
    parser.add_function_arguments(run, skip=set(positional), sub_configs=True)
    parsed = _values(parser, arguments, hints)
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return run, ([parsed[p] for p in positional], {k: parsed[k] for k in keywords})


def _values(parser: Any, arguments: list[str], hints: Mapping[str, Any]) -> Any:
    """Parse, with the short forms that people expect of a command line.

    ``--max-length`` is ``--max_length``; a bare ``--json`` is true; an option of type ``list[str]``
    takes one value as it is, or several as ``[a, b]``.
    """
    flags = {name for name, hint in hints.items() if hint is bool}
    lists = {name for name, hint in hints.items() if hint in (list[str], list[str] | None)}
    spelled: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        before = spelled[-1] if spelled else ""
        if name.startswith("--"):
            if before[2:] in flags:
                spelled[-1] += "=true"
            name = "--" + name[2:].replace("-", "_")
            if equals and name[2:] in lists and not value.startswith("["):
                value = json.dumps([value])
            argument = name + equals + value
        elif before.startswith("--") and before[2:] in lists and not argument.startswith("["):
            argument = json.dumps([argument])
        elif before[2:] in flags and argument not in ("true", "false"):
            spelled[-1] += "=true"
        spelled.append(argument)
    if spelled and spelled[-1].startswith("--") and spelled[-1][2:] in flags:
        spelled[-1] += "=true"
    return parser.instantiate(parser.parse_args(spelled))
