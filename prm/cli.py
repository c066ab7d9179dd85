"""The command ``prm``: subcommands are functions, and their signatures are the options.

A positional-only parameter of type ``list[str]`` takes one or more arguments, one of type ``str``
takes one; everything else is an option. A function that takes a single dataclass is configured by
its fields (``--config FILE`` reads them from YAML). Modules load when their command is used.

Data goes to stdout or ``--out``, progress and diagnostics to stderr. Exit status: 0 done, 1 bad
input or failed check, 2 wrong usage, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, get_type_hints

from prm.errors import PRMError, printable


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
    "shape": Command("prm.shaping.shape:shape", "blend process and terminal rewards"),
    "study": Command("prm.study.study:study", "train arms with RL and compare their robustness"),
    "eval steps": Command("prm.eval.evaluate_steps:evaluate_steps", "measure step scores"),
    "eval budget": Command(
        "prm.eval.evaluate_budget:evaluate_budget", "measure Pass@(K,T) and budget robustness"
    ),
    "eval hacking": Command(
        "prm.eval.evaluate_hacking:evaluate_hacking", "watch what a process reward pays for"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stderr is None:  # closed by the caller, who wants no messages
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        return _failed("standard output is closed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # help texts, in any locale
    try:
        with _sigterm():
            return _run(arguments)
    except PRMError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        print("prm: interrupted", file=sys.stderr)
        return 130
    except _Terminated:
        print("prm: terminated", file=sys.stderr)
        return 143
    except BrokenPipeError:
        # The reader of stdout left (`prm convert … | head`); keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _failed("out of memory")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(f"{where}{error.strerror or error}")


def _run(arguments: list[str]) -> int:
    name, rest = _split(arguments)
    if name is None:
        return _usage(arguments)
    run, (positional, keywords) = _parse(name, rest)
    run(*positional, **keywords)
    sys.stdout.flush()
    return 0


def _failed(sentence: str) -> int:
    print(f"prm: error: {printable(sentence)}", file=sys.stderr)
    return 1


class _Terminated(BaseException):
    """SIGTERM, which then cleans up as Ctrl-C does."""


@contextmanager
def _sigterm() -> Iterator[None]:
    """Raise :class:`_Terminated` on SIGTERM; only the main thread can."""

    def terminate(*_: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _split(arguments: list[str]) -> tuple[str | None, list[str]]:
    for length in (2, 1):
        name = " ".join(arguments[:length])
        if len(arguments) >= length and name in COMMANDS:
            return name, arguments[length:]
    return None, arguments


def _usage(arguments: list[str]) -> int:
    """Answer what is no command: the list of those that there are, or that begin with a word."""
    if arguments[:1] == ["--version"]:
        from prm import __version__

        print(__version__)
        return 0
    begun = [name for name in COMMANDS if name.split()[:1] == arguments[:1] and " " in name]
    asked = any(argument in ("-h", "--help") for argument in arguments[: 2 if begun else 1])
    lines = ["usage: prm COMMAND …", ""]
    lines += [f"  prm {name:<12} {COMMANDS[name].summary}" for name in begun or COMMANDS]
    lines += ["", "`prm COMMAND --help` lists the options of a command."]
    if arguments and not asked and not (begun and len(arguments) == 1):
        lines.insert(0, f"prm: unknown command {printable(' '.join(arguments[:2]))!r}")
    print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _parse(
    name: str, arguments: list[str]
) -> tuple[Callable[..., object], tuple[list[Any], dict[str, Any]]]:
    """The function of a command, with its positional and keyword arguments."""
    from docstring_parser import parse as parse_docstring
    from jsonargparse import set_parsing_settings

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    module, _, attribute = COMMANDS[name].home.partition(":")
    run: Callable[..., object] = getattr(importlib.import_module(module), attribute)
    parameters = inspect.signature(run).parameters.values()
    hints = get_type_hints(run)
    docs = parse_docstring(inspect.getdoc(run) or "")
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    shown = [f"{p.upper()} …" if hints[p] == list[str] else p.upper() for p in positional]
    parser = _parser(
        prog=f"prm {name}",
        usage=" ".join(["%(prog)s", *shown, "[--option VALUE …]"]),
        description=docs.description,
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


def _parser(**settings: Any) -> Any:
    """A parser whose help and errors spell options as people type them, with dashes."""
    from jsonargparse import ArgumentParser, DefaultHelpFormatter

    def dashed(text: str) -> str:
        return re.sub(r"--\w[\w.]*", lambda option: option[0].replace("_", "-"), text)

    class Formatter(DefaultHelpFormatter):
        def _format_action_invocation(self, action: Any) -> str:
            return dashed(super()._format_action_invocation(action))

    class Parser(ArgumentParser):
        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            flags = {action.dest: action.option_strings[:1] for action in self._actions}

            def flag(match: re.Match[str]) -> str:
                return "".join(flags.get(match[0], [])) or match[0]

            words = " ".join(message.split())
            words = re.sub(r'Parser key "([\w.]+)":', r"--\1:", words)
            # Of an optional value only what was expected is of use, not the types that were tried.
            words = re.sub(r"Does not validate against any of .*? Errors: - ", "", words)
            words = re.sub(r" - Expected a <class 'NoneType'>.*", "", words)
            words = re.sub(r"<class '(\w+)'>|typing\.", r"\1", words)
            head, required, names = words.partition("arguments are required: ")
            words = head + required + re.sub(r"[\w.]+", flag, names)
            self.print_usage(sys.stderr)
            self.exit(2, f"{self.prog}: error: {printable(dashed(words))}\n")

    return Parser(**settings, default_env=False, allow_abbrev=False, formatter_class=Formatter)


def _values(parser: Any, arguments: list[str], hints: Mapping[str, Any]) -> Any:
    """Parse, with the short forms that people expect of a command line.

    ``--max-length`` is ``--max_length``; a bare ``--json`` is true; an option of type ``list[str]``
    takes one value as it is, or several as ``[a, b]``, and adds up when it is repeated; one of type
    ``list[int]`` takes all numbers that follow it. Any other option may be given once. Whatever the
    order, an option wins over ``--config``, and a part (``--decoder.layers``) over its whole
    (``--decoder``).
    """
    flags = {name for name, hint in hints.items() if hint is bool}
    lists = {name for name, hint in hints.items() if hint in (list[str], list[str] | None)}
    numbers = {name for name, hint in hints.items() if hint in (list[int], list[int] | None)}
    others: list[str] = []
    given: dict[str, str] = {}
    words = arguments[::-1]
    while words:
        word = words.pop()
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if word == "--":
            others += [word, *reversed(words)]
            break
        if not word.startswith("--") or name.endswith("help") or name == "print_config":
            others.append(word)
            continue
        if name in flags and not equals:
            value = words.pop() if words and words[-1] in ("true", "false") else "true"
        elif not equals:
            if not words or words[-1].startswith("--"):
                parser.error(f"--{name}: expected a value")
            value = words.pop()
        if name in numbers and not value.startswith("["):
            more = [value]
            while words and re.fullmatch(r"-?\d+", words[-1]):
                more.append(words.pop())
            value = f"[{', '.join(more)}]"
        if name in lists:
            value = json.dumps(_items(given.get(name, "[]")) + _items(value))
        elif name in given:
            parser.error(f"--{name}: expected once, found twice")
        given[name] = value
    ranked = sorted(given, key=lambda name: (name != "config", name.count(".")))
    options = [f"--{name}={given[name]}" for name in ranked]
    try:
        parsed = parser.parse_args([*options, *others])
    except UnicodeDecodeError:
        parser.error("--config: expected a YAML file, found bytes that are no text")
    # A mapping of anything stays as it was written: its owner builds what it describes.
    plain = {n: _plain(parsed[n]) for n, hint in hints.items() if hint == dict[str, Any]}
    values = parser.instantiate(parsed)
    for name, mapping in plain.items():
        values[name] = mapping
    return values


def _plain(value: Any) -> Any:
    """jsonargparse's namespaces as dictionaries."""
    from jsonargparse import Namespace

    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _items(value: str) -> list[Any]:
    """The items of a list option: ``[a, b]``, or else one as it is."""
    import yaml

    try:
        items = yaml.safe_load(value) if value.startswith("[") else None
    except yaml.YAMLError:
        items = None  # a glob may begin with a bracket, too
    return items if isinstance(items, list) else [value]
