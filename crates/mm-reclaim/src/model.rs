//! The model machine of mm-rmap, with lists and objects.

use crate::{Lru, ReclaimPlatform};
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use mm_arch::Arch;
use mm_folio::{AllocError, FileId};
use mm_rmap::model::{FIRST_FRAME, ModelConfig, ModelPlatform, above};
use mm_sync::{DefaultLock, Mutex};
use mm_vma::Backing;

/// What reclaim adds to a model machine.
struct Reclaim {
    lru: Lru<DefaultLock>,
    objects: Mutex<DefaultLock, Vec<Weak<dyn Backing>>>,
}

impl<A: Arch> ReclaimPlatform for ModelPlatform<A> {
    fn lru(&self) -> &Lru<DefaultLock> {
        &above::<A, Reclaim>(self).lru
    }
    fn object(&self, id: FileId) -> Option<Arc<dyn Backing>> {
        let objects = above::<A, Reclaim>(self).objects.lock();
        objects.iter().filter_map(Weak::upgrade).find(|o| o.id() == id)
    }
}

/// A model machine whose memory can be reclaimed, in the place of `config`'s extension.
///
/// # Errors
///
/// If it is too small for its zero folios.
pub fn machine<A: Arch>(config: ModelConfig) -> Result<ModelPlatform<A>, AllocError> {
    let lru = Lru::new(FIRST_FRAME, config.nr_frames)?;
    let reclaim = Reclaim { lru, objects: Mutex::new(Vec::new()) };
    mm_rmap::model::machine(ModelConfig { extension: Box::new(reclaim), ..config })
}

/// Makes an object known to reclaim.
pub fn know<A: Arch>(p: &ModelPlatform<A>, object: Weak<dyn Backing>) {
    above::<A, Reclaim>(p).objects.lock().push(object);
}
