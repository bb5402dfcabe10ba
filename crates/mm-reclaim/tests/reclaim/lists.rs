//! Lists of folios.

use crate::common::*;
use mm_arch::Pfn;
use mm_arch::model::ModelWord;
use mm_folio::{Folio, FolioFlags, Get};
use mm_reclaim::{LruList, ReclaimPlatform};
use mm_vma::{BackingKind, Platform};

type A = ModelWord<32>;

fn isolate(m: &M<A>, list: LruList, nr: u64) -> (u64, Vec<Pfn>) {
    let mut heads = Vec::new();
    let mut out = Vec::new();
    let got = m.lru().isolate(m.memmap(), list, nr, &mut |own| {
        heads.push(own.folio().head());
        out.push(own);
    });
    out.into_iter().for_each(|own| m.lru().put_back(own));
    (got, heads)
}
fn listed<'o>(o: &'o Object<A>, first: u64, order: u32, extra: FolioFlags) -> Folio<'o, M<A>> {
    let folio = o.add(first, order).expect("memory");
    folio.set_flag(FolioFlags::LRU | extra);
    folio
}

/// Rules: LRU-01, FOLIO-43.
#[test]
fn flags_say_which_list() {
    use FolioFlags as F;
    for (flags, list) in [
        (F::empty(), LruList::InactiveFile),
        (F::ACTIVE, LruList::ActiveFile),
        (F::SWAPBACKED, LruList::InactiveAnon),
        (F::SWAPBACKED | F::ACTIVE, LruList::ActiveAnon),
        (F::SWAPBACKED | F::UNEVICTABLE, LruList::Unevictable),
        (F::MLOCKED, LruList::Unevictable),
    ] {
        assert_eq!(LruList::of(flags), list);
    }
}

/// Rules: LRU-01, RECL-13.
#[test]
fn the_oldest_come_first_and_pages_count() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    let heads: Vec<_> = (0..4).map(|k| listed(&o, k * 16, 4, FolioFlags::empty()).head()).collect();
    let active = listed(&o, 64, 4, FolioFlags::ACTIVE).head();
    m.lru().drain(m.memmap());
    m.lru().drain(m.memmap());
    assert_eq!(m.lru().heads(LruList::InactiveFile), heads);
    assert_eq!(m.lru().heads(LruList::ActiveFile), [active]);
    // Two folios are 32 pages; what is put back is the youngest.
    assert_eq!(isolate(&m, LruList::InactiveFile, 32), (32, heads[..2].to_vec()));
    assert_eq!(isolate(&m, LruList::InactiveFile, 1), (16, vec![heads[2]]));
    let order = [heads[3], heads[0], heads[1], heads[2]];
    assert_eq!(m.lru().heads(LruList::InactiveFile), order);
    assert_eq!(isolate(&m, LruList::InactiveFile, 1000).0, 64, "each of them once");
    finish_all(&m, vec![], vec![o]);
}

/// Rules: FOLIO-43, LRU-02.
#[test]
fn a_scan_moves_and_drops_what_does_not_belong() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    let none = FolioFlags::empty();
    let folios: Vec<_> = (0..4).map(|k| listed(&o, k * 4, 2, none)).collect();
    m.lru().drain(m.memmap());
    // Used meanwhile; isolated by somebody else; gone.
    folios[0].set_flag(FolioFlags::ACTIVE);
    folios[1].clear_flag(FolioFlags::LRU);
    let own = folios[2].grab::<Get>(1).expect("fits");
    assert!(o.cache().remove(&folios[2].lock()));
    drop(own);
    assert_eq!(isolate(&m, LruList::InactiveFile, 100), (4, vec![folios[3].head()]));
    assert_eq!(m.lru().heads(LruList::ActiveFile), [folios[0].head()]);
    assert_eq!(m.lru().heads(LruList::InactiveFile), [folios[3].head()]);
    m.lru().deactivate(folios[0]);
    assert_eq!(m.lru().heads(LruList::ActiveFile), []);
    assert_eq!(m.lru().heads(LruList::InactiveFile).len(), 2);
    finish_all(&m, vec![], vec![o]);
}

/// Rules: FOLIO-43.
#[test]
fn one_of_two_isolates() {
    let m = reclaim_machine::<A>();
    let o = known_object::<A>(&m, BackingKind::File);
    let folio = listed(&o, 0, 2, FolioFlags::empty());
    m.lru().drain(m.memmap());
    assert!(m.lru().isolate_one(folio) && !m.lru().isolate_one(folio));
    assert_eq!(isolate(&m, LruList::InactiveFile, 100).0, 0);
    finish_all(&m, vec![], vec![o]);
}
