//! The life of one 64K folio: a fault, a pin, a fork, an exit, a reuse.
//!
//! Prints after each step what the records say, and audits them.
//!
//! ```text
//! cargo run -p mm-folio --example fork_and_reuse
//! ```

use core::num::NonZeroU32;
use mm_arch::{Level, Pfn};
use mm_folio::audit::{Access, AuditLog, Mapping, Sharing};
use mm_folio::*;
use std::sync::Mutex;

/// Frames from the bottom up, never reused.
struct Bump(Mutex<u64>);
impl FolioSource for Bump {
    fn alloc(&self, order: u32) -> Result<Pfn, AllocError> {
        let mut next = self.0.lock().map_err(|_| AllocError)?;
        let head = next.next_multiple_of(1 << order);
        if head + (1 << order) > 256 {
            return Err(AllocError);
        }
        *next = head + (1 << order);
        Ok(Pfn::new(head))
    }
    fn free(&self, head: Pfn, order: u32) {
        println!("                     freed: order {order} at {head}");
    }
}
struct Space;
impl FolioSpace for Space {
    type Source = Bump;
    type FolioLock = mm_sync::DefaultLock;
}

const NR: NonZeroU32 = NonZeroU32::new(16).unwrap();

/// Who maps the folio, and whether writable.
type Entries<'a> = &'a [(MmId, u32, u32, Access)];

fn show(step: &str, folio: Folio<'_, Space>, entries: Entries<'_>, pins: u32) {
    let map = folio.memmap();
    println!(
        "{step:<20} refs {:>2}  mappings {:>2}  pins {}  exclusive {:>2}  {}",
        folio.refcount(),
        folio.mapcount(),
        folio.pincount(),
        map.exclusive_prefix(folio.head(), 16),
        if folio.maybe_mapped_shared() { "maybe shared" } else { "one address space" },
    );
    let mut log = AuditLog::new();
    for &(mm, first, nr, access) in entries {
        let pfn = folio.page(first);
        let (level, sharing) = (Level::Pte, Sharing::Private);
        log.mapping(Mapping { pfn, nr, level, mm, access, sharing });
    }
    log.pin(folio.head(), pins);
    for violation in log.finish(map) {
        println!("  AUDIT {violation}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    use Access::{ReadOnly, Writable};
    let map = MemMap::<Space>::new(Pfn::new(0), 256, Bump(Mutex::new(16)))?;
    let ids = MmIds::<mm_sync::DefaultLock>::new();
    let (parent, child) = (ids.alloc()?, ids.alloc()?);

    let mut new = map.alloc(4)?;
    new.folio().set_anon(AnonId(1), 0x7f00);
    new.grow(15)?;
    new.folio().add_new_anon(parent, Level::Pte, Exclusivity::Exclusive);
    let folio = new.hand_over();
    show("fault", folio, &[(parent, 0, 16, Writable)], 0);

    let pin = map.try_grab::<Pin>(folio.page(3), 2).ok_or("gone")?;
    show("pin pages 3 and 4", folio, &[(parent, 0, 16, Writable)], 2);

    // A fork may not share pages that a device writes to.
    let for_child = folio.grab::<Get>(16)?;
    let refused = folio.try_dup_anon_ptes(0, NR, child, HasPinned::Maybe);
    println!("{:<20} {}", "fork", refused.unwrap_err());
    drop(pin);
    folio.try_dup_anon_ptes(0, NR, child, HasPinned::Maybe)?;
    for_child.hand_over();
    let both = [(parent, 0, 16, ReadOnly), (child, 0, 16, ReadOnly)];
    show("unpin and fork", folio, &both, 0);

    // The child exits: mappings first, references when its flush is done.
    folio.remove_ptes(0, NR, child);
    let alone = |c: &Counts| !c.shared && i64::from(c.refs) == i64::from(c.mapcount);
    println!("{:<20} {}", "reuse before flush?", folio.counts_locked(alone));
    map.put_run::<Get>(FolioRun::new(folio.head(), 0, 16));
    ids.free(child);
    println!("{:<20} {}", "reuse after flush?", folio.counts_locked(alone));
    map.set_exclusive(folio.head(), 16);
    show("reused", folio, &[(parent, 0, 16, Writable)], 0);

    folio.remove_ptes(0, NR, parent);
    map.put_run::<Get>(FolioRun::new(folio.head(), 0, 16));
    assert!(audit::leaks(&map).is_empty());
    Ok(())
}
