from __future__ import annotations

from strandline.metastore.hive.kept_answers import KeptAnswers


def test_an_answer_is_found_only_for_its_own_request_and_mark() -> None:
    kept = KeptAnswers(max_bytes=100_000)
    kept.keep(b"get", 7, b"answer")
    assert kept.find(b"get", 7) == b"answer"
    assert kept.find(b"get", 8) is None
    assert kept.find(b"other", 7) is None
    assert (kept.statistics().hits, kept.statistics().misses) == (1, 2)


def test_the_least_recently_used_answer_is_evicted_first() -> None:
    kept = KeptAnswers(max_bytes=4000)
    requests = [bytes([letter]) for letter in b"abcdefghi"]
    for request in requests:
        kept.keep(request, 1, bytes(200))
    assert kept.find(b"a", 1) is not None
    kept.keep(b"z", 1, bytes(200))
    assert kept.find(b"b", 1) is None
    assert all(kept.find(request, 1) is not None for request in (b"a", b"c", b"z"))
    assert kept.statistics().evictions == 1
    assert kept.statistics().size <= 4000


def test_an_answer_that_would_displace_most_others_is_not_kept() -> None:
    kept = KeptAnswers(max_bytes=1000)
    kept.keep(b"a", 1, bytes(10))
    kept.keep(b"a", 2, bytes(900))
    assert (kept.find(b"a", 1), kept.find(b"a", 2)) == (None, None)
    assert kept.statistics().size == 0
