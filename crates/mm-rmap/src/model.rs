//! The model machine of mm-vma, with trees.

use crate::{AnonTrees, RmapPlatform};
use alloc::boxed::Box;
use mm_arch::Arch;
use mm_folio::AllocError;
pub use mm_vma::model::{
    EventCounts, FIRST_FRAME, FailureInjector, ModelConfig, ModelFrames, ModelPlatform, ModelTables,
};

impl<A: Arch> RmapPlatform for ModelPlatform<A> {
    fn anon_trees(&self) -> &AnonTrees<Self> {
        self.extension()
    }
}

/// A model machine with trees, in the place of `config`'s extension.
///
/// # Errors
///
/// If it is too small for its zero folios.
pub fn machine<A: Arch>(config: ModelConfig) -> Result<ModelPlatform<A>, AllocError> {
    let trees = AnonTrees::<ModelPlatform<A>>::new();
    ModelPlatform::new(ModelConfig { extension: Box::new(trees), ..config })
}
