//! The model machine of mm-rmap, with lists and objects.

use crate::{Lru, ReclaimPlatform};
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use mm_arch::{Arch, Pfn};
use mm_folio::{AllocError, FileId, FolioFlags};
use mm_rmap::model::{FIRST_FRAME, ModelConfig, ModelLists, ModelPlatform, above};
use mm_sync::stat::Counter;
use mm_sync::{DefaultLock, Mutex};
use mm_vma::Backing;

/// What reclaim adds to a model machine.
struct Reclaim {
    lru: Arc<Lru<DefaultLock>>,
    objects: Mutex<DefaultLock, Vec<Weak<dyn Backing>>>,
    drained: Counter,
}

impl ModelLists for Lru<DefaultLock> {
    fn list(&self, head: Pfn, order: u32, flags: FolioFlags) {
        Lru::list(self, head, order, flags);
    }
    fn unlist(&self, head: Pfn) {
        Lru::unlist(self, head);
    }
}

impl<A: Arch> ReclaimPlatform for ModelPlatform<A> {
    fn lru(&self) -> &Lru<DefaultLock> {
        &above::<A, Reclaim>(self).lru
    }
    fn object(&self, id: FileId) -> Option<Arc<dyn Backing>> {
        let objects = above::<A, Reclaim>(self).objects.lock();
        objects.iter().filter_map(Weak::upgrade).find(|o| o.id() == id)
    }
    fn drain_batches(&self) {
        above::<A, Reclaim>(self).drained.add(1);
    }
}

/// A model machine whose memory can be reclaimed, in the place of `config`'s extension.
///
/// # Errors
///
/// If it is too small for its zero folios.
pub fn machine<A: Arch>(config: ModelConfig) -> Result<ModelPlatform<A>, AllocError> {
    let lru = Arc::new(Lru::new(FIRST_FRAME, config.nr_frames)?);
    let lists: Arc<dyn ModelLists> = lru.clone();
    let reclaim = Reclaim { lru, objects: Mutex::new(Vec::new()), drained: Counter::new() };
    mm_rmap::model::machine(ModelConfig { lists, extension: Box::new(reclaim), ..config })
}

/// How often batches of CPUs were asked for.
pub fn drained<A: Arch>(p: &ModelPlatform<A>) -> u64 {
    above::<A, Reclaim>(p).drained.get()
}

/// Makes an object known to reclaim.
pub fn know<A: Arch>(p: &ModelPlatform<A>, object: Weak<dyn Backing>) {
    above::<A, Reclaim>(p).objects.lock().push(object);
}
