//! A frame source and shorthands for tests.
#![expect(dead_code, reason = "not every test binary uses every shorthand")]

use core::num::NonZeroU32;
use mm_arch::{Level, Pfn};
use mm_folio::audit::{Access, AuditLog, Mapping, Sharing};
use mm_folio::{
    AllocError, AnonId, Exclusivity, Folio, FolioRun, FolioSource, FolioSpace, Get, MemMap, MmId,
};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::vec::Vec;

/// Frames handed out from the bottom and reused by order.
pub struct Frames {
    inner: Mutex<Inner>,
    end: u64,
}
struct Inner {
    next: u64,
    free: BTreeMap<u32, Vec<u64>>,
}

impl Frames {
    pub fn new(first: u64, nr: u64) -> Self {
        let inner = Mutex::new(Inner { next: first, free: BTreeMap::new() });
        Frames { inner, end: first + nr }
    }
}

impl FolioSource for Frames {
    fn alloc(&self, order: u32) -> Result<Pfn, AllocError> {
        let mut inner = self.inner.lock().expect("poisoned");
        if let Some(head) = inner.free.entry(order).or_default().pop() {
            return Ok(Pfn::new(head));
        }
        let head = inner.next.next_multiple_of(1 << order);
        if head + (1 << order) > self.end {
            return Err(AllocError);
        }
        inner.next = head + (1 << order);
        Ok(Pfn::new(head))
    }
    fn free(&self, head: Pfn, order: u32) {
        let mut inner = self.inner.lock().expect("poisoned");
        inner.free.entry(order).or_default().push(head.get());
    }
}

pub struct Space;
impl FolioSpace for Space {
    type Source = Frames;
    type FolioLock = mm_sync::DefaultLock;
}
pub type FolioMap = MemMap<Space>;

/// A map of `nr` frames that starts at an odd one.
pub fn map(nr: u64) -> FolioMap {
    MemMap::new(Pfn::new(7), nr, Frames::new(7, nr)).expect("memory")
}
pub fn mm(id: u32) -> MmId {
    MmId::new(id).expect("in range")
}
pub fn nz(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("not zero")
}

/// A new anonymous folio, all of it mapped by PTEs of `mm`.
pub fn fault(map: &FolioMap, order: u32, mm: MmId) -> Folio<'_, Space> {
    let mut new = map.alloc(order).expect("frames");
    new.folio().set_anon(AnonId(1), 0x1000);
    new.grow((1 << order) - 1).expect("room");
    new.folio().add_new_anon(mm, Level::Pte, Exclusivity::Exclusive);
    new.hand_over()
}
/// A new anonymous folio, mapped by a PMD entry of `mm`.
pub fn fault_pmd(map: &FolioMap, order: u32, mm: MmId) -> Folio<'_, Space> {
    let new = map.alloc(order).expect("frames");
    new.folio().set_anon(AnonId(1), 0x1000);
    new.folio().add_new_anon(mm, Level::Pmd, Exclusivity::Exclusive);
    new.hand_over()
}
/// `mm` unmaps pages and drops their references.
pub fn unmap(folio: Folio<'_, Space>, first: u32, n: u32, mm: MmId) {
    folio.remove_ptes(first, nz(n), mm);
    put(folio, n);
}
pub fn put(folio: Folio<'_, Space>, n: u32) {
    folio.memmap().put_run::<Get>(FolioRun::new(folio.head(), 0, n));
}
/// Entries of `mm` in private memory.
pub fn ptes(folio: Folio<'_, Space>, first: u32, nr: u32, mm: MmId, access: Access) -> Mapping {
    let pfn = folio.page(first);
    Mapping { pfn, nr, level: Level::Pte, mm, access, sharing: Sharing::Private }
}
pub fn pmd(folio: Folio<'_, Space>, mm: MmId, access: Access) -> Mapping {
    let (pfn, level) = (folio.head(), Level::Pmd);
    Mapping { pfn, nr: 1, level, mm, access, sharing: Sharing::Private }
}
/// A log of these mappings.
pub fn log(mappings: &[Mapping]) -> AuditLog {
    let mut log = AuditLog::new();
    for &m in mappings {
        log.mapping(m);
    }
    log
}
