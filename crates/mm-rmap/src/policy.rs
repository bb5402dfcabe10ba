//! How many entries one step handles.

/// Whether consecutive entries of one folio are handled as a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Batching {
    /// Each entry on its own: the algorithm before batching.
    PerPage,
    /// Runs of entries that map consecutive pages of one folio.
    #[default]
    Batched,
}
