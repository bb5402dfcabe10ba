//! What is called how on command lines.

use mm_arch::{DeviceKind, Level, Markers, MigrationKind};

/// The name of a level on command lines.
pub fn level(level: Level) -> &'static str {
    match level {
        Level::Pte => "pte",
        Level::Pmd => "pmd",
        Level::Pud => "pud",
        Level::P4d => "p4d",
        Level::Pgd => "pgd",
    }
}

/// The markers, by name.
pub const MARKERS: [(&str, Markers); 3] =
    [("uffd-wp", Markers::UFFD_WP), ("poisoned", Markers::POISONED), ("guard", Markers::GUARD)];

/// The kinds of migration entries, by name.
pub const MIGRATIONS: [(&str, MigrationKind); 3] = [
    ("read", MigrationKind::Read),
    ("read-exclusive", MigrationKind::ReadExclusive),
    ("write", MigrationKind::Write),
];

/// The kinds of device entries, by name.
pub const DEVICES: [(&str, DeviceKind); 3] = [
    ("private-read", DeviceKind::PrivateRead),
    ("private-write", DeviceKind::PrivateWrite),
    ("exclusive", DeviceKind::Exclusive),
];

/// The one of `all` that `text` names.
///
/// # Errors
///
/// A sentence that lists the names.
pub fn one_of<T: Copy>(
    what: &str,
    text: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T, String> {
    all.iter().copied().find(|t| name(*t) == text).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|t| name(*t)).collect();
        format!("unknown {what} {text:?}; one of {}", names.join(", "))
    })
}
