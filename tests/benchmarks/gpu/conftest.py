"""A model folder whose tokenizer has the tokens of a protocol."""

from tests.recipes.conftest import model_folder  # noqa: F401
