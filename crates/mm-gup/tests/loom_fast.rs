//! Models of the races of the lockless walk, on the production code: the walk
//! itself, the tables, the memory map and the sequence count. One test per race;
//! the mutants bring the race back.
//!
//! | race | threads | test |
//! |---|---|---|
//! | P-RACE-01, P-RACE-17 | get or pin; zap, free, allocate | `a_page_is_not_somebody_elses`, `a_run_is_not_somebody_elses` |
//! | P-RACE-04, P-RACE-18, P-RACE-31 | pin; share a page | `a_pinned_page_is_not_shared`, `a_pinned_run_is_not_shared` |
//! | P-RACE-03, P-RACE-30 | pin; fork | `a_pinned_page_is_not_forked`, `a_fork_learns_of_the_first_pin` |
//! | P-RACE-02 | get; free the table | `a_table_is_not_freed_under_a_walk` |
//! | P-RACE-23 | pin for ever; say that the folio must move | `a_page_that_must_move_is_not_pinned_for_ever` |
//! | P-RACE-19 | get; get, at the limit of the count | `a_second_grab_that_fails_loses_nothing` |
//! | P-RACE-05 | get; detach the table, count references | `a_referenced_page_is_not_collapsed` |
//!
//! Sites on this path that no model here can tell from `Relaxed` or nothing, and
//! why (`every_site_is_needed` keeps the list):
//!
//! * `seq.begin`: the full barrier of the quiescence guard stands behind it and
//!   orders as much, whatever the guard is made of elsewhere.
//! * `seq.retry.rmb`: the full barrier behind the last pin orders as much. It
//!   stands for walks that end without a pin, which have nothing to lose.
//! * `share.wmb`: these formats store entries with release, `word.store`; both
//!   together are caught.
//! * `folio.get`: the full barrier behind the grab orders as much; together with
//!   `gup.get.mb` it is caught.
//! * `pair.*`: the walk reads an entry again behind its pin, and meets no second time
//!   what it joined of two values. The models of the getters themselves, in
//!   `mm-arch` and `mm-x86`, catch each.
//! * `word.read`, in a run: `scan.rmb` orders as much. Page by page it is caught.
//! * `gup.pin.mb` against a fork of a *small* folio: fork's own reference is a
//!   read-modify-write of the very word that the pin is in, behind fork's full
//!   barrier, and `folio.get` orders as much. A large folio's pins have a word
//!   of their own: there the barrier is caught.
#![cfg(loom)]

use core::num::NonZeroU32;
use mm_arch::model::{ModelCont, ModelPair, ModelWord};
use mm_arch::{Arch, Entry, Level, Live, Pfn, Protection, SpaceId, VirtAddr, VirtRange, WriteKind};
use mm_fault::{FaultFlags, FaultPolicy, ThpPolicy, handle_fault};
use mm_folio::{
    AllocError, AnonId, Exclusivity, FolioFlags, FolioRef, FolioRun, FolioSource, FolioSpace, Get,
    HasPinned, MemMap, MmId, Pin, RefKind,
};
use mm_gup::{FastPolicy, Gup, GupFlags, Pages, fast::Walk, put_pages, unpin_pages};
use mm_map::{MapPolicy, exit, fork, mmap_anon};
use mm_pgtable::slab::{SlabSpace, slab_space};
use mm_pgtable::{Gather, PageTables, TableSpace, TablesStay};
use mm_rmap::model::{ModelConfig, machine};
use mm_sync::atomic::{AtomicU32, Ordering::*};
use mm_sync::model::{Bounds, caught, holds_with, sweep_all};
use mm_sync::thread::spawn;
use mm_sync::{SeqCount, fence};
use mm_vma::{Mm, Platform, VmaFlags};
use std::sync::Arc;

/// Frames with a bit in the high word of a two-word entry, so that an entry
/// read half and half names no page.
const FIRST: Pfn = Pfn::new(0x10_0000);
const WRITE: GupFlags = GupFlags::WRITE;
const READ: GupFlags = GupFlags::empty();
use FastPolicy::{Page, Run, Whole};

/// Sites whose protocol is the walker's; others are mm-folio's and mm-arch's to model.
const OURS: [&str; 5] = ["gup.", "quiescence.", "scan.", "seq.", "share."];

/// Frames for one folio.
struct Frames {
    free: AtomicU32,
    /// How often they were handed out.
    lives: AtomicU32,
}
impl FolioSource for Frames {
    fn alloc(&self, _: u32) -> Result<Pfn, AllocError> {
        self.free.compare_exchange(1, 0, Acquire, Relaxed).map_err(|_| AllocError)?;
        self.lives.fetch_add(1, Relaxed);
        Ok(FIRST)
    }
    fn free(&self, _: Pfn, _: u32) {
        assert_eq!(self.free.swap(1, Release), 0, "freed twice");
    }
}

struct Space<A: Arch>(SlabSpace<A>);
impl<A: Arch> Clone for Space<A> {
    fn clone(&self) -> Self {
        Space(self.0.clone())
    }
}
// SAFETY: as for `SlabSpace`.
unsafe impl<A: Arch> TableSpace for Space<A> {
    type Arch = A;
    type PtLock = <SlabSpace<A> as TableSpace>::PtLock;
    type Epochs = <SlabSpace<A> as TableSpace>::Epochs;
    type Tables = <SlabSpace<A> as TableSpace>::Tables;
    type Tlb = <SlabSpace<A> as TableSpace>::Tlb;
    fn tables(&self) -> &Self::Tables {
        self.0.tables()
    }
    fn epochs(&self) -> &Self::Epochs {
        self.0.epochs()
    }
    fn tlb(&self) -> &Self::Tlb {
        self.0.tlb()
    }
}
impl<A: Arch> FolioSpace for Space<A> {
    type Source = Frames;
    type FolioLock = mm_sync::DefaultLock;
}

/// An address space with one table, which maps the pages of one folio.
struct World<A: Arch> {
    tables: PageTables<Space<A>>,
    map: MemMap<Space<A>>,
    seq: SeqCount,
    order: u32,
}

fn mm(id: u32) -> MmId {
    MmId::new(id).expect("in range")
}
fn nz(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("not zero")
}
/// No table is freed but by the thread that says so, which takes no lock of it.
fn stay<'a>() -> TablesStay<'a> {
    // SAFETY: see above.
    unsafe { TablesStay::new() }
}
const START: VirtAddr = VirtAddr::new(0);

/// A new exclusive anonymous folio of `order`, mapped from address 0 on.
fn world<A: Arch>(order: u32, writable: bool) -> Arc<World<A>> {
    let nr = 1 << order;
    let frames = Frames { free: AtomicU32::new(1), lives: AtomicU32::new(0) };
    let map = MemMap::with_pincount_from(FIRST, u64::from(nr), frames, A::PINCOUNT_MIN_ORDER);
    let map = map.expect("memory");
    let tables = PageTables::new(Space(slab_space(2)), SpaceId(1)).expect("root");
    let mut new = map.alloc(order).expect("frames");
    if nr > 1 {
        new.grow(nr - 1).expect("room");
    }
    let folio = new.hand_over();
    if order == 1 {
        // Anonymous folios are of order 0 or from order 2 on.
        folio.add_file_ptes(0, nz(nr), mm(1));
    } else {
        folio.set_anon(AnonId(1), 0);
        folio.add_new_anon(mm(1), Level::Pte, Exclusivity::Exclusive);
    }
    let e = A::Entry::leaf(FIRST, A::prot(Protection::private_read_write()), Level::Pte);
    let e = if writable { e.mkdirty().mkwrite(WriteKind::Normal) } else { e };
    let ensured = tables.ensure_table(stay(), START).expect("memory");
    ensured.table().expect("no leaf").fill(0, nr as usize, e);
    Arc::new(World { tables, map, seq: SeqCount::new(), order })
}

impl<A: Arch> World<A> {
    fn nr(&self) -> usize {
        1 << self.order
    }
    fn take<K: RefKind>(&self, policy: FastPolicy, n: usize, flags: GupFlags) -> Vec<Pfn> {
        let walk = Walk {
            tables: &self.tables,
            map: &self.map,
            write_protect_seq: &self.seq,
            observer: &(),
        };
        let mut out = [Pfn::new(0); 4];
        let got = walk.take::<K>(policy, START, n, flags, &mut Pages::new(&mut out[..n]));
        out[..got].to_vec()
    }
    /// Unmaps all pages and gives their references back, as zapping does.
    fn zap(&self, free_table: bool) {
        let mut gather: Gather<'_, Space<A>, FolioRef<'_, Space<A>, Get>> =
            Gather::new(&self.tables);
        let mut table = self.tables.lock_table(stay(), START).expect("there");
        table.take_each::<Live>(0, self.nr(), gather.owed(), |_, _| ());
        let n = self.nr() as u32;
        self.map.folio(FIRST).remove_ptes(0, nz(n), mm(1));
        gather.park(self.map.adopt_run(FolioRun::new(FIRST, 0, n)));
        drop(table);
        if free_table {
            let range = VirtRange::units(START, n.into(), A::PAGE_SHIFT).expect("range");
            // SAFETY: no locked walker but this thread, no reverse map.
            unsafe { self.tables.free_empty_tables(range, &mut gather) };
        }
        gather.finish();
    }
    /// Takes the page's exclusive mark away, as migration, swap-out and merging do.
    fn share(&self, index: usize) -> bool {
        let mut table = self.tables.lock_table(stay(), START).expect("there");
        let mut owed = self.tables.tlb().obligation();
        let e = table.take(index, &mut owed);
        let shared = self.map.folio(FIRST).try_share_anon_pte(index as u32).is_ok();
        table.set(index, if shared { e.wrprotect() } else { e });
        drop(table);
        owed.now();
        shared
    }
    /// Maps all pages into a child, as fork does with a run; whether they are shared.
    fn fork(&self) -> bool {
        let n = nz(self.nr() as u32);
        let mut owed = self.tables.tlb().obligation();
        self.seq.write_begin();
        let mut table = self.tables.lock_table(stay(), START).expect("there");
        let refs = self.map.folio(FIRST).grab::<Get>(n.get()).expect("room");
        let shared = refs.folio().try_dup_anon_ptes(0, n, mm(2), HasPinned::Maybe).is_ok();
        if shared {
            refs.hand_over();
            table.wrprotect(0, self.nr(), &mut owed);
        }
        drop(table);
        self.seq.write_end();
        owed.now();
        shared
    }
    /// Cuts the table off and takes the pages if nobody else holds them; whether.
    fn collapse(&self) -> bool {
        let mut pmd = self.tables.lock_pmd(stay(), START).expect("there");
        let mut owed = self.tables.tlb().obligation();
        let table = pmd.swap(A::Entry::NONE, &mut owed);
        // Stands for the flush, which interrupts every walker.
        fence!("collapse.mb", SeqCst);
        owed.already_done();
        let folio = self.map.folio(FIRST);
        let alone = folio.counts_locked(|c| c.refs == c.mapcount as i32);
        if alone {
            self.map.content(FIRST).retired();
        } else {
            let mut owed = self.tables.tlb().obligation();
            let frame = table.as_table(Level::Pmd).expect("a table");
            // SAFETY: cut off above, and nobody else's.
            unsafe { pmd.link(frame, &mut owed) };
            owed.already_done();
        }
        alone
    }
    fn give_back<K: RefKind>(&self, pages: &[Pfn]) {
        if K::PINS { unpin_pages(&self.map, pages) } else { put_pages(&self.map, pages) }
    }
    /// References and pins beside those of the mappings.
    fn extra(&self) -> (i32, u32) {
        let folio = self.map.folio(FIRST);
        (folio.refcount() - folio.mapcount() as i32, folio.pincount())
    }
}

/// Every mutant of the list must be found in `model`, which holds without.
fn race(name: &str, model: impl Fn() + Copy + Send + Sync + 'static, mutants: &[&'static str]) {
    holds_with(name, Bounds::at_most(3), model);
    for mutant in mutants {
        caught(name, mutant, model);
    }
}
fn holds(name: &str, model: impl Fn() + Copy + Send + Sync + 'static) {
    race(name, model, &[]);
}

/// One thread takes pages, another unmaps them and allocates the folio again.
fn zap_and_realloc<A: Arch, K: RefKind>(order: u32, policy: FastPolicy) {
    let w = world::<A>(order, true);
    let walker = spawn({
        let w = w.clone();
        move || {
            let got = w.take::<K>(policy, w.nr(), WRITE);
            for page in &got {
                w.map.content(*page).used();
                assert_eq!(w.map.source().lives.load(Relaxed), 1, "a page of somebody else");
            }
            w.give_back::<K>(&got);
        }
    });
    w.zap(false);
    let new = w.map.alloc(order).map(|new| new.hand_over());
    walker.join().expect("joins");
    // The walker was the last, or the folio has another life.
    if new.is_ok() {
        assert_eq!(w.extra(), (1, 0), "references of the new owner");
    } else {
        assert_eq!(w.map.source().free.load(Relaxed), 1, "leaked");
    }
    assert_eq!(w.map.stats().bad_frees.get(), 0);
}

/// Rules: GUPF-11, GUPF-12, P-RACE-01, F-RACE-38.
#[test]
fn a_page_is_not_somebody_elses() {
    type W = ModelWord<4>;
    let mutants =
        &["gup.no_pte_recheck", "folio.get.not_unless_zero", "folio.put", "folio.get+gup.get.mb"];
    race("get vs zap", || zap_and_realloc::<W, Get>(0, Page), mutants);
    race("get vs zap, run policy", || zap_and_realloc::<W, Get>(0, Run), &["gup.no_pte_recheck"]);
    race("pin vs zap", || zap_and_realloc::<W, Pin>(0, Page), &["gup.no_pte_recheck"]);
}

/// Rules: GUPF-16, GUPF-18, GUPF-20, P-RACE-01, P-RACE-17.
#[test]
fn a_run_is_not_somebody_elses() {
    type W = ModelWord<4>;
    let mutants = &["gup.no_pte_recheck", "folio.put"];
    race("get vs zap, run of 2", || zap_and_realloc::<W, Get>(1, Run), mutants);
    race("get vs zap, 2 by page", || zap_and_realloc::<W, Get>(1, Page), &["gup.no_pte_recheck"]);
    race("pin vs zap, run of 2", || zap_and_realloc::<W, Pin>(1, Run), &["gup.no_pte_recheck"]);
    holds("get vs zap, run of 4", || zap_and_realloc::<W, Get>(2, Run));
    race("get vs zap, whole", || zap_and_realloc::<W, Get>(1, Whole), mutants);
    race("pin vs zap, whole", || zap_and_realloc::<W, Pin>(1, Whole), &["gup.no_pte_recheck"]);
}

/// The same on entries of two words.
///
/// Rules: GUPF-11, GUPF-16, PAE-06, P-RACE-01.
#[test]
fn a_page_is_not_somebody_elses_in_two_words() {
    type P = ModelPair<4>;
    race("pair, get vs zap", || zap_and_realloc::<P, Get>(0, Page), &["gup.no_pte_recheck"]);
    holds("pair, get vs zap, run of 2", || zap_and_realloc::<P, Get>(1, Run));
    race("pair, pin vs zap", || zap_and_realloc::<P, Pin>(0, Page), &["gup.no_pte_recheck"]);
}

/// One thread pins from page 0 on, another takes away the mark of page `at`.
fn pin_and_share<A: Arch>(order: u32, writable: bool, at: usize, policy: FastPolicy) {
    let w = world::<A>(order, writable);
    let flags = if writable { WRITE } else { READ };
    let pinner = spawn({
        let w = w.clone();
        move || w.take::<Pin>(policy, at + 1, flags)
    });
    let shared = w.share(at);
    let got = pinner.join().expect("joins");
    assert!(!(shared && got.len() > at), "shared while pinned");
    w.give_back::<Pin>(&got);
    assert_eq!(w.extra(), (0, 0));
}

/// Both full barriers are needed; what the other two are worth, the head of this file says.
///
/// Rules: GUPF-12, GUPS-24, GUPS-26, RMAP-19, P-RACE-04. Cases: MM-014.
#[test]
fn a_pinned_page_is_not_shared() {
    type W = ModelWord<4>;
    let mutants = &["gup.pin.mb", "share.mb", "gup.no_pte_recheck"];
    race("pin W vs share", || pin_and_share::<W>(0, true, 0, Page), mutants);
    let mutants = &["gup.pin.mb", "share.mb", "share.wmb+word.store", "word.read"];
    race("pin R vs share", || pin_and_share::<W>(0, false, 0, Page), mutants);
    holds("pin W vs share, one of a large folio", || pin_and_share::<W>(2, true, 0, Page));
}

/// Rules: GUPF-16, GUPF-17, GUPF-20, GUPF-21, GUPS-25, P-RACE-17, P-RACE-18,
/// P-RACE-31.
#[test]
fn a_pinned_run_is_not_shared() {
    type W = ModelWord<4>;
    let mutants = &["gup.pin.mb", "share.mb", "gup.batch.scan_first", "gup.batch.ignore_write"];
    race("pin W vs share, tail of a run", || pin_and_share::<W>(2, true, 1, Run), mutants);
    let mutants = &["gup.excl.head_only", "share.wmb+word.store", "scan.rmb+word.read"];
    race("pin R vs share, tail of a run", || pin_and_share::<W>(2, false, 1, Run), mutants);
    // Taken whole, the pins of pages that turn out to be shared go back.
    let mutants = &["gup.pin.mb", "share.mb", "gup.batch.scan_first", "gup.whole.keep_surplus"];
    race("pin W vs share, tail, whole", || pin_and_share::<W>(2, true, 1, Whole), mutants);
    let mutants = &["gup.excl.head_only", "scan.rmb+word.read", "gup.whole.keep_surplus"];
    race("pin R vs share, tail, whole", || pin_and_share::<W>(2, false, 1, Whole), mutants);
    holds("pin W vs share, second page", || pin_and_share::<W>(2, true, 1, Page));
    holds("pin R vs share, second page", || pin_and_share::<W>(2, false, 1, Page));
}

/// The same on entries of two words and on blocks.
///
/// Rules: GUPF-16, GUPF-20, PAE-06, CONT-10, P-RACE-17.
#[test]
fn a_pinned_run_is_not_shared_on_other_formats() {
    type P = ModelPair<4>;
    let mutants = &["gup.batch.scan_first"];
    race("pair, pin W vs share, tail", || pin_and_share::<P>(2, true, 1, Run), mutants);
    let mutants = &["gup.pin.mb", "share.mb", "gup.no_pte_recheck"];
    race("pair, pin R vs share", || pin_and_share::<P>(0, false, 0, Page), mutants);
    let mutants = &["gup.batch.scan_first"];
    type C = ModelCont<4, 2>;
    race("cont, pin W vs share, tail", || pin_and_share::<C>(2, true, 1, Run), mutants);
}

/// The same on blocks: the run comes from one look at each of them, the tail is in the
/// head's block or in the next.
///
/// Rules: GUPF-16, GUPF-17, GUPF-20, CONT-10, CONT-16, P-RACE-17, P-RACE-20, P-RACE-31.
#[test]
fn a_run_of_blocks_is_not_shared_or_somebody_elses() {
    type C = ModelCont<4, 2>;
    let mutants = &["gup.batch.scan_first", "cont.take.no_unfold"];
    race("cont, pin W vs share, next block", || pin_and_share::<C>(2, true, 3, Run), mutants);
    let mutants = &["gup.excl.head_only", "scan.rmb+word.read"];
    race("cont, pin R vs share, tail", || pin_and_share::<C>(2, false, 1, Run), mutants);
    holds("cont, pin W vs share, by page", || pin_and_share::<C>(2, true, 1, Page));
    race("cont, get vs zap", || zap_and_realloc::<C, Get>(1, Run), &["gup.no_pte_recheck"]);
    holds("cont, pin vs zap, by page", || zap_and_realloc::<C, Pin>(1, Page));
    race("cont, get vs table free", || get_and_free_table::<C>(Run), &["table.free_now"]);
}

/// One thread pins all pages but gives up if a fork came in, another forks.
fn pin_and_fork<A: Arch>(order: u32, policy: FastPolicy) {
    let w = world::<A>(order, true);
    let pinner = spawn({
        let w = w.clone();
        move || w.take::<Pin>(policy, w.nr(), WRITE)
    });
    let shared = w.fork();
    let got = pinner.join().expect("joins");
    assert!(!(shared && !got.is_empty()), "the child shares a pinned page");
    w.give_back::<Pin>(&got);
    assert_eq!(w.extra(), (0, 0));
    let stats = w.map.stats();
    assert_eq!(stats.foll_pin_acquired.get(), stats.foll_pin_released.get());
}

/// Rules: GUPF-05, GUPF-15, GUPS-26, RMAP-10, P-RACE-03, F-RACE-01. Cases: MM-013.
#[test]
fn a_pinned_page_is_not_forked() {
    type W = ModelWord<4>;
    let mutants = &["seq.write.mb", "gup.seq.no_check", "gup.pin.mb+folio.get+seq.retry.rmb"];
    race("pin vs fork", || pin_and_fork::<W>(0, Page), mutants);
    let mutants = &["seq.write.mb", "gup.seq.no_check", "gup.pin.mb"];
    race("pin vs fork, run of 4", || pin_and_fork::<W>(2, Run), mutants);
    race("pin vs fork, whole", || pin_and_fork::<W>(2, Whole), mutants);
    race("pin vs fork, 4 by page", || pin_and_fork::<W>(2, Page), &["gup.seq.no_check"]);
    holds("pin vs fork, pair", || pin_and_fork::<ModelPair<4>>(0, Page));
}

/// The same through the entry points: a fork that looks for pins only if the
/// space says that it may have some.
///
/// Rules: GUPF-02, GUPF-05, PIN-12, FORK-03, P-RACE-03, P-RACE-30.
#[test]
fn a_fork_learns_of_the_first_pin() {
    fn model() {
        let config = ModelConfig { nr_frames: 8, nr_tables: 4, ..ModelConfig::tiny() };
        let m = machine::<ModelWord<4>>(config).expect("machine");
        let parent = Mm::new(m.clone()).expect("space");
        let range = VirtRange::units(START, 4, 12).expect("range");
        let vm = VmaFlags::READ | VmaFlags::WRITE;
        mmap_anon(&mut parent.write(), range, vm).expect("free");
        let policy = FaultPolicy::new(ThpPolicy::new(2));
        let _ = handle_fault(&policy, &parent.read(), START, FaultFlags::WRITE);
        let pinner = spawn({
            let parent = parent.clone();
            move || {
                let mut page = [Pfn::new(0)];
                let mut out = Pages::new(&mut page);
                let got = Gup::new(&parent, &()).pin_fast_only(START, 1, WRITE, &mut out);
                got.is_ok_and(|got| got == 1).then_some(page[0])
            }
        });
        let child = fork(&MapPolicy::default(), &parent).expect("memory");
        let pinned = pinner.join().expect("joins");
        let of_child = {
            let vmas = child.read();
            let table = child.tables().lock_table(vmas.stay(), START).expect("copied");
            table.get(0).pfn(Level::Pte)
        };
        unpin_pages(m.memmap(), pinned.as_slice());
        exit(&MapPolicy::default(), &child);
        exit(&MapPolicy::default(), &parent);
        // Last, when no destructor has anything to complain of.
        assert_eq!(m.folios_in_use(), 0);
        assert!(pinned != Some(of_child), "the child shares a pinned page");
    }
    let name = "first pin vs fork";
    holds_with(name, Bounds::at_most(2), model);
    caught(name, "mm.has_pinned.late", model);
    caught(name, "gup.seq.no_check", model);
}

/// One thread takes a page, another unmaps it and frees the table.
fn get_and_free_table<A: Arch>(policy: FastPolicy) {
    let w = world::<A>(0, true);
    let walker = spawn({
        let w = w.clone();
        move || {
            let got = w.take::<Get>(policy, 1, READ);
            w.give_back::<Get>(&got);
        }
    });
    w.zap(true);
    walker.join().expect("joins");
    assert_eq!(w.map.alive().count(), 0);
}

/// Rules: GUPF-06, GUPF-12, P-RACE-02.
#[test]
fn a_table_is_not_freed_under_a_walk() {
    let mutants = &[
        "table.free_now",
        "quiescence.no_wait",
        "quiescence.pin.mb",
        "quiescence.sync.mb",
        "quiescence.unpin",
        "quiescence.sync",
    ];
    race("get vs table free", || get_and_free_table::<ModelWord<4>>(Page), mutants);
    race(
        "get vs table free, pair",
        || get_and_free_table::<ModelPair<4>>(Run),
        &["table.free_now"],
    );
}

/// One thread takes all pages, another cuts their table off if nobody holds them.
fn get_and_collapse(order: u32, policy: FastPolicy) {
    let w = world::<ModelWord<4>>(order, true);
    let walker = spawn({
        let w = w.clone();
        move || {
            let got = w.take::<Get>(policy, w.nr(), READ);
            if !got.is_empty() {
                w.map.content(FIRST).used();
            }
            got
        }
    });
    let collapsed = w.collapse();
    let got = walker.join().expect("joins");
    assert!(!(collapsed && !got.is_empty()), "collapsed a referenced page");
    w.give_back::<Get>(&got);
    assert_eq!(w.extra(), (0, 0));
}

/// Rules: GUPF-12, GUPF-20, P-RACE-05.
#[test]
fn a_referenced_page_is_not_collapsed() {
    let mutants = &["gup.get.mb", "collapse.mb", "gup.no_pmd_recheck"];
    race("get vs collapse", || get_and_collapse(0, Page), mutants);
    for (name, policy) in [("get vs collapse, run of 4", Run), ("get vs collapse, whole", Whole)] {
        race(name, move || get_and_collapse(2, policy), &["gup.no_pmd_recheck"]);
    }
}

/// One thread pins for ever unless it may not, another declares that and, if nobody
/// holds the folio, moves it away.
fn pin_and_isolate(order: u32, policy: FastPolicy) {
    let w = world::<ModelWord<4>>(order, true);
    let pinner = spawn({
        let w = w.clone();
        move || w.take::<Pin>(policy, w.nr(), WRITE | GupFlags::LONGTERM)
    });
    let folio = w.map.folio(FIRST);
    folio.set_flag(FolioFlags::NO_LONGTERM);
    // The entry is the same afterwards, as if the move had been given up late.
    let moved = folio.freeze(w.nr() as u32);
    if moved {
        folio.unfreeze(w.nr() as u32);
    }
    let got = pinner.join().expect("joins");
    assert!(!(moved && !got.is_empty()), "pinned for ever where it must not be");
    w.give_back::<Pin>(&got);
    assert_eq!(w.extra(), (0, 0));
}

/// Rules: GUPF-24, LT-04, PIN-05, P-RACE-23.
#[test]
fn a_page_that_must_move_is_not_pinned_for_ever() {
    let mutants = &["gup.longterm.early"];
    race("pin L vs isolate", || pin_and_isolate(0, Page), mutants);
    race("pin L vs isolate, run of 4", || pin_and_isolate(2, Run), mutants);
    race("pin L vs isolate, whole", || pin_and_isolate(2, Whole), mutants);
}

/// Two threads take pages of a folio whose count has room for only some of them.
fn two_at_the_limit(policy: FastPolicy) {
    let w = world::<ModelWord<4>>(2, true);
    let folio = w.map.folio(FIRST);
    // Room for five: a head and a rest, and a head.
    let room = i32::MAX as u32 - folio.refcount() as u32 - 5;
    let full = folio.grab::<Get>(room).expect("fits").into_run(0);
    let other = spawn({
        let w = w.clone();
        move || w.take::<Get>(policy, w.nr(), WRITE)
    });
    let mine = w.take::<Get>(policy, w.nr(), WRITE);
    let other = other.join().expect("joins");
    w.map.put_run::<Get>(full);
    let held = (mine.len() + other.len()) as i32;
    assert!(held > 0 && held <= 5, "more than fit, or none at all");
    assert_eq!(w.extra(), (held, 0), "one reference per page that came back");
    w.give_back::<Get>(&mine);
    w.give_back::<Get>(&other);
    assert_eq!(w.extra(), (0, 0));
}

/// Rules: GUPF-18, PIN-11, PIN-19, P-RACE-19.
#[test]
fn a_second_grab_that_fails_loses_nothing() {
    race("two at the limit, page", || two_at_the_limit(Page), &[]);
    race("two at the limit, run", || two_at_the_limit(Run), &["gup.rest.unchecked"]);
    race("two at the limit, whole", || two_at_the_limit(Whole), &[]);
}

/// One thread takes all pages for writing, another write-protects them and then says so.
fn take_and_protect<A: Arch>(order: u32, policy: FastPolicy) {
    let w = world::<A>(order, true);
    let said = Arc::new(AtomicU32::new(0));
    let taker = spawn({
        let (w, said) = (w.clone(), said.clone());
        move || {
            let before = said.load(Acquire) == 1;
            (before, w.take::<Get>(policy, w.nr(), WRITE))
        }
    });
    let mut owed = w.tables.tlb().obligation();
    let mut table = w.tables.lock_table(stay(), START).expect("there");
    table.wrprotect(0, w.nr(), &mut owed);
    drop(table);
    owed.now();
    said.store(1, Release);
    let (before, got) = taker.join().expect("joins");
    // Until then the old permission may still have been found, for any prefix.
    assert!(!before || got.is_empty(), "a store through an entry that was read-only all along");
    assert!(got.iter().zip(0..).all(|(page, n)| *page == FIRST.add(n)));
    w.give_back::<Get>(&got);
    assert_eq!(w.extra(), (0, 0));
    assert!(w.take::<Get>(policy, w.nr(), WRITE).is_empty());
}

/// Rules: P-RACE-28, GUPF-11, GUPF-16.
#[test]
fn a_permission_that_was_taken_away_before_is_not_used() {
    type W = ModelWord<4>;
    let mutants = &["gup.any_permission"];
    race("get W vs protect", || take_and_protect::<W>(0, Page), mutants);
    race("get W vs protect, run", || take_and_protect::<W>(1, Run), mutants);
    race("get W vs protect, whole", || take_and_protect::<W>(1, Whole), mutants);
    race("get W vs protect, pair", || take_and_protect::<ModelPair<4>>(0, Page), mutants);
}

/// Every named site of this path is caught by a model, but for those that the
/// head of this file explains.
///
/// Rules: GUPF-05, GUPF-06, GUPF-12, GUPF-16, GUPF-17.
#[test]
fn every_site_is_needed() {
    type W = ModelWord<4>;
    let models: [(&str, fn()); 8] = [
        ("get vs zap", || zap_and_realloc::<W, Get>(0, Page)),
        ("pin W vs share", || pin_and_share::<W>(2, true, 1, Run)),
        ("pin R vs share", || pin_and_share::<W>(2, false, 1, Run)),
        ("pin R vs share, whole", || pin_and_share::<W>(2, false, 1, Whole)),
        ("pin vs fork", || pin_and_fork::<W>(0, Page)),
        ("pin L vs isolate", || pin_and_isolate(0, Page)),
        ("get vs table free", || get_and_free_table::<W>(Page)),
        ("get vs collapse", || get_and_collapse(0, Page)),
    ];
    let swept = sweep_all(&models, &OURS);
    assert_eq!(swept.free, ["seq.begin", "seq.retry.rmb", "share.wmb"]);
}
