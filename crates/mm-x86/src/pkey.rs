//! Protection keys (rule PTE-12): sixteen keys, two bits each in PKRU.

use crate::LongEntry;
use crate::bits::{PKEY, PKEY_SHIFT};
use mm_arch::AccessKind;

/// The rights register of the running thread: for key `k`, bit `2k` denies all
/// data accesses and bit `2k + 1` denies stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pkru(pub u32);

/// The key of an entry.
#[inline]
pub const fn key<const SHSTK: bool>(entry: LongEntry<SHSTK>) -> u8 {
    ((entry.bits() & PKEY) >> PKEY_SHIFT) as u8
}

/// Whether `pkru` lets an access of this kind through `entry`. Only the key is
/// looked at; instruction fetches have none.
#[inline]
pub const fn permits<const SHSTK: bool>(
    entry: LongEntry<SHSTK>,
    pkru: Pkru,
    kind: AccessKind,
) -> bool {
    let rights = pkru.0 >> (2 * key(entry));
    match kind {
        AccessKind::Read => rights & 1 == 0,
        AccessKind::Write => rights & 3 == 0,
        AccessKind::Exec => true,
    }
}
