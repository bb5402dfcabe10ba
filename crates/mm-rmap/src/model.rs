//! The model machine of mm-vma, with trees.

use crate::{
    AnonTrees, FileTrees, Hit, MappedWalk, RmapPlatform, Seek, Strict, SwapOutError, swap_out_ptes,
};
use alloc::boxed::Box;
use core::any::Any;
use core::num::NonZeroU32;
use core::ops::ControlFlow;
use mm_arch::{Arch, Pfn, respect};
use mm_folio::{AllocError, Folio, FolioLockGuard, FolioRun, Get};
use mm_sync::atomic::{AtomicU64, Ordering::Relaxed};
pub use mm_vma::model::{
    EventCounts, FIRST_FRAME, FailureInjector, ModelConfig, ModelFrames, ModelLists, ModelObject,
    ModelPlatform, ModelTables,
};
use mm_vma::{Platform, SwapSpace, write_folio};

/// What the trees add to a model machine.
struct Trees<A: Arch> {
    anon: AnonTrees<ModelPlatform<A>>,
    files: FileTrees<ModelPlatform<A>>,
    /// Head of the folio that lies badly, or 0.
    misplaced: AtomicU64,
    /// What a crate above keeps in the machine.
    above: Box<dyn Any + Send + Sync>,
}

impl<A: Arch> RmapPlatform for ModelPlatform<A> {
    fn anon_trees(&self) -> &AnonTrees<Self> {
        &self.extension::<Trees<A>>().anon
    }
    fn file_trees(&self) -> &FileTrees<Self> {
        &self.extension::<Trees<A>>().files
    }
    fn is_misplaced(&self, folio: Folio<'_, Self>) -> bool {
        self.extension::<Trees<A>>().misplaced.load(Relaxed) == folio.head().get()
    }
}

/// The folio at `head` lies badly from now on, or none does.
pub fn set_misplaced<A: Arch>(m: &ModelPlatform<A>, head: Option<Pfn>) {
    m.extension::<Trees<A>>().misplaced.store(head.map_or(0, Pfn::get), Relaxed);
}

/// How far [`unmap_to_swap`] goes at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnmapBy {
    /// One entry.
    Page,
    /// All entries that map the folio in a row.
    Run,
}

/// Turns every entry that maps a locked folio of the swap cache into a swap entry: as
/// little of reclaim as tests of other things need. PMD leaves stay.
///
/// # Errors
///
/// If an entry cannot be replaced; those that were stay so.
pub fn unmap_to_swap<A: Arch>(
    m: &ModelPlatform<A>,
    locked: &FolioLockGuard<'_, ModelPlatform<A>>,
    by: UnmapBy,
) -> Result<(), SwapOutError> {
    let folio = locked.folio();
    let Some(first) = m.slots().slot_of(folio) else { return Ok(()) };
    let mut why = None;
    m.anon_trees().walk(folio, &mut |mm, visit| {
        let mut walk = MappedWalk::<_, Strict>::new(mm, &visit, folio, Seek::Mappings);
        while let Some(hit) = walk.next_hit() {
            let Hit::Pte(at) = hit else { continue };
            let (page, mut owed) = (at.page, mm.tables().tlb().obligation());
            let run = match by {
                UnmapBy::Page => at.table.single(at.index),
                UnmapBy::Run => at.table.run::<{ respect::NOTHING }>(at.index, at.entry, at.limit),
            };
            let done = swap_out_ptes(mm, at.table, folio, first, page, run, &mut owed);
            owed.now();
            if let Some(n) = NonZeroU32::new(done.nr as u32) {
                folio.remove_ptes(page, n, mm.id());
                // Never the last ones: the cache has references.
                m.memmap().put_run::<Get>(FolioRun::new(folio.head(), page, n.get()));
            }
            if done.stopped.is_some() {
                why = done.stopped;
                return ControlFlow::Break(());
            }
            walk.consumed(done.nr);
        }
        ControlFlow::Continue(())
    });
    why.map_or(Ok(()), Err)
}

/// Swaps the folio of `page` out, if nothing stands against it; whether it is gone.
pub fn swap_out<A: Arch>(m: &ModelPlatform<A>, page: Pfn, by: UnmapBy) -> bool {
    let Ok(own) = m.memmap().folio(page).grab::<Get>(1) else { return false };
    let locked = own.folio().lock();
    m.slots().add(&locked).is_ok()
        && unmap_to_swap(m, &locked, by).is_ok()
        && write_folio(m, &locked).is_ok()
        && m.slots().evict(&locked)
}

/// The extension of the configuration that the machine was made of.
///
/// # Panics
///
/// If that is another type.
pub fn above<A: Arch, T: 'static>(p: &ModelPlatform<A>) -> &T {
    match p.extension::<Trees<A>>().above.downcast_ref() {
        Some(above) => above,
        None => panic!("this machine has no {}", core::any::type_name::<T>()),
    }
}

/// A model machine with trees; the extension of `config` is found by [`above`].
///
/// # Errors
///
/// If it is too small for its zero folios.
pub fn machine<A: Arch>(config: ModelConfig) -> Result<ModelPlatform<A>, AllocError> {
    let (anon, files, above) = (AnonTrees::new(), FileTrees::new(), config.extension);
    let misplaced = AtomicU64::new(0);
    let trees = Trees::<A> { anon, files, misplaced, above };
    ModelPlatform::new(ModelConfig { extension: Box::new(trees), ..config })
}
