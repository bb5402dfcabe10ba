//! Bugs that are planted, to see that each kind of loss is found.

use crate::region::Region;
use crate::worker::Worker;
use mm_arch::Arch;
use mm_folio::{FrameBytes, Get};
use mm_map::WpChange;
use mm_vma::{Platform, SlotRun, SwapSpace};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// CPUs go on by translations that should be flushed.
    Flushes,
    /// Words of a page change.
    Words,
    /// Pages lose the protection by userfaultfd.
    Marks,
    /// It is forgotten what was stored to.
    Stores,
    /// A reference is never given back.
    References,
    /// A slot of swap is never given back.
    Slots,
}

impl Planted {
    const ALL: [(&'static str, Planted); 6] = [
        ("flushes", Planted::Flushes),
        ("words", Planted::Words),
        ("marks", Planted::Marks),
        ("stores", Planted::Stores),
        ("references", Planted::References),
        ("slots", Planted::Slots),
    ];
    pub fn from_name(name: &str) -> Option<Self> {
        Planted::ALL.into_iter().find(|(n, _)| *n == name).map(|(_, planted)| planted)
    }
    pub fn names() -> String {
        Planted::ALL.map(|(name, _)| name).join("|")
    }
}

impl<A: Arch> Worker<'_, A> {
    /// Does what is planted, behind the back of what is known.
    pub fn do_wrong(&mut self) -> Result<(), String> {
        let (own, host) = (self.own(), self.host());
        match self.world.planted {
            None | Some(Planted::Flushes) => {}
            Some(Planted::Words) => {
                if let Some(pfn) = self.any_frame() {
                    (0..512).for_each(|w| host.bytes().store(pfn, w * 8, u64::MAX));
                }
            }
            Some(Planted::Marks) => {
                let region = self.random.one_of(&[Region::Marked, Region::MarkedShmem]);
                let _ = own.uffd_wp(region.whole(), WpChange::Unprotect);
            }
            Some(Planted::Stores) => own.clear_soft_dirty().map_err(|e| e.to_string())?,
            Some(Planted::References) => {
                if let Some(pfn) = self.any_frame()
                    && let Some(own) = host.memmap().try_grab::<Get>(pfn, 1)
                {
                    own.hand_over();
                }
            }
            Some(Planted::Slots) => {
                let slots = host.swap().slots();
                if let Some(used) = slots.in_use().find(|state| state.count > 0) {
                    let _ = slots.dup(SlotRun::new(used.slot, 1));
                }
            }
        }
        Ok(())
    }
}
