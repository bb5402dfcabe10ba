//! Every audit sees what it looks for: each test plants a violation.

use mm_arch::{AccessKind, Arch, Entry, Level, Pfn, Tlb, VirtAddr, VirtRange, WriteKind};
use mm_folio::audit::Violation;
use mm_folio::{FrameBytes, Get};
use mm_gup::GupFlags;
use mm_map::Advice;
use mm_pgtable::{LockedEntry, TableMemory, TableSpace};
use mm_rmap::RmapPlatform;
use mm_sim::*;
use mm_vma::{Backing, Platform, RssKind, VmaFlags};
use mm_x86::X86_64;
use std::sync::Arc;

type M = Machine<X86_64>;
type P = Process<X86_64>;

const BASE: u64 = 0x1000_0000_0000;

fn page(i: u64) -> VirtAddr {
    VirtAddr::new(BASE + i * 4096)
}
fn pages(first: u64, n: u64) -> VirtRange {
    VirtRange::units(page(first), n, 12).expect("range")
}
fn machine() -> M {
    let config =
        MachineConfig { bytes: 16 << 20, cpus: 2, poison: true, ..MachineConfig::default() };
    Machine::new(config, Preset::Best.policy()).expect("machine")
}
/// A machine whose process has 16 pages, all of them stored to.
fn filled() -> (M, P) {
    let m = machine();
    let p = m.spawn().expect("process");
    p.mmap_anon(pages(0, 16), VmaFlags::READ | VmaFlags::WRITE).expect("mmap");
    for i in 0..16 {
        p.store(page(i), i + 1).expect("store");
    }
    assert_eq!(audit(&m, [&p], []), []);
    (m, p)
}
fn pfn_of(p: &P, va: VirtAddr) -> Pfn {
    let vmas = p.mm().read();
    match p.mm().tables().lock_entry(vmas.stay(), va) {
        LockedEntry::Table(t) => t.get(t.index_of(va)).pfn(Level::Pte),
        other => panic!("{other:?} at {va}"),
    }
}
/// What one entry is replaced by, behind the kernel's back.
fn rewrite(
    p: &P,
    va: VirtAddr,
    f: impl FnOnce(<X86_64 as Arch>::Entry) -> <X86_64 as Arch>::Entry,
) {
    let vmas = p.mm().read();
    let mut table = p.mm().tables().lock_entry(vmas.stay(), va).table().expect("a table");
    let mut owed = p.mm().tables().tlb().obligation();
    let i = table.index_of(va);
    let old = table.take(i, &mut owed);
    table.set(i, f(old));
}
fn found(m: &M, p: &P) -> Vec<AuditViolation> {
    audit(m, [p], [])
}
#[track_caller]
fn assert_found(found: &[AuditViolation], what: impl Fn(&AuditViolation) -> bool) {
    assert!(found.iter().any(what), "not among what was found: {found:?}");
}

/// Rules: INV-9, ZAP-03.
#[test]
fn missing_flush_at_unmap_reads_freed_memory() {
    let (m, p) = filled();
    m.host().cpus().plant(Plant::DROP_RANGE_FLUSHES);
    p.munmap(pages(3, 1)).expect("munmap");
    m.settle();
    assert_found(
        &found(&m, &p),
        |v| matches!(v, AuditViolation::Cpu(CpuViolation::StaleTranslation { va, .. }) if *va == page(3)),
    );
    // The CPU goes on with what it has cached: a wrong value, not a fault.
    assert_eq!(p.load(page(3)), Ok(POISON));
    m.host().cpus().plant(Plant::empty());
}

/// Rules: FORK-03, INV-9.
#[test]
fn missing_flush_at_fork_lets_the_parent_write_into_the_child() {
    let (m, p) = filled();
    let mut shadow = Shadow::default();
    (0..16).for_each(|i| shadow.store(0, page(i), i + 1));
    m.host().cpus().plant(Plant::DROP_RANGE_FLUSHES);
    let child = p.fork().expect("fork");
    shadow.fork(0, 1, |_| true);
    m.settle();
    let found = audit(&m, [&p, &child], []);
    assert_found(&found, |v| matches!(v, AuditViolation::StaleRights { cpu: 0, .. }));
    p.store(page(5), 77).expect("no fault: the translation is still writable");
    shadow.store(0, page(5), 77);
    assert_eq!(child.load(page(5)), Ok(77), "the store went to the shared page");
    let bad = shadow.audit(1, &child);
    assert_eq!(bad, [AuditViolation::Content { process: 1, va: page(5), expected: 6, got: 77 }]);
    m.host().cpus().plant(Plant::empty());
}

/// Rules: INV-9, ACC-22.
#[test]
fn a_walk_cache_that_outlives_its_table_is_reported() {
    let (m, p) = filled();
    m.host().cpus().plant(Plant::KEEP_WALK_CACHES);
    p.munmap(pages(0, 16)).expect("munmap");
    m.settle();
    assert_found(&found(&m, &p), |v| {
        matches!(v, AuditViolation::Cpu(CpuViolation::StaleTable { .. }))
    });
    m.host().cpus().plant(Plant::empty());
}

#[test]
fn a_table_freed_too_early_is_reported() {
    let (m, p) = filled();
    let vmas = p.mm().read();
    let frame = match p.mm().tables().lock_entry(vmas.stay(), page(0)) {
        LockedEntry::Table(t) => t.frame(),
        other => panic!("{other:?}"),
    };
    drop(vmas);
    // SAFETY: wrong, and the point of the test: the table is linked. Frames stay
    // readable, and machine and process are never used or dropped after this.
    unsafe { m.host().tables().free(frame) };
    let cached = m.host().cpus().audit();
    assert!(
        cached
            .iter()
            .any(|v| matches!(v, CpuViolation::StaleTable { pfn, .. } if *pfn == frame.pfn())),
        "{cached:?}"
    );
    std::mem::forget((p, m));
}

#[test]
fn a_table_that_nobody_links_is_reported() {
    let (m, p) = filled();
    let lost = m.host().tables().alloc(Level::Pte).expect("table");
    assert_found(
        &found(&m, &p),
        |v| matches!(v, AuditViolation::Tables { expected, got } if expected + 1 == *got),
    );
    // SAFETY: allocated above and never linked.
    unsafe { m.host().tables().free(lost) };
    assert_eq!(found(&m, &p), []);
}

#[test]
fn a_wrong_entry_count_is_reported() {
    let (m, p) = filled();
    let vmas = p.mm().read();
    let (frame, e) = match p.mm().tables().lock_entry(vmas.stay(), page(0)) {
        LockedEntry::Table(t) => (t.frame(), t.get(0)),
        other => panic!("{other:?}"),
    };
    // Over an entry that is there already: counted twice.
    let mut pmd = p.mm().tables().lock_pmd(vmas.stay(), page(0)).expect("pmd table");
    // SAFETY: allocated for this; nobody else knows the frame.
    unsafe { pmd.fill_unlinked(frame, 1, e) };
    drop(pmd);
    drop(vmas);
    assert_found(&found(&m, &p), |v| {
        matches!(v, AuditViolation::TableEntries { expected: 16, got: 17, .. })
    });
    // The table would never be found empty.
    std::mem::forget((p, m));
}

/// Rules: INV-1, INV-5.
#[test]
fn a_leaked_reference_is_reported() {
    let (m, p) = filled();
    let pfn = pfn_of(&p, page(2));
    let leaked = m.host().memmap().folio(pfn).grab::<Get>(1).expect("grab").hand_over();
    assert_found(
        &found(&m, &p),
        |v| matches!(v, AuditViolation::Folio(Violation::Refcount { head, expected: 1, got: 2 }) if *head == pfn),
    );
    p.exit();
    m.settle();
    let at_end = leaks(&m);
    assert_found(
        &at_end,
        |v| matches!(v, AuditViolation::FramesLeaked { expected, got } if got + 1 == *expected),
    );
    assert_eq!(leaked.refcount(), 1);
}

/// Rules: PIN-01.
#[test]
fn a_pin_that_nobody_answers_for_is_reported() {
    let (m, p) = filled();
    let pin = p.pin(page(0), 4, GupFlags::WRITE).expect("pin");
    assert_eq!(audit(&m, [&p], [&pin]), []);
    assert_found(&found(&m, &p), |v| {
        matches!(v, AuditViolation::Folio(Violation::Refcount { .. }))
    });
    drop(pin);
    assert_eq!(found(&m, &p), []);
}

/// A pin whose references went back as references: folios and frames look right.
///
/// Rules: PIN-17.
#[test]
fn a_pin_that_was_not_released_is_reported() {
    let (m, p) = filled();
    let mut out = mm_gup::Runs::new();
    let (handler, range) = (p.gup_handler(), pages(3, 1));
    let gup = mm_gup::Gup::new(p.mm(), &handler);
    assert_eq!(gup.pin_fast(range.start(), 1, GupFlags::WRITE, &mut out), Ok(1));
    for run in out.take() {
        m.host().memmap().put_run::<mm_folio::Pin>(run);
    }
    drop(handler);
    p.exit();
    m.settle();
    assert_eq!(leaks(&m), [AuditViolation::PinsLeaked { acquired: 1, released: 0 }]);
}

#[track_caller]
fn assert_lost_dirt(m: &M, p: &P, page: mm_arch::Pfn) {
    let found = found(m, p);
    let lost = |v: &_| matches!(v, AuditViolation::LostDirty { pfn, .. } if *pfn == page);
    assert!(found.len() == 1 && found.iter().all(lost), "{found:?}");
}

/// Rules: ACC-05, ACC-15.
#[test]
fn a_lost_dirty_bit_is_reported() {
    let (m, p) = filled();
    let pfn = pfn_of(&p, page(7));
    rewrite(&p, page(7), |e| e.mkclean());
    assert_lost_dirt(&m, &p, pfn);
}

/// What one space gave up, another still counts on, and it says so by its own entry.
///
/// Rules: FOLIO-45, MADV-04.
#[test]
fn dirt_that_one_of_several_lost_is_reported() {
    let (m, p) = filled();
    let pfn = pfn_of(&p, page(7));
    let child = p.fork().expect("fork");
    p.madvise_free(pages(7, 1)).expect("mapped");
    m.settle();
    assert_eq!(audit(&m, [&p, &child], []), []);
    rewrite(&child, page(7), |e| e.mkclean());
    m.settle();
    let lost = audit(&m, [&p, &child], []);
    let of_child = (child.mm().tables().id(), page(7));
    assert!(
        matches!(&lost[..], [AuditViolation::LostDirty { pfn: at, of }]
            if *at == pfn && of.at == Some(of_child) && of.given_up_by == [p.mm().tables().id()]),
        "{lost:?}"
    );
    // Nobody counts on it any more, until it is stored to again.
    child.exit();
    m.settle();
    assert_eq!(found(&m, &p), []);
    p.store(page(7), 1).expect("store");
    rewrite(&p, page(7), |e| e.mkclean());
    assert_lost_dirt(&m, &p, pfn);
}

/// Rules: FOLIO-45, SWAP-03.
#[test]
fn lost_dirt_of_the_swap_cache_is_reported() {
    let (m, p) = filled();
    m.host().swap().add::<X86_64>(64).expect("room");
    let pfn = pfn_of(&p, page(7));
    m.host().swap().fail_write_after(Some(0));
    p.madvise_pageout(pages(7, 1)).expect("mapped");
    assert_eq!(found(&m, &p), []);
    m.host().memmap().folio(pfn).clear_flag(mm_folio::FolioFlags::DIRTY);
    assert_lost_dirt(&m, &p, pfn);
}

/// Rules: INV-2.
#[test]
fn a_widened_write_bit_is_reported() {
    let (m, p) = filled();
    // In a mapping that allows stores, on a page that is shared.
    let child = p.fork().expect("fork");
    let pfn = pfn_of(&p, page(4));
    rewrite(&child, page(4), |e| e.mkwrite(WriteKind::Normal));
    m.settle();
    assert_found(
        &audit(&m, [&p, &child], []),
        |v| matches!(v, AuditViolation::Folio(Violation::WritableNotExclusive { pfn: at, .. }) if *at == pfn),
    );
    child.exit();
    // And in one that does not.
    p.mprotect(pages(8, 4), mm_arch::Rights::READ).expect("mprotect");
    rewrite(&p, page(9), |e| e.mkwrite(WriteKind::Normal));
    m.settle();
    assert_found(
        &found(&m, &p),
        |v| matches!(v, AuditViolation::WiderThanMapping { va, level: Level::Pte, .. } if *va == page(9)),
    );
}

/// Rules: UFFD-06, PTE-15. Cases: MM-039, MM-043.
#[test]
fn a_write_protection_that_nobody_watches_is_reported() {
    let (m, p) = filled();
    let stale = |va| move |v: &AuditViolation| matches!(v, AuditViolation::StaleProtection { va: at, level: Level::Pte, .. } if *at == va);
    rewrite(&p, page(3), |e| e.mkuffd_wp());
    m.settle();
    assert_found(&found(&m, &p), stale(page(3)));
    p.uffd_register(pages(0, 8), mm_map::UffdMode::WP).expect("register");
    assert_eq!(found(&m, &p), []);
    rewrite(&p, page(3), |e| e.mkwrite(WriteKind::Normal));
    assert_found(&found(&m, &p), stale(page(3)));
}

/// Rules: INV-3.
#[test]
fn an_exclusive_page_with_two_mappings_is_reported() {
    let (m, p) = filled();
    let child = p.fork().expect("fork");
    let pfn = pfn_of(&p, page(1));
    m.host().memmap().set_exclusive(pfn, 1);
    assert_found(&audit(&m, [&p, &child], []), |v| {
        matches!(v, AuditViolation::Folio(Violation::ExclusiveMappedTwice { .. }))
    });
}

/// Rules: INV-6.
#[test]
fn a_wrong_rss_counter_is_reported() {
    let (m, p) = filled();
    p.mm().counters().add(RssKind::Anon, 3);
    let space = p.mm().tables().id();
    let wrong = AuditViolation::Rss { space, kind: RssKind::Anon, expected: 16, got: 19 };
    assert_eq!(found(&m, &p), [wrong]);
    p.mm().counters().sub(RssKind::Anon, 3);
}

#[test]
fn an_entry_without_a_mapping_is_reported() {
    let (m, p) = filled();
    let vmas: Vec<_> = {
        let mut w = p.mm().write();
        let mut taken = Vec::new();
        w.change().remove(pages(0, 16), |v| taken.push(v));
        taken
    };
    assert_found(&found(&m, &p), |v| matches!(v, AuditViolation::NoMapping { .. }));
    vmas.into_iter().for_each(|v| p.mm().write().change().insert(v).expect("back"));
    assert_eq!(found(&m, &p), []);
}

/// Rules: RMAP-06.
#[test]
fn a_folio_that_is_locked_for_nobody_is_reported() {
    let (m, p) = filled();
    p.mlock(pages(0, 4), mm_map::LockWhen::Now).expect("mapped");
    assert_eq!(found(&m, &p), []);
    let pfn = pfn_of(&p, page(7));
    let folio = m.host().memmap().folio(pfn);
    let is_large = folio.is_large();
    folio.mlock();
    let expected = AuditViolation::LockedForNobody { head: folio.head() };
    assert!(is_large || found(&m, &p).contains(&expected));
}

/// Rules: MIGR-03.
#[test]
fn flags_that_the_trees_were_not_told_of_are_reported() {
    let (m, p) = filled();
    p.mm()
        .write()
        .change()
        .find_mut(page(0))
        .expect("mapped")
        .set_flags(VmaFlags::READ | VmaFlags::WRITE | VmaFlags::MAY_PRIVATE | VmaFlags::MERGEABLE);
    let space = p.mm().tables().id();
    assert_found(&found(&m, &p), |v| *v == AuditViolation::TreeFlags { space, va: page(0) });
}

/// Rules: RMAP-27, RMAP-28.
#[test]
fn a_mapping_that_left_its_tree_is_reported() {
    let (m, p) = filled();
    {
        let vmas = p.mm().write();
        let vma = vmas.find(page(0)).expect("vma");
        m.host().anon_trees().unlink(p.mm(), vma);
    }
    assert_found(&found(&m, &p), |v| matches!(v, AuditViolation::ReverseMap { .. }));
    // The tree may be another one's by now.
    std::mem::forget((p, m));
}

#[test]
fn a_changed_word_is_reported() {
    let (m, p) = filled();
    let mut shadow = Shadow::default();
    (0..16).for_each(|i| shadow.store(0, page(i), i + 1));
    assert_eq!(shadow.audit(0, &p), []);
    m.host().bytes().store(pfn_of(&p, page(6)), 0, 1000);
    let bad = AuditViolation::Content { process: 0, va: page(6), expected: 7, got: 1000 };
    assert_eq!(shadow.audit(0, &p), [bad]);
}

/// The shadow knows what a process did to its memory.
#[test]
fn the_shadow_follows_forks_and_drops() {
    let (m, p) = filled();
    let mut shadow = Shadow::default();
    (0..16).for_each(|i| shadow.store(0, page(i), i + 1));
    let child = p.fork().expect("fork");
    shadow.fork(0, 1, |_| true);
    p.store(page(0), 50).expect("store");
    shadow.store(0, page(0), 50);
    p.madvise(pages(4, 4), Advice::DontNeed).expect("madvise");
    shadow.forget(0, pages(4, 4));
    assert_eq!(p.load(page(5)), Ok(0));
    m.settle();
    assert_eq!([shadow.audit(0, &p), shadow.audit(1, &child)].concat(), []);
    assert_eq!(audit(&m, [&p, &child], []), []);
}

#[test]
fn a_cached_translation_of_another_space_is_nobodys() {
    let (m, mut p) = filled();
    p.run_on(1);
    assert_eq!(p.load(page(3)), Ok(4));
    assert!(m.host().cpus().nr_cached(1) > 0);
    m.host().cpus().flush_space(p.mm().tables().id());
    assert_eq!((m.host().cpus().nr_cached(0), m.host().cpus().nr_cached(1)), (0, 0));
    let fault = PageFault { va: VirtAddr::new(0x1000), access: CpuAccess::Plain(AccessKind::Read) };
    assert!(p.fault(fault).is_err(), "nothing is mapped there");
}

/// A machine whose process maps a file of 16 pages, all of them stored to.
fn file_filled() -> (M, P, Arc<File<X86_64, EventCounts>>) {
    let m = machine();
    let p = m.spawn().expect("process");
    let f = File::new(m.host(), 16).expect("memory");
    let flags = VmaFlags::READ | VmaFlags::WRITE | VmaFlags::SHARED;
    p.mmap_object(pages(0, 16), flags, f.clone(), 0).expect("mmap");
    for i in 0..16 {
        p.store(page(i), i + 1).expect("store");
    }
    assert_eq!(found(&m, &p), []);
    (m, p, f)
}

/// Rules: FOLIO-01.
#[test]
fn a_cache_that_gives_up_a_reference_is_reported() {
    let (m, p, _f) = file_filled();
    let pfn = pfn_of(&p, page(2));
    let stolen = mm_folio::FolioRun::new(pfn, 0, 1);
    m.host().memmap().put_run::<Get>(stolen);
    assert_found(
        &found(&m, &p),
        |v| matches!(v, AuditViolation::Folio(Violation::Refcount { head, expected: 2, got: 1 }) if *head == pfn),
    );
    m.host().memmap().folio(pfn).grab::<Get>(1).expect("room").hand_over();
    assert_eq!(found(&m, &p), []);
}

/// Rules: FOLIO-45, ZAP-02, FILE-08.
#[test]
fn lost_dirt_of_a_file_is_reported() {
    let (m, p, f) = file_filled();
    let pfn = pfn_of(&p, page(7));
    let folio = m.host().memmap().folio(pfn);
    folio.clear_flag(mm_folio::FolioFlags::DIRTY);
    // The entry still is, but it lets stores through that the file does not hear of.
    assert_found(
        &found(&m, &p),
        |v| matches!(v, AuditViolation::Unannounced { va, .. } if *va == page(7)),
    );
    rewrite(&p, page(7), |e| e.wrprotect().mkclean());
    m.host().cpus().flush_space(p.mm().tables().id());
    assert_lost_dirt(&m, &p, pfn);
    // Nor may it be lost while nothing maps the page.
    p.munmap(pages(0, 16)).expect("munmap");
    m.settle();
    assert_lost_dirt(&m, &p, pfn);
    drop(f);
}

/// Rules: FILE-05, F-RACE-37.
#[test]
fn the_page_of_another_index_is_reported() {
    let (m, p, _f) = file_filled();
    let (a, b) = (pfn_of(&p, page(3)), pfn_of(&p, page(4)));
    rewrite(&p, page(3), |e| e.advance(b.since(a), Level::Pte));
    assert_found(
        &found(&m, &p),
        |v| matches!(v, AuditViolation::WrongPage { va, index: 3, .. } if *va == page(3)),
    );
    rewrite(&p, page(3), |e| e.advance(a.get().wrapping_sub(b.get()), Level::Pte));
    assert_eq!(found(&m, &p), []);
    // Nor may it map a page that is in no file any more.
    let folio = m.host().memmap().folio(a);
    let name = folio.file().expect("in the file");
    folio.clear_file();
    assert_found(
        &found(&m, &p),
        |v| matches!(v, AuditViolation::WrongPage { va, .. } if *va == page(3)),
    );
    folio.set_file(name.0, name.1);
    assert_eq!(found(&m, &p), []);
}

/// Rules: FILE-05. Cases: MM-075.
#[test]
fn a_page_behind_the_end_is_reported() {
    let m = machine();
    let p = m.spawn().expect("process");
    let f = File::new(m.host(), 0).expect("memory");
    f.write(0, 16, &|_, _| 0).expect("room");
    // A folio of 16 pages that nobody may split, and that ends behind the file.
    let own = m.host().memmap().adopt_run::<Get>(f.cached(0).expect("cached"));
    f.truncate(6);
    p.mmap_object(pages(0, 16), VmaFlags::READ, f.clone(), 0).expect("mmap");
    assert_eq!(p.load(page(0)), Ok(0));
    assert_eq!(audit_with(&m, &p, &own), []);
    let first = pfn_of(&p, page(0));
    {
        let vmas = p.mm().read();
        let mut table = p.mm().tables().lock_entry(vmas.stay(), page(0)).table().expect("a table");
        let (i, e) = (table.index_of(page(6)), table.get(table.index_of(page(0))));
        table.fill(i, 1, e.advance(6, Level::Pte));
    }
    assert_found(
        &audit_with(&m, &p, &own),
        |v| matches!(v, AuditViolation::BehindEnd { va, .. } if *va == page(6)),
    );
    rewrite(&p, page(6), |_| <X86_64 as Arch>::Entry::NONE);
    assert_eq!(audit_with(&m, &p, &own), []);
    assert_eq!(own.folio().head(), first);
}
/// What an audit finds beside the reference that the test holds.
fn audit_with(
    m: &M,
    p: &P,
    own: &mm_folio::FolioRef<'_, Host<X86_64>, Get>,
) -> Vec<AuditViolation> {
    let head = own.folio().head();
    let mine = |v: &AuditViolation| {
        matches!(v, AuditViolation::Folio(Violation::Refcount { head: of, expected, got })
            if *of == head && expected + 1 == *got)
    };
    audit(m, [p], []).into_iter().filter(|v| !mine(v)).collect()
}

/// Rules: RMAP-27, RMAP-28.
#[test]
fn a_file_mapping_that_left_its_tree_is_reported() {
    let (m, p, _f) = file_filled();
    {
        let vmas = p.mm().write();
        mm_rmap::unlink_vma(p.mm(), vmas.find(page(0)).expect("vma"));
    }
    let bad = found(&m, &p);
    assert_found(&bad, |v| matches!(v, AuditViolation::ReverseMap { .. }));
    assert_found(&bad, |v| matches!(v, AuditViolation::FileTree { .. }));
    {
        let vmas = p.mm().write();
        mm_rmap::link_vma(p.mm(), vmas.find(page(0)).expect("vma")).expect("memory");
    }
    assert_eq!(found(&m, &p), []);
}

#[test]
fn a_changed_word_of_a_file_is_reported() {
    let (m, p, f) = file_filled();
    let mut shadow = Shadow::default();
    for i in 0..16 {
        shadow.store_at(Spot::of(0, &p, page(i)), i + 1);
    }
    assert_eq!(shadow.audit_objects(&m), []);
    m.host().bytes().store(pfn_of(&p, page(6)), 0, 1000);
    let bad = AuditViolation::ObjectContent { id: f.id(), at: 6 * 4096, expected: 7, got: 1000 };
    assert_eq!(shadow.audit_objects(&m), [bad]);
    m.host().bytes().store(pfn_of(&p, page(6)), 0, 7);
    // What is not cached is looked up on the device.
    f.sync().expect("sync");
    p.munmap(pages(0, 16)).expect("munmap");
    f.forget_clean();
    assert!(f.cache().folios().is_empty() && shadow.audit_objects(&m).is_empty());
}
