"""`dualenc evaluate` on small sets, and its files read back."""

import json
import pathlib
from typing import Any

import tiny_run

from dualenc_jax import evaluate
from dualenc_jax import train

FILES = {
    'config.gin', 'examples.jsonl', 'metrics.json', 'per_query.tsv', 'run.trec'
}


def train_model(folder: pathlib.Path) -> pathlib.Path:
  """A model_dir after two steps, in a folder that may have `data`, too."""
  train.main([*tiny_run.flags(folder), f'--model_dir={folder / "model"}'])
  return folder / 'model'


def flags(
    model: pathlib.Path,
    output: pathlib.Path,
    *more: str,
    tasks: str = 'beir/scifact',
    data: pathlib.Path | None = None,
) -> list[str]:
  """Flags of an evaluation on sets in `data` beside the model, or elsewhere."""
  return [
      f'--model_dir={model}',
      f'--tasks={tasks}',
      f'--gin.DATA_ROOT={data or model.parent / "data"}',
      f'--output_dir={output}',
      *(['--gin.BEIR_TOLERANCE=1.0'] if 'beir' in tasks else []),
      *more,
  ]


def run(
    model: pathlib.Path, output: pathlib.Path, *more: str, **where: Any
) -> pathlib.Path:
  """Evaluates with `flags` and returns the folder of the results."""
  evaluate.main(flags(model, output, *more, **where))
  return output


def tree(folder: pathlib.Path) -> dict[str, bytes]:
  """Content of the files of a folder by name."""
  return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def result_of(folder: pathlib.Path) -> dict[str, Any]:
  """What is in metrics.json."""
  return json.loads((folder / 'metrics.json').read_text())


def run_of(folder: pathlib.Path) -> dict[str, list[tuple[str, float]]]:
  """The hits of run.trec and their scores by query, in the file's order."""
  hits = {}
  for line in (folder / 'run.trec').read_text().splitlines():
    query, q0, passage, rank, score, _ = line.split()
    own = hits.setdefault(query, [])
    own.append((passage, float(score)))
    assert (q0, int(rank)) == ('Q0', len(own))
  return hits


def examples_of(folder: pathlib.Path) -> list[dict[str, Any]]:
  """The objects of examples.jsonl."""
  lines = (folder / 'examples.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]
