//! Whose memory is reclaimed.

use mm_folio::MmId;

/// Whose memory is reclaimed: aging looks at nobody else's entries (rule REF-02).
#[derive(Clone, Copy)]
pub enum ReclaimOf<'g> {
    /// Everybody's.
    Everybody,
    /// That of a group of address spaces.
    Group(&'g dyn Fn(MmId) -> bool),
}

impl ReclaimOf<'_> {
    /// Whether it is about this space.
    pub fn includes(&self, mm: MmId) -> bool {
        match self {
            ReclaimOf::Everybody => true,
            ReclaimOf::Group(has) => has(mm),
        }
    }
}

impl core::fmt::Debug for ReclaimOf<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            ReclaimOf::Everybody => "Everybody",
            ReclaimOf::Group(_) => "Group",
        })
    }
}
