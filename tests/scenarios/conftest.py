import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what the machine does now into tests/scenarios/*.txt (then read the diff)")
