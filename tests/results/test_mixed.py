"""Notes on figures of several checkpoints, runs and kinds of ranking."""

import result_folders

from dualenc_jax.results import folder, tables


def beir(root, name, datasets, **fields):
  for dataset in datasets:
    metrics = {'nDCG@10': 0.5}
    result_folders.write(root / name, metrics, 'beir', dataset, **fields)
  return folder.read_model(root / name)


def notes(name, *models):
  """Those of the one table of this name, without those of its averages."""
  (table,) = [t for t in tables.paper_tables(models) if t.name == name]
  return [note for note in table.notes if note.startswith('Figures')]


def test_steps_are_told_and_of_the_tables_own_results_only(tmp_path):
  beir(tmp_path, 'm', ['nq'], checkpoint_step=1_000)
  beir(tmp_path, 'm', ['fiqa'], checkpoint_step=20_000)
  # In a table of its own.
  result_folders.write(tmp_path / 'm', {'MRR': 0.5}, checkpoint_step=5)
  # Of BEIR, but without what its table shows.
  result_folders.write(
      tmp_path / 'm', {'MRR': 0.5}, 'beir', 'scifact', checkpoint_step=7
  )
  model = folder.read_model(tmp_path / 'm')
  told = 'Figures are of steps 1,000 and 20,000.'
  assert notes('beir', model) == [told]
  assert notes('other', model) == []
  tables.write_tables(tmp_path, [model])
  for name in ('tables.md', 'tables.tex'):
    assert told in (tmp_path / name).read_text()


def test_runs_are_told_by_model(tmp_path):
  beir(tmp_path, 'runs', ['nq'], run_id='x')
  beir(tmp_path, 'runs', ['fiqa'], run_id='y')
  # Of results that do not tell it nobody knows.
  runs = beir(tmp_path, 'runs', ['scifact'], checkpoint_step=None)
  same = beir(tmp_path, 'same', ['nq', 'fiqa'], run_id='x')
  told = ['Figures of runs are of 2 training runs.']
  assert notes('beir', runs, same) == told
  assert notes('beir', same) == []


def test_passages_and_documents_are_told(tmp_path):
  for split, separator in (('test', None), ('a', '#'), ('b', '_')):
    result_folders.write(
        tmp_path / 'm', {'MRR': 0.5}, split=split, document_separator=separator
    )
  assert notes('other', folder.read_model(tmp_path / 'm')) == [
      "Figures are of passages, documents (ids up to '#') and documents (ids up"
      " to '_')."
  ]
