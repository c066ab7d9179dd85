"""Desk episodes as tokens: one line for each message, each ended by the token ``<end>``.

    Answer the question …<end>phone of the agent of Alder, Oslo? left=6<end>
    > search Alder<end>found r17 r42 left=5<end>
    I read r17. > read r17<end>r17 Oslo age=2 owner=r42 …<end>

What an assistant says comes before ``>``, its call after it. A line that makes no call that can be
read is speech alone, which costs its turn like any other mistake; a malformed call of another
agent is written that way too, so how exactly it was malformed is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prm.data.trace import Message, Trace, text_of
from prm.errors import PRMError
from prm.rl.desk import text
from prm.rl.desk.world import MAX_TURNS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END, PAD = "<end>", "<pad>"
_CALL = "> "
HANDLE = r"r\d\d"
"""What a record handle looks like."""
# A handle is one token wherever it stands, so that following a link is copying one token; what is
# decided in one piece (a thought, a tool, an age, the turns left) is one too. Digits go one by
# one: there are only ten to learn to copy.
_WORDS = "|".join(
    [
        r" ?> [a-z]+ ",
        r"\d\. [A-Za-z]+",
        HANDLE,
        r" (?=r\d\d\b)",
        r" (?:age|left)=\d+",
        r" of the [a-z]+",
        r"\d",
        r" ?[A-Za-z]+=?",
    ]
)


class DeskDialogue:
    """Turns desk messages into ids and ids into messages.

    Args:
        tokenizer: of :func:`desk_tokenizer`, or any that has the tokens ``<end>`` and ``<pad>``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        for token in (END, PAD):
            if token not in vocabulary:
                raise PRMError(f"tokenizer: expected the token {token}, which desk text needs")
        self.pad_id: int = vocabulary[PAD]
        self._end: int = vocabulary[END]
        self.stop_ids = frozenset({self._end})

    def prompt(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> list[int]:
        """Ids of the messages before the first step; the tools are the same in every episode."""
        return self._ids(messages)

    def follow(self, observations: Sequence[Message], *, stopped: bool) -> list[int]:
        """Ids that come after a step, before the next one."""
        return [*([] if stopped else [self._end]), *self._ids(observations)]

    def parse(self, ids: Sequence[int], turn: int) -> Message:
        """The assistant message that the ids of a step say."""
        written = list(ids[:-1] if ids and ids[-1] == self._end else ids)
        line = str(self.tokenizer.decode(written, clean_up_tokenization_spaces=False))
        content, mark, call = line.rpartition(_CALL)
        tool, blank, argument = call.partition(" ")
        if not mark or not blank or tool not in text.ARGUMENT:
            return {"role": "assistant", "content": line}
        said = content.removesuffix(" ") or None
        return text.call_message(text.Call(tool, argument), said, id=f"call_{turn}")

    def encode(self, trace: Trace) -> tuple[list[int], list[bool]]:
        """(L,) ids of a trace up to the end of its last step, and whether the agent wrote each."""
        ids = self._ids(trace.prompt())
        written = [False] * len(ids)
        for window in trace.windows():
            step, after = self._ids([window.action]), self._ids(window.observations)
            ids += [*step, *after]
            written += [*[True] * len(step), *[False] * len(after)]
        end = len(written) - written[::-1].index(True) if any(written) else len(written)
        return ids[:end], written[:end]

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        lines = self.tokenizer([line_of(message) for message in messages])["input_ids"]
        return [token for line in lines for token in [*line, self._end]] if messages else []


def line_of(message: Message) -> str:
    """A message as a line.

    >>> line_of(text.call_message(text.Call("read", "r17"), "I read r17."))
    'I read r17. > read r17'
    """
    said = text_of(message.get("content"))
    call = text.read_call(message) if message["role"] == "assistant" else ""
    if isinstance(call, str):
        return said
    return f"{said} {_CALL}{call.tool} {call.argument}" if said else f"{_CALL}{' '.join(call)}"


def desk_tokenizer(traces: Iterable[Trace], *, vocabulary: int = 1024) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of the lines of desk traces.

    Every handle (r00 to r99), every number of turns left and every system message is one token,
    other numbers go digit by digit, words are learned.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    traces = list(traces)
    bpe.train_from_iterator(_lines(traces), trainer)
    bpe.add_tokens(
        sorted(
            {
                line_of(message)
                for t in traces
                for message in t.messages
                if message["role"] == "system"
            }
        )
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token=PAD, eos_token=END)


def _lines(traces: Iterable[Trace]) -> Iterator[str]:
    """All handles and numbers first, so that rare ones are tokens too."""
    for number in range(100):
        yield from [f"r{number:02d}"] * 50
    for left in range(MAX_TURNS + 1):
        yield from [f" left={left}"] * 50
    for trace in traces:
        yield from map(line_of, trace.messages)
