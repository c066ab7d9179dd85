"""Environments whose methods are tools, as an ``Environment`` of many episodes side by side.

``ToolEnvironment`` plays classes of the shape that TRL's ``environment_factory`` takes (TRL 1.16,
``trl/trainer/grpo_trainer.py``): ``reset(**row)`` begins an episode and may return text for the
prompt, public methods are tools, ``get_reward()`` pays. Calls are found, executed and answered as
``GRPOTrainer._tool_call_loop`` does it.

Left out: coroutines as methods, tools that answer with images, a dictionary of factories (all
episodes of an ``Environment`` have the same tools), and episodes stepped in parallel.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_template_utils import get_json_schema

from prm.data.formats.record import content_id
from prm.data.shapes import Problem, message_problems
from prm.data.trace import Message, tool_calls
from prm.errors import PRMError, RecordError
from prm.rl.environment import describe
from prm.rl.instances import Episode, InstanceEnvironment, finite_reward, made


@dataclass(frozen=True)
class ToolTask:
    """A row of a dataset, as the task of an episode.

    Raises :class:`RecordError` for an empty id, and for a prompt that is neither text nor messages
    of text.

    >>> ToolTask("r1", {"prompt": "How deep is the well?", "depth": 7}).messages
    [{'role': 'user', 'content': 'How deep is the well?'}]
    """

    id: str
    columns: Mapping[str, Any]
    """What ``reset`` is given as keyword arguments: all columns, the prompt too."""

    def __post_init__(self) -> None:
        for path, expected, found in self._problems():
            raise RecordError(f"task {self.id!r}", path=path, expected=expected, found=found)

    @property
    def messages(self) -> list[Message]:
        """The prompt: its messages, text as a user message, and one of no text if there is none."""
        prompt = self.columns.get("prompt", "")
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)

    def _problems(self) -> Iterator[Problem]:
        if not self.id:
            yield "$.id", "a string that is not empty", "an empty one"
        prompt = self.columns.get("prompt", "")
        if not isinstance(prompt, (str, list)):
            yield "$.prompt", "text or a list of messages", type(prompt).__name__
            return
        if prompt == []:
            yield "$.prompt", "a message at least", "none"
        for index, message in enumerate(self.messages):
            path = f"$.prompt[{index}]"
            if not isinstance(message, dict):
                yield path, "an object", type(message).__name__
                return
            yield from message_problems(path, message)
            content, last = message.get("content"), index == len(prompt) - 1
            if not isinstance(content, str) and (last or content is not None):
                yield f"{path}.content", "text", type(content).__name__


def tool_tasks(
    rows: Iterable[Mapping[str, Any]], *, id_column: str | None = None
) -> list[ToolTask]:
    """The rows of a dataset as tasks.

    Args:
        rows: a 🤗 ``Dataset`` or any other iterable of mappings.
        id_column: the column that names a row; if None, the id is a hash of the row.

    Raises :class:`PRMError` when ids are absent, empty or repeated, when a row has no hash because
    it is no JSON, and for what :class:`ToolTask` refuses.

    >>> rows = [{"prompt": "Knock.", "n": 2}, {"prompt": "Knock.", "n": 3}]
    >>> [task.id for task in tool_tasks(rows)]
    ['bb4892544f8f09a5', '047782e6085093ab']
    >>> [task.id for task in tool_tasks(rows, id_column="n")]
    ['2', '3']
    """
    tasks: dict[str, ToolTask] = {}
    for number, row in enumerate(rows):
        name = _row_id(number, row, id_column)
        if name in tasks:
            raise RecordError(
                f"row {number}",
                expected="an id of its own",
                found=f"{name!r}, the id of row {list(tasks).index(name)}",
                why="rows that are equal need a column of ids" if id_column is None else None,
            )
        tasks[name] = ToolTask(name, dict(row))
    return list(tasks.values())


def _row_id(number: int, row: Mapping[str, Any], id_column: str | None) -> str:
    if id_column is None:
        try:
            return content_id(dict(row))
        except (TypeError, ValueError) as error:
            raise PRMError(
                f"row {number}: no id can be made of its columns ({error}): name a column of ids "
                f"with id_column"
            ) from None
    value = row.get(id_column)
    if not isinstance(value, (str, int)) or value == "":
        expected = "an id (text or a whole number)"
        raise RecordError(
            f"row {number}", path=f"$.{id_column}", expected=expected, found=repr(value)
        )
    return str(value)


RewardEpisode = Callable[[Any, ToolTask, list[Message]], float]
"""From the instance, the task and all messages of an episode that has ended to its reward."""


class ToolEnvironment(InstanceEnvironment[ToolTask, Any]):
    """B episodes of a class whose public methods are tools.

    An assistant message without a tool call terminates its episode. All calls of a message are
    executed in their order, also in the last turn, and answered by a tool message each. A tool that
    raises, a tool that is not there and arguments that do not fit are answered with
    ``{'error': …}``, and cost the turn. The reward is paid once, on the last step, whether the
    episode terminated or was truncated. What the agent is not to blame for breaks the episode: a
    reward that raises or is not finite, and a tool that returns a list, which TRL takes for images.

    ``reset`` is given the columns of the row; its text is appended to the last message of the
    prompt. If it has parameters named ``max_turns`` or ``sample``, it is told these too: sample k
    of a task differs from sample 0 by what the class makes of that number, or draws by itself.

    Args:
        factory: makes an instance; instances are reset again and again, as TRL does it.
        reward: pays in place of ``get_reward``.

    Raises:
        PRMError: no instance can be made, it has no ``reset`` or nothing pays, a method is a
            coroutine, or a tool has no schema because a type or a description is missing.

    >>> class Door:
    ...     def reset(self, knocks: int) -> str:
    ...         self.left = knocks
    ...         return f" Knock {knocks} times."
    ...     def knock(self) -> str:
    ...         "Knock at the door."
    ...         self.left -= 1
    ...         return "It opens." if self.left == 0 else "Nothing happens."
    ...     def get_reward(self) -> float:
    ...         return float(self.left == 0)
    >>> doors = ToolEnvironment(Door)
    >>> doors.reset([ToolTask("once", {"knocks": 1})], [5], [0]).messages
    [[{'role': 'user', 'content': ' Knock 1 times.'}]]
    >>> knock = {"type": "function", "function": {"name": "knock", "arguments": "{}"}}
    >>> doors.step([{"role": "assistant", "tool_calls": [knock]}]).observations
    [[{'role': 'tool', 'name': 'knock', 'content': 'It opens.'}]]
    >>> doors.step([{"role": "assistant", "content": "Done."}]).rewards
    array([1.])
    """

    def __init__(self, factory: Callable[[], Any], *, reward: RewardEpisode | None = None) -> None:
        first = made(factory)
        kind, methods = type(first).__name__, _methods(first)
        for name, method in methods.items():
            if inspect.iscoroutinefunction(method) and not name.startswith("_"):
                raise PRMError(f"{kind}.{name}: expected a plain method, found a coroutine")
        if "reset" not in methods:
            raise PRMError(f"{kind}: expected a method reset, found none")
        if reward is None and "get_reward" not in methods:
            raise PRMError(
                f"{kind}: expected a method get_reward or a function reward, found neither: all "
                f"episodes would be worth the same"
            )
        super().__init__(factory, [_schema(kind, tool) for tool in _tools(first).values()])
        self._instances[0] = first
        self._reward = reward

    def _begin(self, instance: Any, task: ToolTask, max_turns: int, sample: int) -> Episode:
        told = {"max_turns": max_turns, "sample": sample}
        told = {name: told[name] for name in told if name in _parameters(instance.reset)}
        for name in told:
            if name in task.columns:
                raise PRMError(f"the row has a column {name}, which is told by the environment")
        text = instance.reset(**task.columns, **told)
        if not isinstance(text, (str, type(None))):
            raise PRMError(f"expected reset to return text or None, found {type(text).__name__}")
        *before, last = task.messages
        prompt = [*before, last if text is None else {**last, "content": last["content"] + text}]
        return _ToolEpisode(prompt, max_turns, instance, task, self._reward)


class _ToolEpisode(Episode):
    def __init__(
        self,
        prompt: list[Message],
        max_turns: int,
        instance: Any,
        task: ToolTask,
        reward: RewardEpisode | None,
    ) -> None:
        super().__init__(prompt, max_turns)
        self._instance, self._task, self._reward = instance, task, reward
        self._tools = _tools(instance)
        self._messages = list(prompt)

    def act(self, action: Message) -> tuple[list[Message], float]:
        calls = tool_calls(action)
        self.terminated = not calls
        answers = [self._answer(call) for call in calls]
        self._messages += [action, *answers]
        if not self.ended:
            return answers, 0.0
        if self._reward is None:
            return answers, finite_reward(self._instance.get_reward())
        return answers, finite_reward(self._reward(self._instance, self._task, self._messages))

    def _answer(self, call: Mapping[str, Any]) -> Message:
        """The tool message that answers a call."""
        function = call.get("function") or {}
        name = function.get("name") or call.get("name") or "unknown"
        kind = call.get("type") or "function"
        try:
            if kind != "function":
                raise ValueError(f"Unsupported tool call type: {kind}")
            if name not in self._tools:
                raise ValueError(f"Tool {name} not found.")
            result = self._tools[name](**_arguments(function.get("arguments")))
        except Exception as error:
            result = {"error": str(error)}
        if isinstance(result, list):
            raise PRMError(f"tool {name}: expected a result other than a list (TRL's for images)")
        id = {} if call.get("id") is None else {"tool_call_id": call["id"]}
        return {"role": "tool", **id, "name": name, "content": str(result)}


def _arguments(given: Any) -> dict[str, Any]:
    """The keyword arguments of a call: an object, or its JSON as OpenAI has it."""
    # A copy, so that a tool that changes what it is given does not change what the agent said.
    arguments = json.loads(given) if isinstance(given, str) else copy.deepcopy(given)
    if not isinstance(arguments, dict):
        raise TypeError(f"Arguments must be a JSON object, not {type(arguments).__name__}")
    return arguments


def _methods(instance: Any) -> dict[str, Callable[..., Any]]:
    """The methods of an instance by name; of its class, so that no property is evaluated."""
    functions = inspect.getmembers(type(instance), predicate=inspect.isfunction)
    return {name: getattr(instance, name) for name, _ in functions}


def _tools(instance: Any) -> dict[str, Callable[..., Any]]:
    return {
        method.__name__: method
        for name, method in _methods(instance).items()
        if name not in ("reset", "get_reward") and not name.startswith("_")
    }


def _schema(kind: str, tool: Callable[..., Any]) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = get_json_schema(tool)
    except Exception as error:
        raise PRMError(f"{kind}.{tool.__name__}: it has no schema: {describe(error)}") from error
    return schema


def _parameters(function: Callable[..., Any]) -> set[str]:
    """The parameters that a function has by name."""
    return set(inspect.signature(function).parameters)
