//! Which entries are handled as runs.

/// What reclaim takes from a table in runs: consecutive entries of one folio, with one
/// exchange of counts for all. What is left afterwards is the same under every policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnmapPolicy {
    /// Each entry on its own.
    Page,
    /// Pages that their owner gave up (`MADV_FREE`): what Linux 6.18 does.
    Lazyfree,
    /// Pages of files and of shared memory as well, but for mappings in which
    /// userfaultfd write-protects pages: patch series 004. Aging is in runs, too.
    File,
    /// Everything: also anonymous memory that goes to swap, mappings in which userfaultfd
    /// write-protects pages, and PMD leaves of pages that were given up. Neighbouring folios of
    /// an object are unmapped together.
    #[default]
    All,
}

/// [`UnmapPolicy`] as a zero-sized type, so that no loop asks for it.
pub(crate) trait Strategy {
    /// Accessed bits are cleared in runs.
    const AGING: bool;
    /// Lazily freed pages are unmapped in runs.
    const LAZYFREE: bool;
    /// Pages of files are.
    const FILE: bool;
    /// Anonymous pages on their way to swap are.
    const SWAP: bool;
    /// All of it also where userfaultfd write-protects pages.
    const UFFD_WP: bool;
    /// PMD leaves of lazily freed pages go as they are, without being split.
    const LEAVES: bool;
    /// Folios of one object are looked for in one walk, and taken under one table lock.
    const TOGETHER: bool;
}

pub(crate) enum Page {}
pub(crate) enum Lazyfree {}
pub(crate) enum File {}
pub(crate) enum All {}

impl Strategy for Page {
    const AGING: bool = false;
    const LAZYFREE: bool = false;
    const FILE: bool = false;
    const SWAP: bool = false;
    const UFFD_WP: bool = false;
    const LEAVES: bool = false;
    const TOGETHER: bool = false;
}
impl Strategy for Lazyfree {
    const AGING: bool = false;
    const LAZYFREE: bool = true;
    const FILE: bool = false;
    const SWAP: bool = false;
    // Only file mappings keep such marks, and anonymous ones are not asked.
    const UFFD_WP: bool = true;
    const LEAVES: bool = false;
    const TOGETHER: bool = false;
}
impl Strategy for File {
    const AGING: bool = true;
    const LAZYFREE: bool = true;
    const FILE: bool = true;
    const SWAP: bool = false;
    const UFFD_WP: bool = false;
    const LEAVES: bool = false;
    const TOGETHER: bool = false;
}
impl Strategy for All {
    const AGING: bool = true;
    const LAZYFREE: bool = true;
    const FILE: bool = true;
    const SWAP: bool = true;
    const UFFD_WP: bool = true;
    const LEAVES: bool = true;
    const TOGETHER: bool = true;
}

/// Calls `$f::<Strategy, …>(args)` with the strategy of `$policy`: the one place where
/// an operation looks at its policy.
macro_rules! by_policy {
    ($policy:expr, $f:ident ::<$($g:ty),+>($($arg:expr),* $(,)?)) => {
        match $policy {
            $crate::UnmapPolicy::Page => $f::<$crate::policy::Page, $($g),+>($($arg),*),
            $crate::UnmapPolicy::Lazyfree => $f::<$crate::policy::Lazyfree, $($g),+>($($arg),*),
            $crate::UnmapPolicy::File => $f::<$crate::policy::File, $($g),+>($($arg),*),
            $crate::UnmapPolicy::All => $f::<$crate::policy::All, $($g),+>($($arg),*),
        }
    };
}
pub(crate) use by_policy;
