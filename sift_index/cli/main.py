"""Entry point of `sift-index`."""

import click

from sift_index import __version__
from sift_index.cli.bench import bench
from sift_index.cli.build import build
from sift_index.cli.delete import delete
from sift_index.cli.demo import demo
from sift_index.cli.doctor import doctor
from sift_index.cli.evaluate import evaluate
from sift_index.cli.exchange import export, import_
from sift_index.cli.explain import explain
from sift_index.cli.frame import EXIT_CODES
from sift_index.cli.inspect import inspect
from sift_index.cli.models import models
from sift_index.cli.status import status
from sift_index.cli.tidy import compact, gc
from sift_index.cli.tune import tune
from sift_index.cli.verify import verify
from sift_index.cli.versions import versions


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sift-index")
def cli() -> None:
    """Remember where attention goes in a corpus, and prefill RAG prompts sparsely.

    \b
    Start with:
      sift-index demo
      sift-index build corpus/ --model smollm2-135m --index corpus.sift
      sift-index inspect corpus.sift
    """


for command in (
    build,
    status,
    inspect,
    verify,
    versions,
    delete,
    compact,
    gc,
    export,
    import_,
    explain,
    evaluate,
    tune,
    bench,
    demo,
    doctor,
    models,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line."""
    cli(prog_name="sift-index")
