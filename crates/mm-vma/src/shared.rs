//! Values that are shared by an [`Arc`], made only if there is memory.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use mm_folio::AllocError;

/// A shared `value`.
///
/// Stable Rust knows no refusal for an [`Arc`]: as much memory is asked for by a call that can be
/// refused, and given back just before. Whoever else takes it in between ends the program, as a
/// failed `Arc::new` does.
///
/// # Errors
///
/// If there is no memory. The value is dropped then.
///
/// ```
/// assert_eq!(*mm_vma::try_arc(7)?, 7);
/// # Ok::<(), mm_folio::AllocError>(())
/// ```
pub fn try_arc<T>(value: T) -> Result<Arc<T>, AllocError> {
    try_arc_cyclic(|_| value)
}

/// As [`try_arc`], of a value that may refer to itself.
pub(crate) fn try_arc_cyclic<T>(make: impl FnOnce(&Weak<T>) -> T) -> Result<Arc<T>, AllocError> {
    // Two counts, and the value.
    let mut room: Vec<([usize; 2], MaybeUninit<T>)> = Vec::new();
    room.try_reserve_exact(1).map_err(|_| AllocError)?;
    // What nobody looks at need not be allocated, says the compiler.
    core::hint::black_box(room.as_ptr());
    drop(room);
    Ok(Arc::new_cyclic(make))
}
