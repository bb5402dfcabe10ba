//! The right by which a table is read.

mod seal {
    pub trait Sealed {}
    impl Sealed for super::Held {}
    impl Sealed for super::Pinned {}
}

/// The table's lock is held: no entry changes but for hardware A/D updates.
#[derive(Clone, Copy, Debug)]
pub enum Held {}

/// Only a quiescence guard is held: the table cannot be freed, but every entry
/// may change at any time.
#[derive(Clone, Copy, Debug)]
pub enum Pinned {}

/// By what right a table is read; sealed, see [`Held`] and [`Pinned`].
pub trait Right: seal::Sealed + 'static {
    /// Whether the table's lock is held.
    const LOCKED: bool;
}
impl Right for Held {
    const LOCKED: bool = true;
}
impl Right for Pinned {
    const LOCKED: bool = false;
}
