"""Structured output: llguidance as a mask over the logits.

A grammar is compiled before its request runs, on the caller's thread, and kept; the worker only copies the compiled
matcher. Compiling is bounded by llguidance's own fuel, so that a hostile schema is an error and not a stall.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from node.engine.tokens import Tokens
from node.errors import InvalidRequest
from node.generation import Constraint

log = logging.getLogger(__name__)

KEPT = 32  # compiled grammars
_LIMITS = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,  # they would carry the schema into logs
}


class Guide:
    """Compiles constraints for one vocabulary; callable from any thread."""

    def __init__(self, vocabulary: Tokens) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._tokenizer: Any = None
        self._compiled: OrderedDict[Constraint, Future[Any]] = OrderedDict()

    def check(self, constraint: Constraint) -> None:
        """Compile and keep `constraint`; raises InvalidRequest with llguidance's own words."""
        self._template(constraint)

    def matcher(self, constraint: Constraint) -> Matcher:
        """A fresh matcher for one request."""
        return Matcher(self._template(constraint).deep_copy(), self._vocabulary)

    def _template(self, constraint: Constraint) -> Any:
        """The compiled matcher. The lock is never held while one is compiled: the engine's thread takes it too."""
        with self._lock:
            future = self._compiled.get(constraint)
            mine = future is None
            if future is None:
                future = self._compiled[constraint] = Future()
                while len(self._compiled) > KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(constraint)
        if mine:
            try:
                future.set_result(self._compile(constraint))
            except BaseException as error:
                future.set_exception(error)
                with self._lock:
                    self._compiled.pop(constraint, None)
                raise
        return future.result()

    def _compile(self, constraint: Constraint) -> Any:
        with self._making:
            if self._tokenizer is None:
                self._tokenizer = self._vocabulary.guide_tokenizer()
        try:
            matcher = LLMatcher(self._tokenizer, _grammar(constraint), log_level=0, limits=LLParserLimits(**_LIMITS))
        except ValueError as error:
            raise unusable(str(error)) from error
        matcher.compute_bitmask()  # so that one that is too expensive from the start is refused before anything runs
        if matcher.is_error():
            raise unusable(matcher.get_error())
        return matcher


def unusable(reason: str) -> InvalidRequest:
    """The refusal of a constraint, for good: another attempt would end the same way."""
    return InvalidRequest(f"This schema or grammar cannot be used: {reason}", param="response_format")


class Matcher:
    """Follows one generation through its grammar."""

    def __init__(self, matcher: Any, vocabulary: Tokens) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._mask = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)

    def apply(self, logits: np.ndarray[Any, np.dtype[np.float32]]) -> bool:
        """Forbid, in place, what the grammar does not allow next; False when it allows nothing."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        allowed = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: len(logits)]
        if self._matcher.is_error() or not allowed.any():
            return False
        logits[allowed == 0] = -np.inf
        return True

    @property
    def reason(self) -> str:
        """Why nothing is allowed, in llguidance's words."""
        return self._matcher.get_error() or "no token of this model fits it here"

    def accept(self, token: int) -> bool:
        """Take the sampled token; False when the text is complete and nothing may follow."""
        if not self._matcher.consume_token(token):
            log.error("the grammar refused a token that its own mask allowed: %s", self._matcher.get_error())
            return False
        return not self._matcher.is_stopped()


def _grammar(constraint: Constraint) -> str:
    if constraint.kind == "json_schema":
        return str(LLMatcher.grammar_from_json_schema(constraint.text))
    if constraint.kind == "regex":
        return str(LLMatcher.grammar_from_regex(constraint.text))
    return str(LLMatcher.grammar_from_lark(constraint.text))
