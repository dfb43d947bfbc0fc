"""Files of the Embedding Projector, read by its own rules."""

from google.protobuf import (
  descriptor_pb2,
  descriptor_pool,
  message_factory,
  text_format,
)
import numpy as np
import pytest
import toy_set

from dualenc_jax.analysis import projector, sample as sample_lib
from dualenc_jax.errors import UserError


def config_message():
  """TensorBoard's ProjectorConfig, as its .proto has it."""
  Field = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(
      name='projector_for_tests.proto', package='projector_for_tests'
  )
  info = file.message_type.add(name='EmbeddingInfo')
  config = file.message_type.add(name='ProjectorConfig')
  for name, number, kind, label in (
      ('tensor_name', 1, Field.TYPE_STRING, Field.LABEL_OPTIONAL),
      ('metadata_path', 2, Field.TYPE_STRING, Field.LABEL_OPTIONAL),
      ('tensor_shape', 4, Field.TYPE_UINT32, Field.LABEL_REPEATED),
      ('tensor_path', 6, Field.TYPE_STRING, Field.LABEL_OPTIONAL),
  ):
    info.field.add(name=name, number=number, type=kind, label=label)
  config.field.add(
      name='embeddings',
      number=2,
      type=Field.TYPE_MESSAGE,
      label=Field.LABEL_REPEATED,
      type_name='.projector_for_tests.EmbeddingInfo',
  )
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(
      pool.FindMessageTypeByName('projector_for_tests.ProjectorConfig')
  )()


def analysed():
  """A sample, and two models on it."""
  sample = sample_lib.draw(toy_set.toy_set(), 30)
  return sample, [
      toy_set.analysed(name, 1, sample, seed, ranked=12)
      for seed, name in enumerate(['a model', 'b"'])
  ]


@pytest.mark.parametrize(
    'name',
    ['b_/metadata.tsv', 'a_model/tensors.tsv', 'projector_config.pbtxt', 'b_'],
)
def test_what_cannot_be_written_is_named(tmp_path, name):
  if name == 'b_':
    (tmp_path / name).write_text('')
  else:
    (tmp_path / name).mkdir(parents=True)
  _, models = analysed()
  with pytest.raises(UserError, match=f'{name} cannot be written: '):
    projector.write(tmp_path, models, 12)
  assert not list(tmp_path.rglob('*.partial'))


def test_tensorboard_finds_every_tensor_and_its_rows(tmp_path):
  sample, models = analysed()
  projector.write(tmp_path, models, 12)
  config = text_format.Parse(
      (tmp_path / 'projector_config.pbtxt').read_text(), config_message()
  )
  assert [e.tensor_name for e in config.embeddings] == ['a_model', 'b_']
  for entry, model in zip(config.embeddings, models):
    vectors = model.vectors
    # As TensorBoard reads a tensor: every line that is not empty, floats
    # between tabs.
    lines = (tmp_path / entry.tensor_path).read_text().split('\n')
    tensor = np.array(
        [[*map(float, line.split('\t'))] for line in lines if line], np.float32
    )
    assert [*entry.tensor_shape] == [24, toy_set.DIM]
    np.testing.assert_allclose(
        tensor,
        np.concatenate([vectors.queries[:12], vectors.passages[:12]]),
        rtol=1e-6,
    )
    # A header, since there is more than one column; a line a point.
    head, *rows = [
        line.split('\t')
        for line in (tmp_path / entry.metadata_path).read_text().splitlines()
    ]
    assert head == ['tower', 'id', 'text', 'rank', 'top1_cosine']
    assert len(rows) == 24 and {len(row) for row in rows} == {5}
    query, passage = rows[0], rows[12]
    number = sample.queries[0]
    assert query[:3] == ['query', f'q{number}', f'find the row {number} of it']
    assert query[3] == str(vectors.ranks[0] or '')
    assert float(query[4]) == round(float(vectors.top_cosines[0]), 4)
    assert passage[:2] == ['passage', f'p{sample.passages[0]}']
    assert passage[3:] == ['', '']
