"""`dualenc evaluate` on small sets, and its files read back."""

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import shared_runs
import tiny_run
import tiny_weights

from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.cli import config, convert, evaluate, train
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder

FILES = {
    'config.gin', 'examples.jsonl', 'metrics.json', 'per_query.tsv', 'run.trec'
}


def shared_model() -> pathlib.Path:
  """A model_dir after two steps on files beside it, which all tests share."""

  def make(home: pathlib.Path) -> None:
    given = tiny_run.flags(home)
    (home / 'flags.json').write_text(json.dumps(given))
    train.main([*given, f'--model_dir={home / "model"}'])

  return shared_runs.once('dual_encoder', make) / 'model'


def training_flags(*more: str) -> list[str]:
  """Flags that the shared model was trained with, but for its model_dir."""
  path = shared_model().with_name('flags.json')
  return [*json.loads(path.read_text()), *more]


def link_model(folder: pathlib.Path) -> pathlib.Path:
  """A link in `folder` to the shared model, to read; data may lie beside it."""
  (folder / 'model').symlink_to(shared_model())
  return folder / 'model'


def copy_model(path: pathlib.Path) -> pathlib.Path:
  """Copies the shared model, to write to; returns where."""
  return shutil.copytree(shared_model(), path)


def write_random(
    path: pathlib.Path, trained_dims=(), layers=1, **usage
) -> pathlib.Path:
  """Writes random towers of the tiny model's sizes; its pairs lie beside."""
  towers = DualEncoder(
      TokenEmbedder(8064, 128), T5Encoder(layers, 4, 32, 256), Projection(128)
  )
  usage = Usage(tiny_weights.SHIPPED.file, None, 8, 16, **usage)
  weights = tiny_weights.random(towers, usage)
  weights = dataclasses.replace(weights, trained_dims=trained_dims)
  convert.write_model_dir(weights, path)
  files = map(config.binding, tiny_run.pairs_flags(path.parent)[1:4])
  with (path / 'config.gin').open('a') as file:
    file.write(''.join(f'{line}\n' for line in files))
  return path


def flags(
    model: pathlib.Path, output: pathlib.Path, *more: str,
    tasks: str = 'beir/scifact', data: pathlib.Path | None = None,
) -> list[str]:
  """Flags of an evaluation on sets in `data` beside the model, or elsewhere.

  Baselines are left out; `more` may ask for them.
  """
  return [
      f'--model_dir={model}', f'--tasks={tasks}',
      f'--gin.DATA_ROOT={data or model.parent / "data"}',
      f'--output_dir={output}', '--no_baselines',
      *more,
  ]


def run(
    model: pathlib.Path, output: pathlib.Path, *more: str, **where: Any
) -> pathlib.Path:
  """Evaluates with `flags` and returns the folder of the results."""
  evaluate.main(flags(model, output, *more, **where))
  return output


def tree(folder: pathlib.Path) -> dict[str, bytes]:
  """Content of the files of a folder by name, without the command line."""
  command = json.dumps(result_of(folder)['command']).encode()
  return {
      path.name: path.read_bytes().replace(command, b'')
      for path in sorted(folder.iterdir())
  }


def result_of(folder: pathlib.Path) -> dict[str, Any]:
  """What is in metrics.json."""
  return json.loads((folder / 'metrics.json').read_text())


def run_of(folder: pathlib.Path) -> dict[str, list[tuple[str, float]]]:
  """The hits of run.trec and their scores by query, in the file's order."""
  hits = {}
  for line in (folder / 'run.trec').read_text().splitlines():
    query, q0, passage, rank, score, _ = line.split(' ')
    own = hits.setdefault(query, [])
    own.append((passage, float(score)))
    assert (q0, int(rank)) == ('Q0', len(own))
  return hits


def examples_of(folder: pathlib.Path) -> list[dict[str, Any]]:
  """The objects of examples.jsonl."""
  lines = (folder / 'examples.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]
