//! Loom models of the lists: the flag that says who may isolate a folio, against the links.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p mm-reclaim --profile loom --test loom_lru
//! ```
#![cfg(loom)]

use mm_arch::Pfn;
use mm_arch::model::ModelWord;
use mm_folio::{FolioFlags, FolioRef, Get};
use mm_reclaim::model::machine;
use mm_reclaim::{LruList, Passed, ReclaimPlatform};
use mm_rmap::model::{ModelConfig, ModelPlatform};
use mm_sync::model::{Bounds, caught, holds_with};
use mm_sync::thread::spawn;
use mm_vma::Platform;

type P = ModelPlatform<ModelWord<4>>;

const LIST: LruList = LruList::InactiveFile;

fn new_machine() -> P {
    machine(ModelConfig { nr_frames: 4, nr_tables: 1, swap_slots: 2, ..ModelConfig::tiny() })
        .expect("machine")
}
/// A scan that is content with one page. The folios that it isolated.
fn scan(p: &P) -> Vec<FolioRef<'_, P, Get>> {
    let mut got = Vec::new();
    let wanted = &mut |_| true;
    p.lru().isolate(p.memmap(), LIST, 1, &mut Passed::default(), wanted, &mut |own| got.push(own));
    got
}
/// What two scans took goes back, and is there once.
fn put_back(p: &P, own: FolioRef<'_, P, Get>, taken: Vec<FolioRef<'_, P, Get>>) {
    assert!(taken.len() < 2, "one folio, isolated by two");
    assert_eq!(own.folio().has(FolioFlags::LRU), taken.is_empty());
    taken.iter().for_each(|own| own.folio().enlist());
    drop(taken);
    assert_eq!(p.lru().heads(LIST), [own.folio().head()]);
    assert_eq!(p.lru().nr_pages(LIST), 1);
    assert!(own.folio().has(FolioFlags::LRU));
    drop(own);
    nothing_left(p);
}
fn nothing_left(p: &P) {
    assert_eq!(p.lru().heads(LIST), [] as [Pfn; 0]);
    assert_eq!(p.lru().nr_pages(LIST), 0);
    assert_eq!(p.folios_in_use(), 0);
}
fn race(name: &str, model: fn(), mutants: &[&'static str]) {
    holds_with(name, Bounds::at_most(3), model);
    for mutant in mutants {
        caught(name, mutant, model);
    }
}

/// Two scans: each has a reference and looks at the flag.
/// Rules: FOLIO-43.
#[test]
fn isolate_vs_isolate() {
    let model = || {
        let p = new_machine();
        let own = p.memmap().alloc(0).expect("frame");
        own.folio().enlist();
        let other = {
            let p = p.clone();
            spawn(move || scan(&p).into_iter().map(|own| own.into_run(0)).collect::<Vec<_>>())
        };
        let mut taken = scan(&p);
        let others = other.join().expect("thread");
        taken.extend(others.into_iter().map(|run| p.memmap().adopt_run::<Get>(run)));
        put_back(&p, own, taken);
    };
    race("isolate vs isolate", model, &["lru.isolate.blind"]);
}
/// Somebody who has a reference isolates the folio between the two steps of `enlist`: the
/// link that comes late is gone after the next scan, and gives nobody a right.
/// Rules: FOLIO-43.
#[test]
fn isolate_vs_enlist() {
    let model = || {
        let p = new_machine();
        let own = p.memmap().alloc(0).expect("frame");
        let owner = {
            let (p, head) = (p.clone(), own.folio().head());
            spawn(move || p.memmap().folio(head).enlist())
        };
        let mine = p.lru().isolate_one(own.folio());
        owner.join().expect("thread");
        let mut taken = scan(&p);
        if mine {
            assert!(taken.is_empty(), "isolated twice");
            assert_eq!(p.lru().heads(LIST), [] as [Pfn; 0]);
            taken.push(own.folio().grab::<Get>(1).expect("fits"));
        }
        put_back(&p, own, taken);
    };
    race("isolate vs enlist", model, &["lru.scan.keeps_late_link"]);
}
/// The owner lets go while a scan comes by: the last of both takes the link along.
/// Rules: FOLIO-43.
#[test]
fn isolate_vs_free() {
    let model = || {
        let p = new_machine();
        let own = p.memmap().alloc(0).expect("frame");
        own.folio().enlist();
        let run = own.into_run(0);
        let owner = {
            let p = p.clone();
            spawn(move || drop(p.memmap().adopt_run::<Get>(run)))
        };
        drop(scan(&p));
        owner.join().expect("thread");
        nothing_left(&p);
    };
    race("isolate vs free", model, &["lru.free.keeps_link"]);
}
/// A locked mapping marks the folio, another one that goes takes the mark away: each lists it
/// by what it saw. No scan looks at what must stay, so nobody would ever find a mistake.
/// Rules: LRU-01, RMAP-06.
#[test]
fn mlock_vs_munlock() {
    let model = || {
        let p = new_machine();
        let own = p.memmap().alloc(0).expect("frame");
        own.folio().enlist();
        let locks = {
            let (p, head) = (p.clone(), own.folio().head());
            spawn(move || p.memmap().folio(head).mlock())
        };
        own.folio().munlock();
        locks.join().expect("thread");
        let belongs = LruList::of(own.folio().flags());
        assert_eq!(p.lru().heads(belongs), [own.folio().head()], "not where its flags say");
        drop(own);
        nothing_left(&p);
    };
    race("mlock vs munlock", model, &["folio.list.by_first_look"]);
}
