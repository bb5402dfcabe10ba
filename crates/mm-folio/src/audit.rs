//! Audits: the counts against what was actually entered somewhere.
//!
//! The caller feeds an [`AuditLog`] with every present entry of every table,
//! every pin and every reference that somebody holds by name; at a moment when
//! nothing runs, [`AuditLog::finish`] recounts each folio from scratch and says
//! where the records disagree. Frees nothing, repairs nothing.

use crate::record::Compound;
use crate::{Folio, FolioFlags, FolioSpace, MemMap, MmId, PIN_BIAS};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use mm_arch::{Level, Pfn};
use mm_sync::atomic::Ordering::Relaxed;

/// What an entry permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads.
    ReadOnly,
    /// Writes as well, by the format's own predicate.
    Writable,
}

/// What kind of VMA an entry is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Writes are copied: a private mapping.
    Private,
    /// Writes are seen by others.
    Shared,
}

/// Present entries that map consecutive pages of one folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first page; of a PMD entry, the head of the folio.
    pub pfn: Pfn,
    /// Number of entries; 1 for a PMD entry.
    pub nr: u32,
    /// `Pte`, or `Pmd` for an entry that maps the folio as a whole.
    pub level: Level,
    /// Whose entries.
    pub mm: MmId,
    /// What they permit.
    pub access: Access,
    /// Where they are.
    pub sharing: Sharing,
}

/// Where the records disagree with the log, or with a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// INV-1.
    #[error("folio {head}: {mapcount} mappings but only {refs} references")]
    FewerRefsThanMappings {
        /// The folio.
        head: Pfn,
        /// Its references.
        refs: i32,
        /// Its map count.
        mapcount: u32,
    },
    /// INV-2.
    #[error("page {pfn}: mm {} may write to it privately, but it is not exclusive", mm.get())]
    WritableNotExclusive {
        /// The page.
        pfn: Pfn,
        /// Who may write.
        mm: MmId,
    },
    /// INV-3.
    #[error("page {pfn}: exclusive, but mapped {mappings} times")]
    ExclusiveMappedTwice {
        /// The page.
        pfn: Pfn,
        /// Entries that map it.
        mappings: u32,
    },
    /// INV-4.
    #[error("page {pfn}: merged by content, but exclusive")]
    ExclusiveKsm {
        /// The page.
        pfn: Pfn,
    },
    /// INV-5: the folio's map count.
    #[error("folio {head}: map count expected {expected}, got {got}")]
    Mapcount {
        /// The folio.
        head: Pfn,
        /// Entries in the log.
        expected: u32,
        /// The record.
        got: u32,
    },
    /// INV-5: the PTE mappings of one page.
    #[error("page {pfn}: map count expected {expected}, got {got}")]
    PageMapcount {
        /// The page.
        pfn: Pfn,
        /// Entries in the log.
        expected: u32,
        /// The record.
        got: u32,
    },
    /// INV-5: the PMD mappings.
    #[error("folio {head}: PMD map count expected {expected}, got {got}")]
    EntireMapcount {
        /// The folio.
        head: Pfn,
        /// Entries in the log.
        expected: u32,
        /// The record.
        got: u32,
    },
    /// Rule FOLIO-16.
    #[error("folio {head}: pages mapped expected {expected}, got {got}")]
    PagesMapped {
        /// The folio.
        head: Pfn,
        /// Pages with a PTE in the log.
        expected: u32,
        /// The record.
        got: u32,
    },
    /// Rule FOLIO-16.
    #[error("folio {head}: pages with a count of their own expected {expected}, got {got}")]
    UnevenPages {
        /// The folio.
        head: Pfn,
        /// Pages whose record says so.
        expected: u32,
        /// What the folio says.
        got: u32,
    },
    /// INV-7.
    #[error("folio {head}: mapped by {mms} address spaces, but not marked shared")]
    SharedNotMarked {
        /// The folio.
        head: Pfn,
        /// Address spaces in the log.
        mms: usize,
    },
    /// A slot claims more mappings than its owner has (rule FOLIO-33).
    #[error("folio {head}: slot of mm {} expected at most {at_most}, got {got}", mm.get())]
    Slot {
        /// The folio.
        head: Pfn,
        /// The owner of the slot.
        mm: MmId,
        /// Its entries in the log.
        at_most: u32,
        /// The record.
        got: u32,
    },
    /// References = mappings + pins + named holders.
    #[error("folio {head}: references expected {expected}, got {got}")]
    Refcount {
        /// The folio.
        head: Pfn,
        /// Mappings, pins and holds in the log.
        expected: i64,
        /// The record.
        got: i64,
    },
    /// Pins of a folio that counts them.
    #[error("folio {head}: pins expected {expected}, got {got}")]
    Pincount {
        /// The folio.
        head: Pfn,
        /// Pins in the log.
        expected: u32,
        /// The record.
        got: u32,
    },
    /// Somebody maps or holds a page that is free.
    #[error("page {pfn}: free, but in use: {by}")]
    UseOfFree {
        /// The page.
        pfn: Pfn,
        /// Who uses it.
        by: &'static str,
    },
    /// INV-8.
    #[error("page {pfn}: free, but its {field} is {got:#x}")]
    FreeNotIdle {
        /// The page.
        pfn: Pfn,
        /// What is left over.
        field: &'static str,
        /// Its value.
        got: u64,
    },
    /// A page between the head and the end of a folio is not its tail.
    #[error("page {pfn}: not a tail of the folio at {head}")]
    BrokenTail {
        /// The folio.
        head: Pfn,
        /// The page.
        pfn: Pfn,
    },
    /// A gauge disagrees with the log.
    #[error("gauge {name}: expected {expected}, got {got}")]
    Gauge {
        /// Its name.
        name: &'static str,
        /// From the log.
        expected: u64,
        /// The counter.
        got: u64,
    },
    /// Nobody should hold anything any more (from [`leaks`]).
    #[error("folio {head} of order {order} leaked with {refs} references")]
    Leak {
        /// The folio.
        head: Pfn,
        /// Its order.
        order: u32,
        /// Its references.
        refs: i32,
    },
}

/// What the caller knows of, to be compared with the records.
#[derive(Default, Debug)]
#[must_use = "a log says nothing until it is finished"]
pub struct AuditLog {
    mappings: Vec<Mapping>,
    holds: Vec<(Pfn, u32, Hold)>,
}

#[derive(Clone, Copy, Debug)]
enum Hold {
    Pin,
    Named(&'static str),
}

/// The recount of one folio.
struct Tally {
    pages: Vec<u32>,
    entire: u32,
    mms: BTreeMap<MmId, u32>,
    refs: i64,
    pins: u32,
}

impl Tally {
    fn new(nr_pages: usize) -> Self {
        Tally { pages: vec![0; nr_pages], entire: 0, mms: BTreeMap::new(), refs: 0, pins: 0 }
    }
    fn mappings(&self) -> u32 {
        self.pages.iter().sum::<u32>() + self.entire
    }
}

impl AuditLog {
    /// An empty log.
    pub fn new() -> Self {
        AuditLog::default()
    }
    /// Present entries. Entries of the zero page and of frames outside the map
    /// may be fed, and are skipped.
    pub fn mapping(&mut self, mapping: Mapping) {
        self.mappings.push(mapping);
    }
    /// `n` references of the folio of `pfn`, held by `holder`: a cache (one per page),
    /// private data, a list operation, a plain get.
    pub fn hold(&mut self, pfn: Pfn, n: u32, holder: &'static str) {
        self.holds.push((pfn, n, Hold::Named(holder)));
    }
    /// `n` pins of the folio of `pfn`.
    pub fn pin(&mut self, pfn: Pfn, n: u32) {
        self.holds.push((pfn, n, Hold::Pin));
    }

    /// Compares with the records of `map`, in frame order; empty if all is well.
    ///
    /// Nothing else runs, no references wait for a flush. Folios that are not
    /// in the log at all are expected to have no reference: a leak is a
    /// [`Violation::Refcount`].
    pub fn finish<F: FolioSpace>(self, map: &MemMap<F>) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut tallies: BTreeMap<Pfn, Tally> = BTreeMap::new();
        self.tally_mappings(map, &mut tallies, &mut found);
        self.tally_holds(map, &mut tallies, &mut found);
        let mut gauges = Gauges::default();
        check_free(map, &mut found);
        for folio in map.alive() {
            let none = Tally::new(folio.nr_pages() as usize);
            let tally = tallies.get(&folio.head()).unwrap_or(&none);
            check_folio(folio, tally, &mut found);
            gauges.add(folio, tally);
        }
        // After the folios, so that every use is compared with a sound record.
        self.check_writable(map, &mut found);
        gauges.compare(map, &mut found);
        found
    }

    fn tally_mappings<F: FolioSpace>(
        &self,
        map: &MemMap<F>,
        tallies: &mut BTreeMap<Pfn, Tally>,
        found: &mut Vec<Violation>,
    ) {
        for m in self.counted(map) {
            let folio = map.folio(m.pfn);
            if folio.refcount() == 0 {
                found.push(Violation::UseOfFree { pfn: m.pfn, by: "a mapping" });
                continue;
            }
            let nr = folio.nr_pages() as usize;
            let tally = tallies.entry(folio.head()).or_insert_with(|| Tally::new(nr));
            if m.level == Level::Pte {
                let first = folio.index_of(m.pfn) as usize;
                for i in first..first + m.nr as usize {
                    match tally.pages.get_mut(i) {
                        Some(page) => *page += 1,
                        None => found.push(Violation::BrokenTail {
                            head: folio.head(),
                            pfn: folio.page(i as u32),
                        }),
                    }
                }
            } else {
                tally.entire += m.nr;
            }
            *tally.mms.entry(m.mm).or_default() += m.nr;
            tally.refs += i64::from(m.nr);
        }
    }

    /// Mappings that have map counts (rule FOLIO-49).
    fn counted<'a, F: FolioSpace>(
        &'a self,
        map: &'a MemMap<F>,
    ) -> impl Iterator<Item = &'a Mapping> {
        self.mappings
            .iter()
            .filter(|m| map.contains(m.pfn) && !map.is_zero_page(m.pfn) && !map.is_huge_zero(m.pfn))
    }

    /// Returns the number of pins that the counters know of.
    fn tally_holds<F: FolioSpace>(
        &self,
        map: &MemMap<F>,
        tallies: &mut BTreeMap<Pfn, Tally>,
        found: &mut Vec<Violation>,
    ) {
        for &(pfn, n, hold) in &self.holds {
            if !map.contains(pfn) || (map.is_zero_page(pfn) && matches!(hold, Hold::Pin)) {
                continue;
            }
            let folio = map.folio(pfn);
            if folio.refcount() == 0 {
                let by = match hold {
                    Hold::Pin => "a pin",
                    Hold::Named(holder) => holder,
                };
                found.push(Violation::UseOfFree { pfn, by });
                continue;
            }
            let nr = folio.nr_pages() as usize;
            let tally = tallies.entry(folio.head()).or_insert_with(|| Tally::new(nr));
            let units = match hold {
                Hold::Named(_) => 1,
                Hold::Pin => {
                    tally.pins += n;
                    if folio.has_pincount() { 1 } else { i64::from(PIN_BIAS) }
                }
            };
            tally.refs += i64::from(n) * units;
        }
    }

    fn check_writable<F: FolioSpace>(&self, map: &MemMap<F>, found: &mut Vec<Violation>) {
        for m in self.counted(map) {
            let private = m.access == Access::Writable && m.sharing == Sharing::Private;
            if !private || !map.folio(m.pfn).is_anon() {
                continue;
            }
            let pages = if m.level == Level::Pte { m.nr } else { 1 };
            for i in 0..u64::from(pages) {
                let pfn = m.pfn.add(i);
                if map.contains(pfn) && !map.page_exclusive(pfn) {
                    found.push(Violation::WritableNotExclusive { pfn, mm: m.mm });
                }
            }
        }
    }
}

/// Records of pages that are in no folio.
fn check_free<F: FolioSpace>(map: &MemMap<F>, found: &mut Vec<Violation>) {
    let first = map.index(map.first());
    let mut next = first;
    while next < first + map.nr_frames() as usize {
        let (rec, pfn) = (map.record(next), map.pfn(next));
        if rec.refs.load(Relaxed) != 0 {
            next += 1 << rec.compound().order();
            continue;
        }
        let compound = rec.compound();
        let is_free = compound == Compound::FREE.as_poisoned_as(compound);
        let fields = [
            ("flags", u64::from(rec.flags.load(Relaxed))),
            ("map count", u64::from(rec.mapcount.load(Relaxed))),
            ("compound word", if is_free { 0 } else { u64::from(compound.0) }),
            ("first word", rec.words[0].load(Relaxed)),
            ("second word", rec.words[1].load(Relaxed)),
            ("exclusive mark", u64::from(map.page_exclusive(pfn))),
        ];
        for (field, got) in fields {
            if got != 0 {
                found.push(Violation::FreeNotIdle { pfn, field, got });
            }
        }
        next += 1;
    }
}

fn check_folio<F: FolioSpace>(folio: Folio<'_, F>, tally: &Tally, found: &mut Vec<Violation>) {
    let head = folio.head();
    for i in 1..folio.nr_pages() {
        let rec = folio.tail(i as usize);
        let compound = rec.compound();
        let is_tail = compound == Compound::tail(i).as_poisoned_as(compound);
        if !is_tail || rec.refs.load(Relaxed) != 0 {
            found.push(Violation::BrokenTail { head, pfn: folio.page(i) });
        }
    }
    let (refs, mapcount) = (folio.refcount(), folio.mapcount());
    if i64::from(refs) < i64::from(mapcount) {
        found.push(Violation::FewerRefsThanMappings { head, refs, mapcount });
    }
    if mapcount != tally.mappings() {
        found.push(Violation::Mapcount { head, expected: tally.mappings(), got: mapcount });
    }
    if folio.entire_mapcount() != tally.entire {
        let got = folio.entire_mapcount();
        found.push(Violation::EntireMapcount { head, expected: tally.entire, got });
    }
    check_pages(folio, tally, found);
    check_slots(folio, tally, found);
    if tally.refs != i64::from(refs) {
        found.push(Violation::Refcount { head, expected: tally.refs, got: i64::from(refs) });
    }
    if folio.has_pincount() && folio.pincount() != tally.pins {
        found.push(Violation::Pincount { head, expected: tally.pins, got: folio.pincount() });
    }
}

fn check_pages<F: FolioSpace>(folio: Folio<'_, F>, tally: &Tally, found: &mut Vec<Violation>) {
    for (i, &expected) in tally.pages.iter().enumerate() {
        let pfn = folio.page(i as u32);
        let got = folio.pte_mapcount(i);
        if got != expected {
            found.push(Violation::PageMapcount { pfn, expected, got });
        }
        if !folio.is_anon() || !folio.map.page_exclusive(pfn) {
            continue;
        }
        if folio.has(FolioFlags::KSM) {
            found.push(Violation::ExclusiveKsm { pfn });
        }
        // Of a page that only PMD entries map, the head's mark is the one that
        // means something.
        let mappings = expected + tally.entire;
        if mappings > 1 && (expected > 0 || i == 0) {
            found.push(Violation::ExclusiveMappedTwice { pfn, mappings });
        }
    }
    if folio.is_large() {
        let expected = tally.pages.iter().filter(|&&n| n > 0).count() as u32;
        let (got, entirely) = folio.pages_mapped();
        if got != expected || entirely != (tally.entire > 0) {
            found.push(Violation::PagesMapped { head: folio.head(), expected, got });
        }
    }
    if folio.order() > 1 {
        let (head, got) = (folio.head(), folio.uneven_pages());
        let uneven = |i: &usize| folio.tail(*i).mapcount.load(Relaxed) != 0;
        let expected = (0..tally.pages.len()).filter(uneven).count() as u32;
        if got != expected {
            found.push(Violation::UnevenPages { head, expected, got });
        }
    }
}

fn check_slots<F: FolioSpace>(folio: Folio<'_, F>, tally: &Tally, found: &mut Vec<Violation>) {
    if folio.order() <= 1 {
        return;
    }
    let head = folio.head();
    if tally.mms.len() > 1 && !folio.shared_flag() {
        found.push(Violation::SharedNotMarked { head, mms: tally.mms.len() });
    }
    for (mm, got) in folio.mm_slots().into_iter().flatten() {
        let at_most = tally.mms.get(&mm).copied().unwrap_or(0);
        if got > at_most {
            found.push(Violation::Slot { head, mm, at_most, got });
        }
    }
}

/// The gauges, recounted.
#[derive(Default)]
struct Gauges {
    anon: u64,
    file: u64,
    anon_thps: u64,
    large_anon: u64,
    partially: u64,
    queued: u64,
}

impl Gauges {
    fn add<F: FolioSpace>(&mut self, folio: Folio<'_, F>, tally: &Tally) {
        let mapped = if tally.entire > 0 {
            u64::from(folio.nr_pages())
        } else {
            tally.pages.iter().filter(|&&n| n > 0).count() as u64
        };
        if folio.is_anon() {
            self.anon += mapped;
            self.anon_thps += if tally.entire > 0 { mapped } else { 0 };
            self.large_anon += u64::from(folio.is_large());
        } else {
            self.file += mapped;
        }
        self.partially += u64::from(folio.has(FolioFlags::PARTIALLY_MAPPED));
        self.queued += u64::from(folio.is_deferred());
    }
    fn compare<F: FolioSpace>(&self, map: &MemMap<F>, found: &mut Vec<Violation>) {
        let stats = map.stats();
        let partially = stats.order.iter().map(|o| o.nr_anon_partially_mapped.get()).sum();
        // Wrapping: a gauge below zero is to be reported, not to be summed.
        let large_anon = stats.order.iter().map(|o| o.nr_anon.get()).fold(0, u64::wrapping_add);
        for (name, expected, got) in [
            ("nr_anon_mapped", self.anon, stats.nr_anon_mapped.get()),
            ("nr_file_mapped", self.file, stats.nr_file_mapped.get()),
            ("nr_anon_thps", self.anon_thps, stats.nr_anon_thps.get()),
            ("nr_anon", self.large_anon, large_anon),
            ("nr_anon_partially_mapped", self.partially, partially),
            ("deferred queue", self.queued, map.deferred_len() as u64),
        ] {
            if expected != got {
                found.push(Violation::Gauge { name, expected, got });
            }
        }
    }
}

/// Every folio that is still alive, for a moment when none should be. Zero
/// pages and huge zero folios are not leaks.
pub fn leaks<F: FolioSpace>(map: &MemMap<F>) -> Vec<Violation> {
    map.alive()
        .filter(|f| !f.is_zero_page() && !f.is_huge_zero())
        .map(|f| Violation::Leak { head: f.head(), order: f.order(), refs: f.refcount() })
        .collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::*;
    use crate::{FileId, Get, Pin, QueueReason};
    use std::string::ToString;

    /// Two address spaces map a folio of 4; one exclusive folio of 4 beside it.
    fn shared_and_exclusive(map: &FolioMap) -> (Folio<'_, Space>, Folio<'_, Space>, [Mapping; 3]) {
        let (a, b) = (mm(1), mm(2));
        let (shared, own) = (fault(map, 2, a), fault(map, 2, a));
        shared.grab::<Get>(4).expect("room").hand_over();
        shared.try_dup_anon_ptes(0, nz(4), b, crate::HasPinned::Never).expect("not pinned");
        let logged = [
            ptes(shared, 0, 4, a, Access::ReadOnly),
            ptes(shared, 0, 4, b, Access::ReadOnly),
            ptes(own, 0, 4, a, Access::Writable),
        ];
        (shared, own, logged)
    }

    /// The state is sound, `plant` spoils it, the audit reports exactly `want`.
    fn planted(plant: impl FnOnce(Folio<'_, Space>, Folio<'_, Space>), want: &[&str]) {
        let map = map(64);
        let (shared, own, logged) = shared_and_exclusive(&map);
        assert_eq!(log(&logged).finish(&map), []);
        plant(shared, own);
        let got: Vec<_> = log(&logged).finish(&map).iter().map(|v| v.to_string()).collect();
        assert_eq!(got, want);
    }

    /// Rules: INV-1.
    #[test]
    fn fewer_references_than_mappings() {
        planted(
            |shared, _| shared.head_record().refs.store(7, Relaxed),
            &[
                "folio 0x8: 8 mappings but only 7 references",
                "folio 0x8: references expected 8, got 7",
            ],
        );
    }

    /// Rules: INV-2.
    #[test]
    fn writable_but_not_exclusive() {
        planted(
            |_, own| own.map.clear_exclusive(own.page(2), 1),
            &["page 0xe: mm 1 may write to it privately, but it is not exclusive"],
        );
    }

    /// Rules: INV-3, EXCL-04.
    #[test]
    fn exclusive_but_mapped_twice() {
        planted(
            |shared, _| shared.map.set_exclusive(shared.page(1), 1),
            &["page 0x9: exclusive, but mapped 2 times"],
        );
    }

    /// Rules: INV-4, FOLIO-50.
    #[test]
    fn exclusive_but_merged() {
        let map = map(64);
        let page = fault(&map, 0, mm(1));
        page.set_flag(FolioFlags::KSM);
        let found = log(&[ptes(page, 0, 1, mm(1), Access::ReadOnly)]).finish(&map);
        assert_eq!(found, [Violation::ExclusiveKsm { pfn: page.head() }]);
    }

    /// Rules: INV-5.
    #[test]
    fn wrong_map_counts() {
        let totals = |f: Folio<'_, Space>, w| f.tail(1).words[0].store(w, Relaxed);
        planted(|_, own| totals(own, 3), &["folio 0xc: map count expected 4, got 3"]);
        planted(|_, own| totals(own, 4 | 1 << 32), &["folio 0xc: PMD map count expected 0, got 1"]);
        planted(
            |_, own| own.tail(3).mapcount.store(1, Relaxed),
            &[
                "page 0xf: map count expected 1, got 2",
                "folio 0xc: pages with a count of their own expected 1, got 0",
            ],
        );
    }

    /// Rules: FOLIO-16.
    #[test]
    fn wrong_count_of_mapped_pages() {
        planted(
            |_, own| own.tail(1).flags.store(3, Relaxed),
            &["folio 0xc: pages mapped expected 4, got 3"],
        );
    }

    /// Rules: INV-7, FOLIO-33.
    #[test]
    fn shared_mark_and_slots() {
        planted(
            |shared, _| shared.tail(1).flags.store(4, Relaxed),
            &["folio 0x8: mapped by 2 address spaces, but not marked shared"],
        );
        planted(
            |_, own| own.tail(2).words[1].store(5, Relaxed),
            &["folio 0xc: slot of mm 1 expected at most 4, got 5"],
        );
    }

    /// Rules: FOLIO-01, FOLIO-09.
    #[test]
    fn references_that_nobody_named() {
        planted(
            |_, own| {
                own.grab::<Get>(2).expect("room").hand_over();
            },
            &["folio 0xc: references expected 4, got 6"],
        );
    }

    /// Rules: FOLIO-25.
    #[test]
    fn pins_that_nobody_named() {
        planted(
            |_, own| {
                own.grab::<Pin>(1).expect("room").hand_over();
            },
            &["folio 0xc: references expected 4, got 5", "folio 0xc: pins expected 0, got 1"],
        );
        let map = map(64);
        let (large, small) = (fault(&map, 2, mm(1)), fault(&map, 0, mm(1)));
        let _held = (large.grab::<Pin>(3), small.grab::<Pin>(2));
        let mut log = log(&[
            ptes(large, 0, 4, mm(1), Access::Writable),
            ptes(small, 0, 1, mm(1), Access::Writable),
        ]);
        log.pin(large.page(1), 3);
        log.pin(small.head(), 2);
        assert_eq!(log.finish(&map), []);
    }

    /// Rules: INV-8.
    #[test]
    fn use_of_a_free_page_and_leftovers_in_it() {
        let map = map(64);
        let gone = fault(&map, 2, mm(1));
        let stale = ptes(gone, 1, 1, mm(1), Access::ReadOnly);
        unmap(gone, 0, 4, mm(1));
        let mut log = log(&[stale]);
        log.pin(gone.page(2), 1);
        log.hold(gone.page(2), 1, "cache");
        let by = ["a mapping", "a pin", "cache"];
        let pfn = [gone.page(1), gone.page(2), gone.page(2)];
        let want = [0, 1, 2].map(|i| Violation::UseOfFree { pfn: pfn[i], by: by[i] });
        assert_eq!(log.finish(&map), want);

        map.set_exclusive(gone.page(1), 1);
        gone.tail(2).mapcount.store(1, Relaxed);
        let left = |pfn, field| Violation::FreeNotIdle { pfn, field, got: 1 };
        assert_eq!(
            AuditLog::new().finish(&map),
            [left(gone.page(1), "exclusive mark"), left(gone.page(2), "map count")]
        );
    }

    /// Rules: FOLIO-11.
    #[test]
    fn a_tail_that_is_none() {
        planted(
            |_, own| own.tail(2).compound.store(Compound::tail(1).0, Relaxed),
            &["page 0xe: not a tail of the folio at 0xc"],
        );
        planted(
            |_, own| own.tail(2).refs.store(1, Relaxed),
            &["page 0xe: not a tail of the folio at 0xc"],
        );
    }

    /// Rules: FOLIO-17, FOLIO-22.
    #[test]
    fn gauges_that_drifted() {
        planted(
            |_, own| own.map.stats.nr_anon_mapped.add(1),
            &["gauge nr_anon_mapped: expected 8, got 9"],
        );
        planted(
            |_, own| own.map.stats.order[2].nr_anon.add(1),
            &["gauge nr_anon: expected 2, got 3"],
        );
        planted(
            |_, own| own.map.deferred.lock().plant_len(1),
            &["gauge deferred queue: expected 0, got 1"],
        );
    }

    /// Rules: FOLIO-04.
    #[test]
    fn named_holders_balance() {
        let map = map(64);
        let file = map.alloc(2).expect("frames").hand_over();
        file.set_file(FileId(3), 8);
        file.grab::<Get>(3 + 2).expect("room").hand_over();
        file.add_file_ptes(1, nz(2), mm(1));
        assert_eq!(file.expected_refs(), 6);
        let mut log = log(&[Mapping {
            sharing: Sharing::Shared,
            ..ptes(file, 1, 2, mm(1), Access::Writable)
        }]);
        log.hold(file.head(), 4, "page cache");
        assert_eq!(log.finish(&map), []);
    }

    #[test]
    fn leaks_are_the_folios_that_are_left() {
        let map = map(64);
        let zero = map.alloc(0).expect("frames").hand_over();
        map.set_zero_page(zero.head());
        assert_eq!(leaks(&map), []);
        let folio = fault(&map, 3, mm(1));
        let leak = Violation::Leak { head: folio.head(), order: 3, refs: 8 };
        assert_eq!(leak.to_string(), "folio 0x8 of order 3 leaked with 8 references");
        assert_eq!(leaks(&map), [leak]);
        unmap(folio, 0, 8, mm(1));
        assert_eq!(leaks(&map), []);
    }

    /// Rules: FOLIO-11, INV-8.
    #[test]
    fn a_folio_in_a_bad_state_is_kept_from_the_allocator() {
        type Spoil = fn(Folio<'_, Space>);
        let spoils: [Spoil; 9] = [
            |f| f.tail(1).words[0].store(1, Relaxed),
            |f| f.tail(1).words[0].store(1 << 32, Relaxed),
            |f| f.tail(1).words[1].store(1, Relaxed),
            |f| f.tail(1).flags.store(1, Relaxed),
            |f| f.tail(2).words[0].store(1, Relaxed),
            |f| f.tail(2).mapcount.store(1, Relaxed),
            |f| f.tail(3).compound.store(0, Relaxed),
            |f| f.tail(3).refs.store(1, Relaxed),
            |f| {
                f.set_flag(FolioFlags::WRITEBACK);
            },
        ];
        for (i, spoil) in spoils.iter().enumerate() {
            let map = map(64);
            let folio = map.alloc(2).expect("frames");
            let head = folio.folio().head();
            spoil(folio.folio());
            drop(folio);
            assert_eq!(map.stats().bad_frees.get(), 1, "spoil {i}");
            assert_ne!(map.alloc(2).expect("frames").folio().head(), head, "spoil {i}");
        }
    }

    /// Rules: FOLIO-08, FOLIO-22, FOLIO-57.
    #[test]
    fn the_queue_drops_what_is_dying() {
        let map = map(64);
        let folios: Vec<_> = (0..3).map(|_| fault(&map, 2, mm(1))).collect();
        for f in &folios {
            f.remove_ptes(0, nz(1), mm(1));
            f.remove_ptes(1, nz(1), mm(1));
            put(*f, 2);
        }
        folios[1].queue_deferred(QueueReason::MaybeUnderused);
        assert_eq!(map.deferred_len(), 3);
        let stats = &map.stats().order[2];
        assert_eq!((stats.split_deferred.get(), stats.nr_anon_partially_mapped.get()), (3, 3));
        // The middle one leaves a consistent list behind.
        unmap(folios[1], 2, 2, mm(1));
        assert_eq!((map.deferred_len(), stats.nr_anon_partially_mapped.get()), (2, 2));
        // One that is frozen cannot be won by the scan.
        assert!(folios[0].freeze(2));
        let got = map.deferred_pop().expect("the last one");
        assert_eq!(got.folio(), folios[2]);
        assert!(map.deferred_pop().is_none());
        assert_eq!((map.deferred_len(), stats.nr_anon_partially_mapped.get()), (0, 1));
        folios[0].unfreeze(2);
        assert!(!folios[0].has(FolioFlags::PARTIALLY_MAPPED));
    }
}
