"""``prm score``: score every step of traces, offline."""

from __future__ import annotations

import sys
from collections import Counter

from prm.data.atomic import check_output
from prm.data.convert import counted, report
from prm.data.diagnostics import Diagnostics
from prm.data.files import read_traces, write_traces
from prm.data.sources import expand
from prm.errors import PRMError


def score(
    traces: list[str],
    /,
    *,
    model: str,
    out: str | None = None,
    name: str = "prm",
    batch_tokens: int = 16384,
    device: str | None = None,
) -> None:
    """Score every action and state of traces with a trained step reward model.

    Args:
        traces: trace files of any known format.
        model: directory written by `prm train`, or a hub id of such a model.
        out: where the scored traces go, by suffix .jsonl, .jsonl.gz, .jsonl.zst or .parquet;
            stdout when not given.
        name: key of the scores in the records.
        batch_tokens: most tokens in a batch, padding included; bounds the memory.
        device: torch device, e.g. cpu or cuda; the first GPU where there is one when not given.
    """
    import torch

    from prm.model.encoding import describe_cut
    from prm.model.network import StepRewardModel
    from prm.scoring.scorer import Scorer

    if not name:
        raise PRMError("--name: expected a name for the scores, found an empty one")
    if out is not None:
        check_output(out, expand(traces)[0])
    loaded = StepRewardModel.from_pretrained(model)
    if batch_tokens < loaded.config.encoding["max_length"]:
        raise PRMError(
            f"--batch-tokens {batch_tokens} is below the model's max_length "
            f"{loaded.config.encoding['max_length']}: its longest sequence must fit in a batch"
        )
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=where).item()
    except (RuntimeError, AssertionError) as error:
        raise PRMError(f"--device {where}: {str(error).splitlines()[0]}") from error
    loaded = loaded.to(where)  # type: ignore[arg-type]
    scorer = Scorer(loaded, name=name, batch_tokens=batch_tokens)
    diagnostics = Diagnostics()
    totals = Counter[str]()
    read = counted(read_traces(traces, diagnostics=diagnostics), totals, diagnostics)
    write_traces(scorer.score(read), out)
    report(totals, diagnostics)
    if scorer.cut:
        print(describe_cut(scorer.cut), file=sys.stderr)
