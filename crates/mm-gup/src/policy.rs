//! Page by page, or in runs.

/// How the fast path takes the pages of a large folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FastPolicy {
    /// One grab per page (mainline).
    Page,
    /// One grab for the head, one for the rest of the run (patch series 002).
    #[default]
    Run,
}

/// How much the slow path does under one page-table lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SlowPolicy {
    /// One page.
    Page,
    /// One run of one folio (patch series 000).
    Run,
    /// Up to 32 runs (patch series 001).
    #[default]
    Table,
}

/// How GUP batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GupPolicy {
    /// The fast path.
    pub fast: FastPolicy,
    /// The slow path.
    pub slow: SlowPolicy,
}

impl GupPolicy {
    /// Nothing in runs.
    pub const PER_PAGE: GupPolicy = GupPolicy { fast: FastPolicy::Page, slow: SlowPolicy::Page };
    /// Everything in runs.
    pub const BATCHED: GupPolicy = GupPolicy { fast: FastPolicy::Run, slow: SlowPolicy::Table };
}

/// Whether the fast path batches, as a type: matched once per call.
pub(crate) trait Batching {
    const ON: bool;
}
pub(crate) enum PerPage {}
pub(crate) enum Batched {}
impl Batching for PerPage {
    const ON: bool = false;
}
impl Batching for Batched {
    const ON: bool = true;
}
