//! Page by page, or in runs.

/// How the fast path takes the pages of a large folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FastPolicy {
    /// One grab per page (mainline).
    Page,
    /// One grab for the head, one for the rest of the run (patch series 002).
    Run,
    /// One grab for all pages that the run can have; what it has not is given
    /// back. After a run that fell short the next one is taken as by `Run`, so that
    /// folios mapped in pieces do not pay twice.
    #[default]
    Whole,
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
    /// In runs, as the patch series do.
    pub const BATCHED: GupPolicy = GupPolicy { fast: FastPolicy::Run, slow: SlowPolicy::Table };
    /// The fastest.
    pub const BEST: GupPolicy = GupPolicy { fast: FastPolicy::Whole, slow: SlowPolicy::Table };
}

/// How the fast path batches, as a type: matched once per call.
pub(crate) trait Batching {
    /// Whether it does.
    const RUNS: bool;
    /// Whether a run is grabbed before it is scanned.
    const WHOLE: bool = false;
}
pub(crate) enum PerPage {}
pub(crate) enum HeadThenRest {}
pub(crate) enum Whole {}
impl Batching for PerPage {
    const RUNS: bool = false;
}
impl Batching for HeadThenRest {
    const RUNS: bool = true;
}
impl Batching for Whole {
    const RUNS: bool = true;
    const WHOLE: bool = true;
}
