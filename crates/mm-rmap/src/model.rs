//! The model machine of mm-vma, with trees.

use crate::{AnonTrees, FileTrees, RmapPlatform};
use alloc::boxed::Box;
use mm_arch::Arch;
use mm_folio::AllocError;
pub use mm_vma::model::{
    EventCounts, FIRST_FRAME, FailureInjector, ModelConfig, ModelFrames, ModelObject,
    ModelPlatform, ModelTables,
};

/// What the trees add to a model machine.
struct Trees<A: Arch> {
    anon: AnonTrees<ModelPlatform<A>>,
    files: FileTrees<ModelPlatform<A>>,
}

impl<A: Arch> RmapPlatform for ModelPlatform<A> {
    fn anon_trees(&self) -> &AnonTrees<Self> {
        &self.extension::<Trees<A>>().anon
    }
    fn file_trees(&self) -> &FileTrees<Self> {
        &self.extension::<Trees<A>>().files
    }
}

/// A model machine with trees, in the place of `config`'s extension.
///
/// # Errors
///
/// If it is too small for its zero folios.
pub fn machine<A: Arch>(config: ModelConfig) -> Result<ModelPlatform<A>, AllocError> {
    let trees = Trees::<A> { anon: AnonTrees::new(), files: FileTrees::new() };
    ModelPlatform::new(ModelConfig { extension: Box::new(trees), ..config })
}
