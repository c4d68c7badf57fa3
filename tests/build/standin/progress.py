"""Stands in for gemma4web.toolchain.progress: the tiny project's set-up has nothing to report."""


def default_progress() -> None:
    return None
