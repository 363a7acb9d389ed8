from typing import Any

from launches import shown, tally


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if shown:
        terminalreporter.write_line(tally())
