"""What the journal of a run comes to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infer.io.journal import DropRecord, FinalRecord, PublishRecord, ReopenRecord, SegmentRecord, segment_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infer.io.journal import JournalRecord


@dataclass(slots=True)
class SavedRun:
    """What the journal comes to."""

    segments: dict[str, SegmentRecord] = field(default_factory=dict)
    final: FinalRecord | None = None
    publish: PublishRecord | None = None
    """Where the run may have ended between giving the output its name and saying so."""
    replaced: PublishRecord | None = None
    """The output so far, of a run whose failed rows run again: it stays under its name until the new one takes it."""
    num_segments_ever: int = 0

    @classmethod
    def of(cls, records: Iterable[JournalRecord]) -> SavedRun:
        saved = cls()
        for record in records:
            saved.add(record)
        return saved

    def add(self, record: JournalRecord) -> None:
        match record:
            case SegmentRecord():
                self.segments[record.name] = record
                self._count(record)
            case DropRecord():
                self.segments.pop(record.name, None)
            case PublishRecord():
                self.publish = record
            case FinalRecord():
                self.final = record
                self.replaced = None
                self.segments = {}
            case ReopenRecord():
                self.replaced = self.publish
                self.final = self.publish = None
                self.segments = {segment.name: segment for segment in record.segments}
                for segment in record.segments:
                    self._count(segment)

    def _count(self, segment: SegmentRecord) -> None:
        # By its name: a journal that somebody has shortened must not lead to a name that is taken.
        self.num_segments_ever = max(self.num_segments_ever, segment_number(segment.name))

    @property
    def failures(self) -> dict[str, int]:
        """Saved rows that failed, by code."""
        records = [self.final] if self.final is not None else self.segments.values()
        total: Counter[str] = Counter()
        for record in records:
            total.update(record.failures)
        return dict(total)

    @property
    def num_rows(self) -> int:
        """Saved, failed ones included."""
        return self.final.num_rows if self.final is not None else sum(each.num_rows for each in self.segments.values())
