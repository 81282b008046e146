"""The tree at the head of errors.py is the truth."""

import re
from collections.abc import Iterator

from node import errors
from node.errors import ContextLengthExceeded, NodeError


def family(error: type[NodeError]) -> Iterator[type[NodeError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from family(child)


def test_the_printed_tree_matches_the_classes() -> None:
    printed = dict(re.findall(r"[├└]── (\w+)\s+(?:exit )?(\d+)?", errors.__doc__ or ""))
    classes = {error.__name__: error for error in family(NodeError) if error is not NodeError}
    assert printed.keys() == classes.keys()
    for name, number in printed.items():
        if number:
            assert int(number) in (classes[name].status, classes[name].exit_code), name


def test_permanent_errors_are_those_that_clients_do_not_retry() -> None:
    for error in family(NodeError):
        if error.retryable:
            assert error.status in (429, 500, 503, 504), error
        elif issubclass(error, errors.InvalidRequest):
            assert error.status in (400, 401, 403, 404, 410, 413, 422), error


def test_context_overflow_names_both_numbers() -> None:
    error = ContextLengthExceeded(9000, 100, 8192)
    assert "9000" in error.message
    assert "8192" in error.message
    assert error.code == "context_length_exceeded"
