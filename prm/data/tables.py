"""Arrow tables in and out: Parquet files, 🤗 datasets, and any rows.

The record travels as one JSON string in the column ``trace`` beside scalar columns for look-up,
because nested Arrow columns change tool arguments in silence: they fill absent keys with null.
Tables of other formats are read row by row; nested columns in them are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from prm.data.json_text import encode_trace
from prm.data.splitting import Raw
from prm.data.trace import Trace
from prm.errors import PRMError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

TABLE = "<table>"
"""The name of rows that come from no file."""


def to_dataset(traces: Iterable[Trace]) -> Dataset:
    """A 🤗 ``Dataset`` with the record as JSON text in ``trace`` beside scalar columns.

    ``read_traces(to_dataset(traces))`` gives the same traces back.
    """
    import pyarrow as pa
    from datasets import Dataset

    return Dataset(pa.Table.from_batches(_batches(traces), _schema()))


def rows(table: Iterable[Mapping[str, Any]], uri: str, *, nested: bool = False) -> Iterator[Raw]:
    """The rows of a table: the JSON text in column ``trace``, or else the whole row as JSON."""
    for number, row in enumerate(table):
        if not isinstance(row, Mapping):
            raise Raw(uri, number, b"").error("$", "a mapping (a row)", type(row).__name__)
        text = row.get("trace", row)
        if text is row:
            try:
                # NaN is written as the token NaN, which the reader turns to null and counts.
                text = json.dumps(dict(row), default=msgspec.to_builtins)
            except (TypeError, ValueError) as error:
                problem = Raw(uri, number, b"")
                raise problem.error("$", "values that JSON can hold", str(error)) from None
        if not isinstance(text, str):
            found = type(text).__name__
            raise Raw(uri, number, b"").error("$.trace", "JSON text", found)
        raw = text.encode(errors="surrogatepass")
        yield Raw(uri, number, raw, nested=nested and "trace" not in row)


def read_saved_dataset(path: str) -> Iterator[Raw]:
    """The rows of a 🤗 dataset on disk, of all its splits in their order."""
    from datasets import Dataset, load_from_disk

    saved = load_from_disk(path)
    parts = (
        {path: saved} if isinstance(saved, Dataset) else {f"{path}/{k}": saved[k] for k in saved}
    )
    for name, part in parts.items():
        yield from rows(part, name, nested="struct<" in str(part.data.schema))


def read_parquet(stream: BinaryIO, uri: str) -> Iterator[Raw]:
    """The rows of a Parquet file that is open and can seek, streamed; ``uri`` names it."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        with pq.ParquetFile(stream) as file:
            schema = file.schema_arrow
            columns = ["trace"] if "trace" in schema.names else None
            batches = file.iter_batches(batch_size=256, columns=columns)
            table = (row for batch in batches for row in batch.to_pylist())
            yield from rows(table, uri, nested="struct<" in str(schema))
    except ArrowException as error:
        raise PRMError(f"{uri}: expected a complete Parquet file, found damage ({error})") from None


def write_parquet(traces: Iterable[Trace], file: BinaryIO) -> int:
    """Write traces as a Parquet table; how many."""
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(file, _schema(), compression="zstd") as writer:
        for batch in _batches(traces):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _schema() -> pa.Schema:
    import pyarrow as pa

    text, number, truth, integer = pa.string(), pa.float64(), pa.bool_(), pa.int64()
    return pa.schema(
        {
            "id": text,
            "task_id": text,
            "policy": text,
            "reward": number,
            "success": truth,
            "valid": truth,
            "n_steps": integer,
            "trace": text,
        }
    )


def _batches(traces: Iterable[Trace]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    def text(value: str | None) -> str | None:
        # Arrow holds UTF-8 alone; a lone surrogate stays exact in `trace`, where JSON escapes it.
        return None if value is None else value.encode(errors="backslashreplace").decode()

    iterator = iter(traces)
    while batch := list(islice(iterator, 1000)):
        columns = zip(
            *(
                (
                    text(trace.id),
                    text(trace.task_id),
                    text(trace.policy),
                    trace.outcome.reward,
                    trace.outcome.success,
                    trace.outcome.valid,
                    trace.n_steps,
                    encode_trace(trace).decode(),
                )
                for trace in batch
            ),
            strict=True,
        )
        schema = _schema()
        arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
