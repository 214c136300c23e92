"""The question grammar: a question and the table's profile in, an intent out; no model, no I/O."""

from failsoft.examples.analyst.grammar.grammar import MAX_QUESTION, Grammar, read_question
from failsoft.examples.analyst.grammar.wording import QuestionError

__all__ = ["MAX_QUESTION", "Grammar", "QuestionError", "read_question"]
