"""Cuts a sequence that fails down to the shortest one that fails in the same way, and shows it as SQL."""

from __future__ import annotations

from tests.definitions.book import MakeCapture, MakePipeline, Outcome, play_all
from tests.definitions.capturing import Capture
from tests.definitions.sequences import smaller


def shortest(make: MakePipeline, failed: Outcome, capture: MakeCapture = Capture) -> Outcome:
    """All that is one thing shorter is played at once, until nothing of it fails any more."""
    while True:
        candidates = list(dict.fromkeys(smaller(failed.sequence)))
        if not candidates:
            return failed
        played = play_all(make, candidates, failed.has_trigger, len(candidates), capture)
        by_sequence = {outcome.sequence: outcome for outcome in played}
        failing = [by_sequence[one] for one in candidates if not by_sequence[one].invalid and by_sequence[one].fault]
        alike = [outcome for outcome in failing if outcome.word == failed.word]
        if not alike:
            return failed
        failed = alike[0]
