"""The n-gram memory of a step reward model: fitted first, before the network learns what it misses.

The memory is linear, so the best one is found outright instead of by gradient steps beside the
network, where it would learn the training tasks by heart before the network has learned anything:

* Weights ``idf_b u_b`` of the buckets b, and a bias for each kind of read-out, minimise
  ``sum_r weight_r loss_r + l2 / 2 |(u, bias)|^2`` over the labelled read-outs r, by L-BFGS.
  ``idf_b = ln((1 + R) / (1 + df_b)) + 1`` (R read-outs, df_b of them with bucket b) lets rare
  n-grams speak, as in TF-IDF (the smooth form of scikit-learn).
* The network then learns with *cross-fitted* memory logits as offsets: those of each task come
  from a memory fitted on other tasks (stacking; Wolpert 1992, doi:10.1016/S0893-6080(05)80023-1).
  So it sees the errors that the memory will make on new tasks, not those on tasks known by heart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, diags, hstack
from torch import nn

from prm.errors import PRMError
from prm.model.encoding import READOUTS
from prm.model.losses import summed_loss
from prm.model.network import StepRewardModel
from prm.training.data import Example

N_FOLDS = 5


class _Readouts(NamedTuple):
    """The R read-outs of all examples."""

    features: Any
    """(R, D) sparse: idf-weighted n-grams that occur, then one column for each kind of read-out."""
    scales: NDArray[np.float64]
    """(D,) idf of the buckets, and 1 for the kinds."""
    buckets: NDArray[np.int64]
    """(D - len(READOUTS),) which buckets occur."""
    labels: torch.Tensor
    """(R,) 0 where there is no label."""
    weights: torch.Tensor
    """(R,) 0 where there is no label."""
    tasks: NDArray[np.int64]
    """(R,) number of the task."""
    kinds: NDArray[np.int64]
    """(R,) index into ``READOUTS``."""


def fit_memory(model: StepRewardModel, examples: Sequence[Example], l2: float) -> list[Example]:
    """Fit the memory and the biases of the heads in place.

    Args:
        model: a binary, ternary or value model with an n-gram memory.
        examples: of the training tasks.
        l2: strength of the penalty, > 0; the inverse of scikit-learn's ``C``.

    Returns:
        The examples with their ``offsets``: what to add to the logits of the network in training.

    Raises:
        PRMError: fewer than 2 tasks, or a fit that is not finite.
    """
    from sklearn.model_selection import GroupKFold

    assert model.memory is not None
    table = _table(model, examples)
    n_tasks = len(set(table.tasks.tolist()))
    if n_tasks < 2:
        raise PRMError(
            f"the n-gram memory is fitted on other tasks than the network learns from, which needs "
            f"at least 2 training tasks; found {n_tasks}"
        )
    whole = _fit(model, table, np.arange(len(table.kinds)), l2)
    biases = whole[len(table.buckets) :]
    with torch.no_grad():
        scaled = (whole * table.scales[:, None])[: len(table.buckets)]
        model.memory.weight.zero_()
        model.memory.weight[torch.from_numpy(table.buckets)] = torch.from_numpy(scaled).float()
        for kind, name in enumerate(READOUTS):
            if name in model.heads:
                head = cast(nn.Linear, model.heads[name])
                head.bias.copy_(torch.from_numpy(biases[kind]))

    offsets = np.empty((len(table.kinds), whole.shape[1]))
    folds = GroupKFold(min(N_FOLDS, n_tasks))
    for fitted, held_out in folds.split(table.tasks, groups=table.tasks):
        fold = _fit(model, table, fitted, l2)
        offsets[held_out] = table.features[held_out] @ fold
    # The biases of the heads start at those of the whole fit, so the offsets are without them.
    offsets -= biases[table.kinds]
    ends = np.cumsum([len(example.labels) for example in examples])
    pieces = np.split(offsets, ends[:-1])
    return [e._replace(offsets=piece) for e, piece in zip(examples, pieces, strict=True)]


def _table(model: StepRewardModel, examples: Sequence[Example]) -> _Readouts:
    lookups = [found for example in examples for found in example.sequence.lookups]
    kinds = np.array([READOUTS.index(k) for e in examples for k in e.sequence.readouts])
    numbers = {task: i for i, task in enumerate(sorted({e.task for e in examples}))}
    columns = np.concatenate([found.buckets for found in lookups])
    buckets, place = np.unique(columns, return_inverse=True)
    ends = np.cumsum([0, *(len(found.buckets) for found in lookups)])
    values = np.concatenate([found.weights for found in lookups]).astype(np.float64)
    shape = (len(lookups), len(buckets))
    grams = csr_matrix((values, place, ends), shape=shape)
    grams.sum_duplicates()  # two n-grams of a read-out may share a bucket
    frequency = np.bincount(grams.indices, minlength=len(buckets))
    idf = np.log((1 + len(lookups)) / (1 + frequency)) + 1
    one_of = csr_matrix((np.ones(len(kinds)), (np.arange(len(kinds)), kinds)), (len(kinds), 2))
    return _Readouts(
        features=hstack([grams @ diags(idf), one_of], format="csr"),
        scales=np.concatenate([idf, np.ones(len(READOUTS))]),
        buckets=buckets,
        labels=torch.tensor([y for e in examples for y in e.labels]).double().nan_to_num(0.0),
        weights=torch.tensor([w for e in examples for w in e.weights]).double(),
        tasks=np.array([numbers[e.task] for e in examples for _ in e.labels]),
        kinds=kinds,
    )


def _fit(
    model: StepRewardModel, table: _Readouts, rows: NDArray[np.int64], l2: float
) -> NDArray[np.float64]:
    """(D, C) coefficients of the columns of ``table.features``, from the read-outs ``rows``."""
    assert model.memory is not None
    features = table.features[rows]
    labels, weights = table.labels[rows], table.weights[rows]
    shape = (features.shape[1], model.memory.embedding_dim)
    low, high = model.score_range

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        coefficients = flat.reshape(shape)
        logits = torch.from_numpy(features @ coefficients).requires_grad_()
        loss = summed_loss(logits, labels, weights, head=model.config.head, value_range=(low, high))
        (slope,) = torch.autograd.grad(loss, logits)
        gradient = features.T @ slope.numpy() + l2 * coefficients
        return float(loss.detach()) + l2 / 2 * float(flat @ flat), gradient.ravel()

    result = minimize(
        objective, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B",
        options={"maxiter": 1000, "maxfun": 2000},
    )  # fmt: skip
    if not np.isfinite(result.fun):
        raise PRMError("the fit of the n-gram memory is not finite: are the labels and weights?")
    found: NDArray[np.float64] = result.x.reshape(shape)
    return found
