//! What is mapped where, in every process.

use crate::world::World;
use mm_arch::{Arch, VirtAddr, VirtRange};
use mm_map::{Advice, UffdMode};
use mm_sim::Process;
use mm_vma::VmaFlags;

const PAGE: u64 = 4096;
/// Pages of most regions.
const PAGES: u64 = 256;
/// Pages of an object that one thread cuts.
pub const CUT: u64 = 64;
pub const RIGHTS: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// A file that all processes share.
    File,
    /// Shared memory of all processes.
    Shmem,
    /// The same, in which each process write-protects its mappings through userfaultfd.
    MarkedShmem,
    /// Memory of its own.
    Anon,
    /// Memory of its own that it gives up now and then.
    Free,
    /// Memory of its own that moves about; there are holes in between.
    Moving,
    /// Memory of its own that is write-protected through userfaultfd.
    Marked,
    /// Memory of its own whose missing pages userfaultfd is asked for.
    Filled,
    /// Memory of its own, much of it equal to that of others, which is merged.
    Merged,
    /// Memory of its own that leaves of a PMD may map.
    Huge,
    /// A file of each thread, which only that one changes, and cuts; all look at it.
    CutFile,
    /// The same of shared memory.
    CutShmem,
    /// A private mapping of the file that the thread cuts.
    Copied,
}

impl Region {
    pub const ALL: [Region; 13] = [
        Region::File,
        Region::Shmem,
        Region::MarkedShmem,
        Region::Anon,
        Region::Free,
        Region::Moving,
        Region::Marked,
        Region::Filled,
        Region::Merged,
        Region::Huge,
        Region::CutFile,
        Region::CutShmem,
        Region::Copied,
    ];
    /// Those of one object for all threads.
    pub const SHARED: [Region; 3] = [Region::File, Region::Shmem, Region::MarkedShmem];
    /// Those that a child gets a copy of.
    pub const PRIVATE: [Region; 7] = [
        Region::Anon,
        Region::Free,
        Region::Moving,
        Region::Marked,
        Region::Filled,
        Region::Merged,
        Region::Huge,
    ];
    pub const CUT: [Region; 2] = [Region::CutFile, Region::CutShmem];

    pub const fn pages(self) -> u64 {
        match self {
            Region::Moving | Region::Huge => 512,
            Region::CutFile | Region::CutShmem => CUT * crate::THREADS as u64,
            Region::Copied => CUT,
            _ => PAGES,
        }
    }
    pub fn va(self, page: u64) -> VirtAddr {
        // A table ends within most regions.
        let first = if self == Region::Huge { 512 } else { 384 };
        VirtAddr::new(0x1_0000_0000 + ((self as u64) << 24) + (first + page) * PAGE)
    }
    pub fn range(self, (first, nr): (u64, u64)) -> VirtRange {
        VirtRange::units(self.va(first), nr, 12).expect("inside of user space")
    }
    pub fn whole(self) -> VirtRange {
        self.range((0, self.pages()))
    }
    /// The page at `va`, if it is in one of the regions.
    pub fn at(va: VirtAddr) -> Option<(Region, u64)> {
        let region = Region::ALL.into_iter().find(|r| r.whole().contains(va))?;
        Some((region, va.bytes_from(region.va(0)) / PAGE))
    }

    /// What userfaultfd is asked about.
    pub fn uffd_mode<A: Arch>(self, world: &World<A>) -> Option<UffdMode> {
        match self {
            Region::Filled => Some(UffdMode::MISSING),
            Region::MarkedShmem if A::HAS_UFFD_WP => Some(UffdMode::WP),
            Region::Marked if A::HAS_UFFD_WP && world.marks_holes => {
                Some(UffdMode::WP | UffdMode::WP_UNPOPULATED)
            }
            Region::Marked if A::HAS_UFFD_WP => Some(UffdMode::WP),
            _ => None,
        }
    }
}

/// Maps the regions of thread `me`.
pub fn map_all<A: Arch>(
    process: &Process<A>,
    me: usize,
    world: &World<A>,
) -> Result<(), Box<dyn std::error::Error>> {
    let shared = RIGHTS | VmaFlags::SHARED;
    for region in Region::SHARED {
        let object = world.object(region, 0).expect("it is shared").clone();
        process.mmap_object(region.whole(), shared, object, 0)?;
    }
    for region in Region::CUT {
        for owner in 0..crate::THREADS {
            let range = region.range((owner as u64 * CUT, CUT));
            let object = world.object(region, owner).expect("each has one").clone();
            process.mmap_object(range, shared, object, 0)?;
        }
    }
    let file = world.object(Region::CutFile, me).expect("each has one").clone();
    process.mmap_object(Region::Copied.whole(), RIGHTS, file, 0)?;
    for region in Region::PRIVATE {
        process.mmap_anon(region.whole(), RIGHTS)?;
    }
    process.madvise(Region::Merged.whole(), Advice::Mergeable)?;
    for region in Region::ALL {
        if let Some(mode) = region.uffd_mode(world) {
            process.uffd_register(region.whole(), mode)?;
        }
    }
    Ok(())
}
