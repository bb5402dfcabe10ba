//! Userfaultfd puts pages where none are: copies, zeros, what an object has, poison.
//!
//! The answers to events of missing pages. They run beside faults, on the read side of the
//! mmap lock; whether a place is empty is decided under its table lock, so that whoever comes
//! second is told that something is there (rule UFFD-02).
//!
//! What is put into a shared mapping is a page of the object, for everybody: the object
//! gets it first, and the place second. In a private mapping it is the mapping's own.

use crate::MapError;
use crate::entry::E;
use crate::vmas::check_user_range;
use core::num::NonZeroU32;
use mm_arch::{Arch, Entry, Level, Markers, NonPresent, Pfn, SwapBits, VirtAddr, VirtRange};
use mm_folio::{Exclusivity, FolioFlags, FolioRef, FrameBytes, Get};
use mm_pgtable::{Ensured, LockedTable};
use mm_rmap::RmapPlatform;
use mm_vma::{
    Backing, BackingError, BackingKind, InstallError, MmRead, PageRequest, RssKind, Vma, VmaFlags,
    mlock_mapped,
};

/// Whether a page comes write-protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comes {
    /// As the mapping allows.
    Plain,
    /// A store to it is an event (rule UFFD-04).
    Protected,
}

/// Puts new pages into `range`, where nothing is; `fill` gives each its content: it gets the
/// frame, and the number of the page in the range (rule UFFD-02).
///
/// # Errors
///
/// If the range is not page-aligned or not in user space; at the first page that is there, or
/// in no registered mapping, or behind the end of an object; at the first mapping that is not
/// registered for write protection, if the pages are to come with it; if there is no memory.
/// The pages below the position in the error are mapped.
pub fn uffd_copy<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    range: VirtRange,
    comes: Comes,
    mut fill: impl FnMut(u64, Pfn),
) -> Result<(), MapError> {
    each_page(vmas, range, |k, va, vma| {
        can_come(comes, va, vma)?;
        let mut fill = |pfn| fill(k, pfn);
        match shared_object(vma) {
            Some(object) => install(vmas, vma, va, object, comes, &mut fill),
            None => copy(vmas, vma, va, comes, &mut fill),
        }
    })
}

/// Puts zeros into `range`, where nothing is: the zero page, or a page of the object that a
/// mapping shares. In the place of a marker the zero page comes write-protected; a kernel may
/// refuse that, and leave whoever answers by zero pages without an answer.
///
/// # Errors
///
/// As [`uffd_copy`].
pub fn uffd_zeropage<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    range: VirtRange,
) -> Result<(), MapError> {
    each_page(vmas, range, |_, va, vma| match shared_object(vma) {
        Some(object) => {
            let bytes = vmas.mm().platform().bytes();
            install(vmas, vma, va, object, Comes::Plain, &mut |pfn| bytes.zero(pfn, 1))
        }
        None => zero_page(vmas, vma, va),
    })
}

/// Maps what the object of shared memory has for `range`: the answer to an event of a page
/// that is there and not mapped (rule UFFD-03).
///
/// # Errors
///
/// As [`uffd_copy`]; and at the first page that the object has not, or that is poisoned.
pub fn uffd_continue<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    range: VirtRange,
    comes: Comes,
) -> Result<(), MapError> {
    each_page(vmas, range, |_, va, vma| {
        can_come(comes, va, vma)?;
        let object = vma.backing().filter(|b| b.kind() == BackingKind::Shmem);
        let object = object.ok_or(MapError::Invalid(va))?;
        let index = vma.linear_index(va);
        if index >= object.nr_pages() || object.is_missing(index) {
            return Err(MapError::BadAddress(va));
        }
        let found = object.page(&PageRequest { index, vma, va });
        let found = found.map_err(|e| match e {
            BackingError::PastEnd => MapError::BadAddress(va),
            BackingError::Io => MapError::Poisoned(va),
            BackingError::NoMemory => MapError::NoMemory(va),
        });
        let found = found?.page;
        let page = found.first;
        map_page(
            vmas,
            vma,
            va,
            &**object,
            vmas.mm().platform().memmap().adopt_run(found),
            page,
            comes,
        )
    })
}

/// Poisons the pages of `range`, where nothing is, not even a marker: whoever touches them gets
/// a signal (rules UFFD-03, UFFD-05).
///
/// # Errors
///
/// As [`uffd_copy`].
pub fn uffd_poison<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    range: VirtRange,
) -> Result<(), MapError> {
    each_page(vmas, range, |_, va, vma| {
        if is_behind_end(vma, va) {
            return Err(MapError::BadAddress(va));
        }
        let poison = NonPresent::Marker(Markers::POISONED);
        let poison = E::<P>::from_nonpresent(poison, SwapBits::default());
        let poison = poison.map_err(|_| MapError::Invalid(va))?;
        let mut place = Place::find(vmas, va)?;
        if place.marked {
            return Err(exists::<P>(va));
        }
        place.table.set(place.index, poison);
        Ok(())
    })
}

/// Calls `each` for every page of `range`, which must be in registered mappings.
fn each_page<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    range: VirtRange,
    mut each: impl FnMut(u64, VirtAddr, &Vma) -> Result<(), MapError>,
) -> Result<(), MapError> {
    check_user_range(vmas.mm(), range)?;
    for k in 0..range.nr(P::Arch::PAGE_SHIFT) {
        let va = range.start().add_units(k, P::Arch::PAGE_SHIFT);
        let vma = vmas.find(va).filter(|vma| vma.flags().intersects(VmaFlags::UFFD_ANY));
        each(k, va, vma.ok_or(MapError::NotRegistered(va))?)?;
    }
    Ok(())
}

/// Whether somebody will hear of a store to a page of `vma` that comes so.
fn can_come(comes: Comes, va: VirtAddr, vma: &Vma) -> Result<(), MapError> {
    match comes {
        Comes::Protected if !vma.flags().contains(VmaFlags::UFFD_WP) => Err(MapError::Invalid(va)),
        Comes::Protected | Comes::Plain => Ok(()),
    }
}

fn exists<P: RmapPlatform>(va: VirtAddr) -> MapError {
    VirtRange::units(va, 1, P::Arch::PAGE_SHIFT).map_or(MapError::Invalid(va), MapError::Exists)
}
fn shared_object(vma: &Vma) -> Option<&dyn Backing> {
    let object = vma.backing().filter(|_| vma.flags().contains(VmaFlags::SHARED));
    object.map(|object| &**object)
}
fn is_behind_end(vma: &Vma, va: VirtAddr) -> bool {
    vma.backing().is_some_and(|object| vma.linear_index(va) >= object.nr_pages())
}

/// A place without a page, locked.
pub(crate) struct Place<'g, P: RmapPlatform> {
    pub table: LockedTable<'g, P>,
    pub index: usize,
    /// There is a marker of write protection.
    pub marked: bool,
}

impl<'g, P: RmapPlatform> Place<'g, P> {
    fn find(vmas: &'g MmRead<'_, P>, va: VirtAddr) -> Result<Self, MapError> {
        let tables = vmas.mm().tables();
        let ensured = tables.ensure_table(vmas.stay(), va).map_err(|_| MapError::NoMemory(va))?;
        let Ensured::Table(table) = ensured else { return Err(exists::<P>(va)) };
        let index = table.index_of(va);
        let old = table.get(index);
        let marked = old.nonpresent(Level::Pte) == Some(NonPresent::Marker(Markers::UFFD_WP));
        if old.is_none() || marked {
            // Nobody may read what was there a moment ago (rule TLBB-07).
            table.settle_deferred();
            Ok(Place { table, index, marked })
        } else {
            Err(exists::<P>(va))
        }
    }
}

/// The entry of a page that comes: dirty, for nobody else has its content, and writable where
/// the mapping allows stores to the page itself.
fn entry<P: RmapPlatform>(vma: &Vma, pfn: Pfn, own: bool, comes: Comes) -> E<P> {
    // Dirty first: of a shadow-stack entry it takes the write permission away (rule
    // SHSTK-06).
    let e = E::<P>::leaf(pfn, P::Arch::prot(vma.protection()), Level::Pte).wrprotect().mkdirty();
    match comes {
        Comes::Protected => e.mkuffd_wp(),
        Comes::Plain if own && vma.flags().contains(VmaFlags::WRITE) => e.mkwrite(vma.write_kind()),
        Comes::Plain => e,
    }
}

fn zero_page<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    vma: &Vma,
    va: VirtAddr,
) -> Result<(), MapError> {
    let mut place = Place::find(vmas, va)?;
    let prot = P::Arch::prot(vma.protection());
    let zero = E::<P>::leaf(vmas.mm().platform().zero_page(), prot, Level::Pte).mkspecial();
    place.table.set(place.index, if place.marked { zero.mkuffd_wp() } else { zero });
    Ok(())
}

/// A new page of the mapping's own.
fn copy<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    vma: &Vma,
    va: VirtAddr,
    comes: Comes,
    fill: &mut dyn FnMut(Pfn),
) -> Result<(), MapError> {
    if is_behind_end(vma, va) {
        return Err(MapError::BadAddress(va));
    }
    let (mm, no_memory) = (vmas.mm(), MapError::NoMemory(va));
    let anon = match vma.anon() {
        Some(anon) => anon,
        None => {
            let trees = mm.platform().anon_trees();
            trees.prepare(mm, vmas, vma).map_err(|_| no_memory)?
        }
    };
    let new = mm.platform().memmap().alloc(0).map_err(|_| no_memory)?;
    let folio = new.folio();
    fill(folio.head());
    folio.set_flag(FolioFlags::UPTODATE | FolioFlags::SWAPBACKED);
    folio.set_anon(anon, vma.linear_index(va));
    let mut place = Place::find(vmas, va)?;
    mm.counters().add(RssKind::Anon, 1);
    folio.add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
    folio.enlist();
    mlock_mapped(vma.flags(), folio, 1);
    new.hand_over();
    place.table.set(place.index, entry::<P>(vma, folio.head(), true, comes));
    Ok(())
}

/// A new page of the object.
fn install<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    vma: &Vma,
    va: VirtAddr,
    object: &dyn Backing,
    comes: Comes,
    fill: &mut dyn FnMut(Pfn),
) -> Result<(), MapError> {
    // Before the object gets the page, which it keeps.
    drop(Place::find(vmas, va)?);
    let run = object.install(vma.linear_index(va), fill).map_err(|e| match e {
        InstallError::Exists => exists::<P>(va),
        InstallError::PastEnd => MapError::BadAddress(va),
        InstallError::NoMemory => MapError::NoMemory(va),
        InstallError::Unsupported => MapError::Invalid(va),
    })?;
    let own = vmas.mm().platform().memmap().adopt_run(run);
    map_page(vmas, vma, va, object, own, run.first, comes)
}

/// Maps a page that the object has.
fn map_page<P: RmapPlatform>(
    vmas: &MmRead<'_, P>,
    vma: &Vma,
    va: VirtAddr,
    object: &dyn Backing,
    own: FolioRef<'_, P, Get>,
    page: u32,
    comes: Comes,
) -> Result<(), MapError> {
    let (mm, folio, index) = (vmas.mm(), own.folio(), vma.linear_index(va));
    // Truncation takes pages away under this lock (race F-RACE-37).
    let locked = folio.lock();
    let first = index.checked_sub(page.into()).map(|first| (object.id(), first));
    if folio.file() != first || index >= object.nr_pages() {
        return Err(MapError::BadAddress(va));
    }
    if folio.is_poisoned(page) {
        return Err(MapError::Poisoned(va));
    }
    let mut place = Place::find(vmas, va)?;
    mm.counters().add(RssKind::of(folio), 1);
    folio.add_file_ptes(page, NonZeroU32::MIN, mm.id());
    mlock_mapped(vma.flags(), folio, 1);
    folio.set_flag(FolioFlags::DIRTY);
    // In a private mapping a store makes a copy of it.
    let is_shared = vma.flags().contains(VmaFlags::SHARED);
    place.table.set(place.index, entry::<P>(vma, folio.page(page), is_shared, comes));
    drop(place);
    drop(locked);
    own.hand_over();
    Ok(())
}
