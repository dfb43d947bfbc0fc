"""Files of the Embedding Projector, read by its own rules."""

import re

import numpy as np
import toy_set

from dualenc_jax.analysis import projector, sample as sample_lib


def test_tensorboard_finds_every_tensor_and_its_rows(tmp_path):
  sample = sample_lib.draw(toy_set.toy_set(), 30)
  models = [
      toy_set.analysed(name, 1, sample, seed, ranked=12)
      for seed, name in enumerate(['a model', 'b"'])
  ]
  projector.write(tmp_path, models, 12)
  config = (tmp_path / 'projector_config.pbtxt').read_text()
  # TensorBoard's ProjectorConfig as text: messages of fields, some repeated.
  entries = re.findall(r'^embeddings \{\n((?:  \w+: .*\n)*)\}\n', config, re.M)
  assert len(entries) == 2 and config.count('\n') == 2 * 7
  for entry, model, name in zip(entries, models, ('a_model', 'b_')):
    fields = re.findall(r'  (\w+): (?:"([\w./]*)"|(\d+))\n', entry)
    tensor, *shape, path, metadata = [text or int(n) for _, text, n in fields]
    assert [key for key, *_ in fields] == [
        'tensor_name', 'tensor_shape', 'tensor_shape', 'tensor_path',
        'metadata_path',
    ]
    assert (tensor, shape) == (name, [24, toy_set.DIM])
    # As TensorBoard reads a tensor: every line that is not empty, floats
    # between tabs.
    lines = (tmp_path / path).read_text().split('\n')
    found = [[*map(float, line.split('\t'))] for line in lines if line]
    vectors = np.concatenate(model.vectors.first(12))
    np.testing.assert_allclose(np.float32(found), vectors, rtol=1e-6)
    # A header, since there is more than one column; a line a point.
    head, *rows = [
        line.split('\t')
        for line in (tmp_path / metadata).read_text().splitlines()
    ]
    assert head == ['tower', 'id', 'text', 'rank', 'top1_cosine']
    assert len(rows) == 24 and {len(row) for row in rows} == {5}
    query, passage = rows[0], rows[12]
    number = sample.queries[0]
    assert query[:3] == ['query', f'q{number}', f'find the row {number} of it']
    assert query[3] == str(model.vectors.ranks[0] or '')
    assert float(query[4]) == round(float(model.vectors.top_cosines[0]), 4)
    assert passage[:2] == ['passage', f'p{sample.passages[0]}']
    assert passage[3:] == ['', '']
