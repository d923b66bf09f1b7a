"""`--max-failures`: counted by document, stopped in time, written down."""

from contextlib import suppress

import pytest

from sift_index.errors import BuildError, FingerprintMismatchError, UsageError
from sift_index.formats.failures import FailedDocument, read_failures
from sift_index.formats.receipts import read_receipts
from sift_index.formats.store import IndexPaths
from sift_index.pipelines.failures import FailureBudget, TooManyFailuresError, recorded
from sift_index.pipelines.scanning import scan_corpus
from sift_index.pipelines.status import IndexStatus, index_status
from sift_index.pipelines.worker import BuildWorker
from tests.pipelines.builds import InlineCrew, text, write_corpus


def failures(*numbers: int) -> list[FailedDocument]:
    return [FailedDocument(f"{number}.txt", f"reason {number}") for number in numbers]


def test_pieces_of_one_document_count_once() -> None:
    budget = FailureBudget(1)
    budget.add(failures(1, 1))
    budget.add(failures(1))
    with pytest.raises(TooManyFailuresError, match="at most 1 .*found 2"):
        budget.add(failures(2))


def test_the_first_reasons_are_shown_and_named_once() -> None:
    found = [FailedDocument("a.txt", "a.txt: no such file"), *failures(*range(9))]
    with pytest.raises(BuildError) as caught:
        FailureBudget(0).add(found)
    message = str(caught.value)
    assert "such as a.txt: no such file; 0.txt: reason 0; 1.txt: reason 1; cure" in message
    assert "reason 2" not in message and "same command" in message


def test_without_a_limit_nothing_is_kept() -> None:
    budget = FailureBudget()
    budget.add(failures(*range(1000)))
    assert budget.found == {}


def test_only_too_many_failures_are_written(tmp_path) -> None:
    paths, budget = IndexPaths(tmp_path), FailureBudget(1)
    paths.create()
    budget.add(failures(1))
    with pytest.raises(BuildError, match="other"), recorded(paths, budget):
        raise BuildError("other")
    assert read_failures(paths) == []
    with pytest.raises(TooManyFailuresError), recorded(paths, budget):
        budget.add(failures(2))
    assert read_failures(paths) == failures(1, 2)


@pytest.fixture
def corpus(tmp_path):
    """Four good documents, and three that are no UTF-8."""
    good = {f"{n}.txt": text(300 + n, n) for n in range(4)}
    return write_corpus(
        tmp_path / "corpus", {**good, **{f"bad{n}.txt": b"\xff\xfe\xff" for n in range(3)}}
    )


def test_documents_that_cannot_be_read_stop_a_build_before_any_work(
    inline, corpus, tmp_path
) -> None:
    index = tmp_path / "index"
    with pytest.raises(TooManyFailuresError, match="at most 2 .*found 3, such as bad0.txt"):
        inline(corpus, index, max_failures=2)
    assert [record.source for record in read_failures(IndexPaths(index))] == [
        "bad0.txt",
        "bad1.txt",
        "bad2.txt",
    ]
    assert read_receipts(IndexPaths(index)) == []


def test_as_many_as_allowed_are_left_out(inline, corpus, tmp_path) -> None:
    found = inline(corpus, tmp_path / "index", max_failures=3)
    assert (found.indexed, len(found.failed), found.published) == (4, 3, True)


def test_a_build_stopped_for_failures_keeps_what_is_committed_and_resumes(
    inline, corpus, tmp_path, monkeypatch
) -> None:
    """Files that disappear after the scan fail on workers, like everything that changed."""
    index = tmp_path / "index"

    def then_gone(*arguments):
        found = scan_corpus(*arguments)
        (corpus / "3.txt").unlink()
        return found

    monkeypatch.setattr("sift_index.pipelines.build.scan_corpus", then_gone)
    with pytest.raises(TooManyFailuresError, match="at most 3 .*found 4"):
        inline(corpus, index, max_failures=3, unit_tokens=300)
    monkeypatch.undo()
    assert "3.txt" in [record.source for record in read_failures(IndexPaths(index))]
    monkeypatch.setattr("sift_index.pipelines.build.Crew", InlineCrew)
    kept = read_receipts(IndexPaths(index))
    assert len(kept) == 3
    again = inline(corpus, index, max_failures=3, unit_tokens=300)
    assert (again.resumed_keys, again.new_keys, again.indexed) == (3, 0, 3)


def test_too_many_failures_in_the_corpus_stop_a_build_before_a_model_is_loaded(
    inline, corpus, tmp_path, monkeypatch
) -> None:
    def load(*arguments):
        raise AssertionError("workers were started")

    monkeypatch.setattr("sift_index.pipelines.build.Crew", load)
    with pytest.raises(TooManyFailuresError, match="at most 2 .*found 3"):
        inline(corpus, tmp_path / "index", max_failures=2)
    found = index_status(IndexPaths(tmp_path / "index"), 100)
    assert (found.state, found.failed_documents, found.builds[0].failures) == ("failed", 3, 3)
    assert "TooManyFailuresError" in found.builds[0].reason


@pytest.mark.parametrize("dies", [False, True])
def test_documents_that_cannot_be_read_are_seen_while_the_build_runs_and_after_it_died(
    inline, corpus, tmp_path, monkeypatch, dies
) -> None:
    paths, run, seen = IndexPaths(tmp_path / "index"), BuildWorker.run_unit, list[IndexStatus]()

    def run_unit(self, unit):
        if dies:
            raise KeyboardInterrupt
        seen.append(index_status(paths, 100))
        return run(self, unit)

    monkeypatch.setattr(BuildWorker, "run_unit", run_unit)
    with suppress(KeyboardInterrupt):
        inline(corpus, tmp_path / "index")
    found = index_status(paths, 100) if dies else seen[0]
    assert found.state == ("interrupted" if dies else "running")
    assert (found.failed_documents, found.builds[0].failures) == (3, 3)
    assert [failure.source for failure in found.failed] == ["bad0.txt", "bad1.txt", "bad2.txt"]
    assert all("UTF-8" in failure.reason for failure in found.failed)


def test_a_build_that_is_refused_writes_no_records(inline, corpus, tmp_path) -> None:
    good = write_corpus(tmp_path / "good", {"a.txt": text(300, 9)})
    inline(good, tmp_path / "index")
    with pytest.raises(FingerprintMismatchError):
        inline(corpus, tmp_path / "index", prefix="Another: ")
    assert read_failures(IndexPaths(tmp_path / "index")) == []


def test_an_index_that_may_be_of_another_model_is_not_touched(inline, corpus, tmp_path) -> None:
    index = tmp_path / "index"
    inline(write_corpus(tmp_path / "good", {"a.txt": text(300, 9)}), index)
    before = {path: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    with pytest.raises(TooManyFailuresError):
        inline(corpus, index, max_failures=0)
    assert {path: path.read_bytes() for path in index.rglob("*") if path.is_file()} == before


def test_a_corpus_of_which_nothing_can_be_read_loads_no_model(
    inline, tmp_path, monkeypatch
) -> None:
    def load(*arguments):
        raise AssertionError("workers were started")

    monkeypatch.setattr("sift_index.pipelines.build.Crew", load)
    corpus = write_corpus(tmp_path / "corpus", {"bad.txt": b"\xff", "empty.txt": b" "})
    with pytest.raises(UsageError, match="found 1 that cannot, such as bad.txt: .*--text-field"):
        inline(corpus, tmp_path / "index")
    assert [one.source for one in read_failures(IndexPaths(tmp_path / "index"))] == ["bad.txt"]


def test_an_index_among_the_texts_is_refused(inline, corpus, tmp_path) -> None:
    before = sorted(corpus.rglob("*"))
    with pytest.raises(UsageError, match="another folder for the index"):
        inline(corpus, corpus / ".." / "corpus")
    assert sorted(corpus.rglob("*")) == before
