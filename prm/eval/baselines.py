"""What a step reward model has to beat: baselines fitted on other tasks than those they score.

* ``constant``: the base rate of the labels.
* ``position``: logistic regression on the number i of the step, as i, ln(1 + i) and i = 0.
* ``length``: the same on ln(1 + n) of the characters n of the prompt, of everything since, and of
  the action.
* ``tfidf``: logistic regression on TF-IDF of the words (1- and 2-grams) of the prompt, the previous
  action, its observations and the action, of the characters (3- to 5-grams) of the action, and on
  the features of ``position``.

Like a step reward model, none sees anything after the action it scores; so the length of the
*whole* trace, which gives the outcome away, is left out. The TF-IDF settings were chosen once, by
cross-validation over the training tasks of the InterCode SQL logs, and are not fitted to the data
at hand. Words are hashed: features of a trace depend on that trace alone, and are computed once
for all folds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from prm.data.trace import Message, Trace, text_of, tool_calls
from prm.errors import PRMError
from prm.eval.steps import Floats

N_FOLDS = 5
HASH_COLUMNS = 2**18
"""Columns a text block; on InterCode as good as an exact vocabulary."""
REGULARISATION = 3.0
"""C of the logistic regression on text; 1, 3 and 10 were compared."""
WORDS = {"ngram_range": (1, 2), "token_pattern": r"(?u)\w+|[^\w\s]"}
"""Single characters of punctuation are words, because code and arguments live by them."""
CHARACTERS = {"analyzer": "char_wb", "ngram_range": (3, 5)}
TEXT_BLOCKS = (WORDS, WORDS, WORDS, WORDS, CHARACTERS)
N_TEXT_COLUMNS = HASH_COLUMNS * len(TEXT_BLOCKS)


class Baseline(NamedTuple):
    """A classifier of steps."""

    features: Callable[[Sequence[Trace]], Any]
    """B traces -> (M, D) array or sparse matrix, one row a step."""
    classifier: Callable[[], Any]
    """A new classifier with ``fit`` and ``predict_proba``, as scikit-learn has them."""


def score_out_of_fold(name: str, traces: Sequence[Trace], positive: Floats) -> Floats:
    """(M,) probabilities, each from a fit on the other tasks (``GroupKFold``, 5 folds by task).

    ``positive`` is (M,) for the steps of all traces in order: 1.0, 0.0, or NaN, which is scored
    but not learned from. ``constant`` has nothing to overfit and is the base rate of ``positive``
    itself: fitted on other folds it would rank the folds the wrong way round. Raises
    :class:`PRMError` with fewer than 2 tasks, or when a fold leaves one class only.
    """
    from sklearn.model_selection import GroupKFold

    if name == "constant":
        return np.full(len(positive), np.nanmean(positive))
    task = np.repeat([trace.task_id for trace in traces], [trace.n_steps for trace in traces])
    n_tasks = len(set(task.tolist()))
    if n_tasks < 2:
        raise PRMError(
            f"baselines are fitted on other tasks than they score, which needs at least 2 tasks; "
            f"found {n_tasks} (give --train FILE)"
        )
    features = BASELINES[name].features(traces)
    probability = np.empty(len(positive))
    for fit, held_out in GroupKFold(min(N_FOLDS, n_tasks)).split(task, groups=task):
        classifier = _fit(name, features[fit], positive[fit], "a fold of the scored traces")
        probability[held_out] = classifier.predict_proba(features[held_out])[:, 1]
    return probability


def score_from_training(
    name: str, traces: Sequence[Trace], train: Sequence[Trace], train_positive: Floats
) -> Floats:
    """(M,) probabilities for the steps of ``traces``, from one fit on ``train``.

    ``train_positive`` is as in :func:`score_out_of_fold`, for the steps of ``train``. Raises
    :class:`PRMError` when it has one class only.
    """
    features = BASELINES[name].features
    classifier = _fit(name, features(train), train_positive, "the training file")
    probability: Floats = classifier.predict_proba(features(traces))[:, 1]
    return probability


def _fit(name: str, features: Any, positive: Floats, where: str) -> Any:
    labelled = ~np.isnan(positive)
    classes = np.unique(positive[labelled])
    if len(classes) < 2:
        found = f"only {'positive' if classes else 'negative'} ones" if len(classes) else "none"
        raise PRMError(
            f"the {name} baseline learns from positive and negative labels, but {where} has {found}"
        )
    return BASELINES[name].classifier().fit(features[labelled], positive[labelled])


def _no_features(traces: Sequence[Trace]) -> Floats:
    return np.zeros((sum(trace.n_steps for trace in traces), 1))


def _position(traces: Sequence[Trace]) -> Floats:
    index = np.concatenate([np.arange(trace.n_steps) for trace in traces])
    return np.stack([index / 10, np.log1p(index), index == 0], axis=1)


def _length(traces: Sequence[Trace]) -> Floats:
    rows = []
    for trace in traces:
        prompt = sum(len(message_text(message)) for message in trace.prompt())
        since = 0
        for window in trace.windows():
            action = len(message_text(window.action))
            rows.append((prompt, since, action))
            since += action + sum(len(message_text(message)) for message in window.observations)
    return np.log1p(np.array(rows, dtype=np.float64))


def _text_and_position(traces: Sequence[Trace]) -> Any:
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import HashingVectorizer

    prompts, previous, observations, actions = [], [], [], []
    for trace in traces:
        prompt = _joined(trace.prompt())
        last_action = last_observations = ""
        for window in trace.windows():
            action = message_text(window.action)
            prompts.append(prompt)
            previous.append(last_action)
            observations.append(last_observations)
            actions.append(action)
            last_action, last_observations = action, _joined(window.observations)
    blocks = [
        HashingVectorizer(
            n_features=HASH_COLUMNS,
            alternate_sign=False,
            norm=None,
            dtype=np.float32,
            preprocessor=_preprocessed,
            **settings,
        ).transform(texts)
        for settings, texts in zip(
            TEXT_BLOCKS, (prompts, previous, observations, actions, actions), strict=True
        )
    ]
    position = csr_matrix(_position(traces).astype(np.float32))
    return hstack([*blocks, position], format="csr")


def message_text(message: Message) -> str:
    """The content of a message and its tool calls, as the model would have to write them.

    >>> call = {"type": "function", "function": {"name": "get", "arguments": '{"id": 7}'}}
    >>> message_text({"role": "assistant", "content": "Look.", "tool_calls": [call]})
    'Look. get {"id": 7}'
    """
    parts = [text_of(message.get("content"))]
    for call in tool_calls(message):
        body = call.get(call.get("type", "function"))
        # A function call has "arguments", a custom one "input"; what is neither is kept whole.
        known = body if isinstance(body, dict) else {"arguments": call}
        parts += [_as_text(known[key]) for key in ("name", "arguments", "input") if key in known]
    return " ".join(part for part in parts if part)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _preprocessed(text: str) -> str:
    """Lower case, and encodable: recorded text may hold half of a surrogate pair."""
    return text.lower().encode(errors="replace").decode()


def _joined(messages: Sequence[Message]) -> str:
    return "\n".join(message_text(message) for message in messages)


def _prior() -> Any:
    from sklearn.dummy import DummyClassifier

    return DummyClassifier(strategy="prior")


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression())


class _TfidfLogistic:
    """TF-IDF of each text block, then logistic regression on the columns that the fit has seen.

    A column never seen has weight 0 whatever the penalty; leaving out those of a million hashed
    columns makes small data fast and changes no score.
    """

    def fit(self, features: Any, positive: Floats) -> _TfidfLogistic:
        from sklearn.feature_extraction.text import TfidfTransformer
        from sklearn.linear_model import LogisticRegression

        self._weighers = [
            TfidfTransformer(sublinear_tf=True).fit(block) for block in _text_blocks(features)
        ]
        weighted = self._weighted(features)
        self._seen = np.flatnonzero(weighted.getnnz(axis=0))
        # liblinear is exact and fast on sparse text: 36,000 steps in seconds on one core.
        model = LogisticRegression(C=REGULARISATION, solver="liblinear")
        self._model = model.fit(weighted[:, self._seen], positive)
        return self

    def predict_proba(self, features: Any) -> Floats:
        probability: Floats = self._model.predict_proba(self._weighted(features)[:, self._seen])
        return probability

    def _weighted(self, features: Any) -> Any:
        from scipy.sparse import hstack

        blocks = zip(self._weighers, _text_blocks(features), strict=True)
        position = features[:, N_TEXT_COLUMNS:]
        return hstack([*(weigher.transform(b) for weigher, b in blocks), position], format="csr")


def _text_blocks(features: Any) -> list[Any]:
    return [
        features[:, start : start + HASH_COLUMNS]
        for start in range(0, N_TEXT_COLUMNS, HASH_COLUMNS)
    ]


BASELINES = {
    "constant": Baseline(_no_features, _prior),
    "position": Baseline(_position, _logistic),
    "length": Baseline(_length, _logistic),
    "tfidf": Baseline(_text_and_position, _TfidfLogistic),
}
