r"""Episodes as tokens of any Hugging Face tokenizer whose chat template renders tool calls.

    <|im_start|>system … <|im_start|>assistant\n        prompt: the template's own text
    <tool_call>\n{"name": …}\n</tool_call><|im_end|>    step: what the model wrote, as it is
    \n<|im_start|>user\n<tool_response> … assistant\n   follow: what the template puts between

What comes between two steps is found as in TRL's GRPO trainer: a made-up conversation is rendered
with and without the observations, and the first, up to the end of its turn, is cut from the second.
So no step is ever rendered again: a template that would show the past otherwise (Qwen3's own, which
drops thoughts) is refused, and a variant that does not can be given in its place.

Text stays text: control tokens spelled out in a message or in a tool are read as the letters they
are made of. Which those are, transformers says: special tokens, and the others that the template
writes or that ``tokenizer.chat_control_tokens`` lists. (It marks them by the private-use characters
U+F0000 and U+F0001, which are dropped from texts.) Tokens that the model wrote stay tokens.

Left out: images; templates that need to know which call a result answers (gpt-oss, Gemma 4).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from prm.data.trace import Message, text_of, tool_calls
from prm.errors import PRMError
from prm.rl.environment import describe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ASKED: Message = {"role": "user", "content": "question"}
_SAID: Message = {"role": "assistant", "content": "speech"}


class _Head(NamedTuple):
    """A made-up conversation up to the token that ends its assistant message."""

    messages: list[Message]
    ids: list[int]


class ChatDialogue:
    """Turns the messages of any environment into ids by a chat template, and steps into messages.

    Args:
        tokenizer: its chat template renders tool calls and their results. How calls are read is
            said by its ``response_template``; where it has none, TRL knows it for common templates.
        eos_token_id: tokens that end a turn beside the tokenizer's own, as a generation config has
            them: ``model.generation_config.eos_token_id``.
        chat_template: rendered in place of the tokenizer's own. For Qwen3 and others that rewrite
            the past: ``trl.chat_template_utils.get_training_chat_template(tokenizer)``.
        options: variables of the template, such as ``{"enable_thinking": False}``.
        tools: schemas that give types to arguments written without any (XML, as in Qwen3.5, whose
            arguments are strings without them); arguments in JSON need none.

    Raises:
        PRMError: the template cannot be used so, or nothing says how calls are read.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos_token_id: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        options: Mapping[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.stop_ids = frozenset({*_listed(tokenizer.eos_token_id), *_listed(eos_token_id)})
        """The tokenizer's end of sequence and those of ``eos_token_id``."""
        self._options = dict(options or {})
        self._tools: Any = tools
        own = _own_template(tokenizer)
        self._template = chat_template or own
        self._reading = _with_all_text(_response_template(tokenizer, own))
        self._opening: str = self._render([_ASKED], add_generation_prompt=True, tokenize=False)
        self._called, self._spoken = self._head(_call("first")), self._head(_SAID)
        self._probe()

    def prompt(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> list[int]:
        """Ids of the prompt, up to where the first step begins.

        Raises:
            PRMError: the template cannot render the messages, or drops one.
        """
        self._check_shown(messages, tools)
        return self._ids(messages, tools, add_generation_prompt=True)

    def follow(self, observations: Sequence[Message], *, stopped: bool) -> list[int]:
        """Ids between a step and the next one; first the end of the turn if it is not ``stopped``.

        Raises:
            PRMError: the template cannot render the observations, or drops one.
        """
        answered = any(message["role"] == "tool" for message in observations)
        head = self._called if answered else self._spoken
        after = self._after(head, observations)
        return after if stopped else [head.ids[-1], *after]

    def parse(self, ids: Sequence[int], turn: int) -> Message:
        """The assistant message of a step.

        White space around the content is not part of it. A step is speech as a whole where any of
        its calls cannot be read, or where the end of a turn is spelled out in it.
        """
        written = list(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)
        return self._read(self._decode(written), turn)

    def _read(self, text: str, turn: int) -> Message:
        end = self._decode(self._spoken.ids[-1:])
        speech: Message = {"role": "assistant", "content": text}
        if end in text:
            return speech
        try:
            # With its end even if the step was cut: that is how the model is going to see it.
            parsed = self.tokenizer.parse_response(
                text + end, self._reading, prefix=self._opening, tools=self._tools
            )
            if any(end in text for text in parsed.values() if isinstance(text, str)):
                return speech  # it was cut before the part that the end belongs to
            return _message(parsed, turn)
        except Exception:  # whatever a response template makes of any text
            return speech

    def _probe(self) -> None:
        """Find out now what would go wrong in the middle of an episode."""
        for head in (self._called, self._spoken):
            reply = head.messages[-1]
            shown: str = self._render(head.messages, tokenize=False)
            if not shown.startswith(self._opening):
                raise PRMError(
                    f"chat template: expected an assistant message to begin as the generation "
                    f"prompt does, found {shown[-80:]!r} after {self._opening[-80:]!r}"
                )
            step = shown[len(self._opening) :].rpartition(self._decode(head.ids[-1:]))[0]
            found = self._read(step, 0)
            if found != reply:
                raise PRMError(
                    f"response template: expected it to read {step!r} as {reply}, found {found}"
                )
        results = [_result("one"), _result("two")]
        self._after(self._spoken, [_ASKED])
        self._after(self._called, results)
        if self._after(self._called, results[:1]) != self._after(
            self._head(_call("second")), results[:1]
        ):
            raise PRMError(
                "chat template: expected the result of a call to be rendered whatever the name of "
                "the call, found another rendering for another name"
            )

    def _head(self, reply: Message) -> _Head:
        messages = [_ASKED, reply]
        ids = self._ids(messages)
        ends = [index for index, token in enumerate(ids) if token in self.stop_ids]
        rest = self._decode(ids[ends[-1] + 1 :] if ends else ids)
        if rest.strip():
            stops = [self._decode([token]) for token in sorted(self.stop_ids)]
            raise PRMError(
                f"chat template: expected an assistant message to end with a token that ends a "
                f"turn ({', '.join(stops) or 'none is known'}), found {rest[-80:]!r} (give others "
                f"as eos_token_id)"
            )
        return _Head(messages, ids[: ends[-1] + 1])

    def _after(self, head: _Head, observations: Sequence[Message]) -> list[int]:
        messages = [*head.messages, *observations]
        self._check_shown(messages)
        ids = self._ids(messages, add_generation_prompt=True)
        if ids[: len(head.ids)] != head.ids:
            raise PRMError(
                "chat template: expected an assistant message to be rendered alike whatever comes "
                "after it, found that it is rewritten (for common models, give chat_template="
                "trl.chat_template_utils.get_training_chat_template(tokenizer))"
            )
        return ids[len(head.ids) :]

    def _check_shown(
        self, messages: Sequence[Message], tools: list[dict[str, Any]] | None = None
    ) -> None:
        """Raise where the template drops what a message says."""
        marks = {i: f"mark{i}mark" for i, m in enumerate(messages) if text_of(m.get("content"))}
        marked = [{**m, "content": marks.get(i, "")} for i, m in enumerate(messages)]
        shown: str = self._render(marked, tools, tokenize=False)
        for index, mark in marks.items():
            if mark not in shown:
                raise PRMError(
                    f"chat template: expected all messages to be rendered, found that the content "
                    f"of message {index} of {len(messages)} ({messages[index]['role']}) is dropped"
                )

    def _ids(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, Any]] | None = None,
        **how: Any,
    ) -> list[int]:
        return list(
            self._render(messages, tools, return_dict=False, sanitize_control_tokens=True, **how)
        )

    def _render(
        self,
        messages: Sequence[Message],
        tools: Any = None,
        **how: Any,
    ) -> Any:
        try:
            return self.tokenizer.apply_chat_template(
                [_rendered(message) for message in messages],
                tools=tools or None,  # Llama's template announces an empty list of tools.
                chat_template=self._template,
                **self._options,
                **how,
            )
        except Exception as error:  # A template is a program of its own.
            raise PRMError(f"chat template: it cannot be rendered: {describe(error)}") from error

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _listed(ids: int | Sequence[int] | None) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)


def _own_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokenizer's template; of several, the one for tools."""
    if tokenizer.chat_template is None:
        raise PRMError("tokenizer: expected one with a chat template, found none")
    return str(tokenizer.get_chat_template(tools=[]))


def _response_template(tokenizer: PreTrainedTokenizerBase, template: str) -> dict[str, Any]:
    """How steps are read: by the tokenizer's word, or TRL's for a template that it knows."""
    if tokenizer.response_template is not None:
        return dict(tokenizer.response_template)
    try:
        from trl.chat_template_utils import add_response_schema
    except ImportError as error:
        raise PRMError(
            "tokenizer: expected one with a response_template, found none (TRL knows those of "
            "common models: pip install 'stepwise-prm[trl]')"
        ) from error
    known: Any = SimpleNamespace(chat_template=template)
    try:
        add_response_schema(known)
    except ValueError as error:
        raise PRMError(
            "tokenizer: expected one with a response_template, or with a chat template that TRL "
            "knows, found neither (set tokenizer.response_template)"
        ) from error
    return dict(known.response_template)


def _with_all_text(template: dict[str, Any]) -> dict[str, Any]:
    """A response template that keeps all of the text; of several pieces, most keep the last."""
    template = copy.deepcopy(template)
    for field in template["fields"].values():
        if field.get("content", "text") == "text" and "transform" not in field:
            field |= {"repeats": True, "join": "", "content_args": {"strip": False}}
    return template


def _rendered(message: Message) -> Message:
    """A message as templates take it: content is text, arguments are objects."""
    rendered = {**message, "content": text_of(message.get("content"))}
    for key in ("tool_calls", "function_call"):
        rendered.pop(key, None)
    if calls := [_with_object(call) for call in tool_calls(message)]:
        rendered["tool_calls"] = calls
    return rendered


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    """A call with its arguments as an object, where they are one."""
    function = call.get("function") or {}
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _message(parsed: dict[str, Any], turn: int) -> Message:
    """The message of a parsed step; raises where it is no well-formed record."""
    calls = parsed.get("tool_calls") or []
    texts = {key: parsed[key].strip() for key in parsed if key not in ("role", "tool_calls")}
    content = texts.pop("content", "")
    message: Message = {"role": "assistant", "content": content}
    message |= {key: text for key, text in texts.items() if text}
    if calls:
        ids = [f"call_{turn}_{index}" for index in range(len(calls))]
        message["content"] = content or None
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": _function(**call["function"])}
            for id, call in zip(ids if len(ids) > 1 else [f"call_{turn}"], calls, strict=True)
        ]
        json.dumps(message, ensure_ascii=False).encode()  # Half a surrogate pair is no text.
    return message


def _function(name: str, arguments: Any = None) -> dict[str, str]:
    """A called function with its arguments as a JSON string; a call may be without any."""
    if not isinstance(name, str):
        raise TypeError
    if not isinstance(arguments, str):
        arguments = json.dumps(
            {} if arguments is None else arguments, ensure_ascii=False, allow_nan=False
        )
    return {"name": name, "arguments": arguments}


def _call(name: str) -> Message:
    function = {"name": name, "arguments": '{"key": "value"}'}
    call = {"id": "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _result(content: str) -> Message:
    return {"role": "tool", "tool_call_id": "call_0", "content": content}
