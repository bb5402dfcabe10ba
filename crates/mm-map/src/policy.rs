//! How many entries one step handles.

pub use mm_rmap::Batching;

/// How mappings are copied, removed and changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapPolicy {
    /// For fork, zap, protect and move alike.
    pub batching: Batching,
    /// For mappings that are suspended: of folios that move, or are split.
    pub suspend: Batching,
}

/// [`Batching`] as a zero-sized type, so that no loop asks for it.
pub(crate) trait Strategy {
    /// Whether runs are looked for.
    const ON: bool;
}
pub(crate) enum PerPage {}
pub(crate) enum Batched {}
impl Strategy for PerPage {
    const ON: bool = false;
}
impl Strategy for Batched {
    const ON: bool = true;
}

/// Calls `$f::<Strategy, …>(args)` with the strategy of `$policy`: the one place
/// where an operation looks at its policy.
macro_rules! by_policy {
    ($policy:expr, $f:ident $(::<$($g:ty),+>)? ($($arg:expr),* $(,)?)) => {
        match $policy.batching {
            $crate::policy::Batching::PerPage =>
                $f::<$crate::policy::PerPage $($(, $g)+)?>($($arg),*),
            $crate::policy::Batching::Batched =>
                $f::<$crate::policy::Batched $($(, $g)+)?>($($arg),*),
        }
    };
}
pub(crate) use by_policy;
