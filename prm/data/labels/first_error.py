"""Labels from an annotated first mistake: steps before it 1, the mistake 0, later steps unknown.

Formats with annotations (AgentRx, Who&When) put the mistake in ``meta["first_error"]``. Nothing is
known about steps after it: an agent may recover. A mistake on an observation or a user's turn
leaves the step in whose window it falls unlabelled too; a mistake in the prompt leaves all.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from prm.data.labels.maker import LabelOptions
from prm.data.trace import Trace
from prm.data.typed import complaint
from prm.errors import RecordError


class _FirstError(msgspec.Struct):
    message: int
    step: int | None


def label_first_error(trace: Trace, options: LabelOptions, notes: Counter[str]) -> Trace:
    """1 before the first error, 0 at it, None after; traces without annotation stay unlabelled."""
    annotation = trace.meta.get("first_error")
    if annotation is None:
        notes["unlabelled"] += 1
        return trace.with_labels(options.name, [None] * trace.n_steps)
    try:
        error = msgspec.convert(annotation, _FirstError)
    except msgspec.ValidationError as problem:
        path, expected, found = complaint(problem, annotation, _FirstError)
        raise RecordError(
            f"trace {trace.id!r}",
            path=f"$.meta.first_error{path.removeprefix('$')}",
            expected=expected,
            found=found,
            why='{"message": index, "step": index or null}',
        ) from None
    if error.step is None:
        notes["error_off_step"] += 1
    labels: list[float | None] = []
    for window in trace.windows():
        end = trace.steps[window.index].at + 1 + len(window.observations)
        if window.index == error.step:
            labels.append(0.0)
        else:
            labels.append(1.0 if end <= error.message else None)
    return trace.with_labels(options.name, labels)
