"""Keeping transformers' own progress bars out of workers and of our command line."""


def quiet_transformers() -> None:
    """Turn off transformers' progress bars and advice in this process."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
