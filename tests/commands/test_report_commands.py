"""The commands that a report names for results that are to be made again."""

import re

import gin
import pytest
import report_folder
from report_html import render

from dualenc_jax.commands import config


@pytest.fixture
def folder(tmp_path):
  return report_folder.write(tmp_path / 'my_model')


def again(folder, config_text=None, **facts):
  """What the page says of one result that is of an older checkpoint."""
  if config_text is not None:
    (folder / 'config.gin').write_text(config_text)
  report_folder.evaluation(folder, checkpoint_step=10, **facts)
  text = render(folder).text('missing')
  return re.search(r'(dualenc evaluate --model_dir=\S+ )(.*)', text)[2]


def saved_config(*files, **bindings):
  config.load(
      ['runs/base.gin', *files],
      [f'{name} = {value!r}' for name, value in bindings.items()],
  )
  return gin.config_str()


SCIFACT = {'task': 'beir', 'dataset': 'scifact', 'label': 'beir-scifact'}
MSMARCO = {'task': 'msmarco', 'label': 'msmarco', 'split': 'validation'}


@pytest.mark.parametrize(
    'file, bindings, result, flags',
    [
        ('pairs', {}, {}, '--split=test'),
        ('pairs', {}, SCIFACT, '--tasks=beir/scifact --split=test'),
        ('pairs', {}, MSMARCO, '--tasks=msmarco --split=validation'),
        ('beir', {'BEIR_SET': 'scifact'}, SCIFACT, '--split=test'),
        (
            'beir',
            {'BEIR_SET': 'nq'},
            SCIFACT,
            '--tasks=beir/scifact --split=test',
        ),
        ('msmarco', {}, MSMARCO, '--split=validation'),
        (
            'msmarco',
            {},
            {
                **SCIFACT,
                'label': 'beir-scifact-documents',
                'document_separator': '#',
            },
            "--tasks=beir/scifact --split=test --max_passage"
            " --document_separator='#'",
        ),
        # Not a name of a file of tasks: it is in seqio's registry.
        (
            'seqio',
            {'TASK_NAME': 'my_task'},
            {'task': 'my_task', 'label': 'my_task'},
            '--split=test',
        ),
    ],
)
def test_the_command_for_a_result_names_its_task(
    folder, file, bindings, result, flags
):
  text = saved_config(f'tasks/{file}.gin', **bindings)
  assert again(folder, text, **result) == flags


def test_the_command_for_a_result_of_a_mixture(folder, tmp_path):
  own = tmp_path / 'mixture.gin'
  own.write_text(
      'from __gin__ import dynamic_registration\n'
      'from dualenc_jax import data\n'
      "include 'tasks/msmarco.gin'\ninclude 'tasks/open_nq.gin'\n"
      'TASK = @data.Mixture()\n'
      'data.Mixture.tasks = [@msmarco/data.Task(), @open_nq/data.Task()]\n'
      'data.Mixture.validation = @msmarco/data.Task()\n'
  )
  text = saved_config(str(own))
  assert again(folder, text, **MSMARCO) == '--split=validation'
  test = {**MSMARCO, 'split': 'test'}
  assert again(folder, **test) == '--tasks=msmarco --split=test'
  other = {'task': 'open_nq', 'label': 'open_nq', 'split': 'validation'}
  assert again(folder, **other) == '--tasks=open_nq --split=validation'
