//! What an entry without a translation can mean (rules SWP-01..06).

use crate::{Level, Pfn};
use core::fmt;

bitflags::bitflags! {
    /// A marker entry: a tracking state without a page (rule SWP-06).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Markers: u64 {
        /// Write-protected by userfaultfd.
        const UFFD_WP = 1;
        /// The page that belongs here is poisoned.
        const POISONED = 2;
        /// A guard region: every access is a fault.
        const GUARD = 4;
    }
}

/// A slot of a swap device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SwapSlot {
    /// Swap device, below [`NonPresent::MAX_SWAPFILES`].
    pub device: u8,
    /// Slot number on the device.
    pub offset: u64,
}

/// What a migration entry says about the mapping it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MigrationKind {
    /// Read-only, maybe shared.
    Read,
    /// Read-only, anonymous and exclusive.
    ReadExclusive,
    /// Writable (for anonymous memory also exclusive).
    Write,
}

/// What a device entry stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// Device-private memory, writable by the device.
    PrivateWrite,
    /// Device-private memory, read-only.
    PrivateRead,
    /// System memory that a device holds exclusively.
    Exclusive,
}

/// The meaning of a non-present, non-empty entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NonPresent {
    /// The page is on a swap device.
    Swap(SwapSlot),
    /// The page is being moved.
    Migration {
        /// What the restored mapping may do.
        kind: MigrationKind,
        /// The frame that is being moved.
        pfn: Pfn,
        /// The mapping was young.
        young: bool,
        /// The mapping was dirty.
        dirty: bool,
    },
    /// The page belongs to a device.
    Device {
        /// How.
        kind: DeviceKind,
        /// The frame.
        pfn: Pfn,
    },
    /// The frame is poisoned.
    Hwpoison(Pfn),
    /// A marker.
    Marker(Markers),
}

/// Flags that a non-present entry carries beside its meaning (rule SWP-02): they
/// are stored in the entry, never in the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapBits {
    /// The page was anonymous and exclusive.
    pub exclusive: bool,
    /// Soft-dirty.
    pub soft_dirty: bool,
    /// Write-protected by userfaultfd.
    pub uffd_wp: bool,
}

/// The form common to all formats: five type bits and an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypeOffset {
    /// Type, 0..32.
    pub ty: u8,
    /// Offset; its width depends on the format.
    pub offset: u64,
}

/// Why a value has no encoding in a format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EncodeError {
    /// The offset needs more bits than the format has.
    OffsetTooWide {
        /// The offset.
        offset: u64,
        /// Bits that the format has.
        bits: u32,
    },
    /// There is no such swap device.
    NoSuchDevice {
        /// The device.
        device: u8,
    },
    /// The type does not fit five bits.
    BadType {
        /// The type.
        ty: u8,
    },
    /// A marker without a bit, or with bits that mean nothing.
    BadMarker {
        /// The bits.
        bits: u64,
    },
    /// The value would encode to the empty entry.
    EncodesToNone,
    /// The frame is not aligned for a leaf of this size.
    UnalignedFrame {
        /// The frame.
        pfn: Pfn,
        /// Required alignment as an order.
        order: u32,
    },
    /// The frame number needs more bits than the format has.
    FrameTooWide {
        /// The frame.
        pfn: Pfn,
        /// Bits that the format has.
        bits: u32,
    },
    /// Entries of this level map no memory.
    NoLeaf {
        /// The level.
        level: Level,
    },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::OffsetTooWide { offset, bits } => {
                write!(f, "offset {offset:#x} does not fit the {bits} offset bits of the format")
            }
            EncodeError::NoSuchDevice { device } => {
                write!(f, "swap device {device} is not below {}", NonPresent::MAX_SWAPFILES)
            }
            EncodeError::BadType { ty } => write!(f, "type {ty} does not fit five bits"),
            EncodeError::BadMarker { bits } => write!(f, "marker bits {bits:#x} mean nothing"),
            EncodeError::EncodesToNone => f.write_str("value would encode to the empty entry"),
            EncodeError::UnalignedFrame { pfn, order } => {
                write!(f, "frame {pfn} is not aligned to order {order}")
            }
            EncodeError::FrameTooWide { pfn, bits } => {
                write!(f, "frame {pfn} does not fit the {bits} frame bits of the format")
            }
            EncodeError::NoLeaf { level } => write!(f, "entries of {level:?} map no memory"),
        }
    }
}
impl core::error::Error for EncodeError {}

/// First of the eight special types, and so the number of swap devices.
const FIRST_SPECIAL: u8 = 24;

impl NonPresent {
    /// Number of swap devices a format with all special types can name.
    pub const MAX_SWAPFILES: u8 = FIRST_SPECIAL;

    /// The common form. `pfn_bits` is where a migration entry's offset keeps the
    /// young and dirty bits behind the frame; with `None` they are dropped
    /// (rule SWP-05).
    ///
    /// # Errors
    ///
    /// If a device does not exist or a marker says nothing.
    pub fn encode(self, pfn_bits: u32, keeps_young_dirty: bool) -> Result<TypeOffset, EncodeError> {
        let special = |k: u8, offset: u64| TypeOffset { ty: FIRST_SPECIAL + k, offset };
        let frame = |pfn: Pfn| {
            if pfn.get() >> pfn_bits == 0 {
                Ok(pfn.get())
            } else {
                Err(EncodeError::OffsetTooWide { offset: pfn.get(), bits: pfn_bits })
            }
        };
        Ok(match self {
            NonPresent::Swap(SwapSlot { device, offset }) => {
                if device >= FIRST_SPECIAL {
                    return Err(EncodeError::NoSuchDevice { device });
                }
                TypeOffset { ty: device, offset }
            }
            NonPresent::Hwpoison(pfn) => special(0, frame(pfn)?),
            NonPresent::Migration { kind, pfn, young, dirty } => {
                let k = match kind {
                    MigrationKind::Read => 1,
                    MigrationKind::ReadExclusive => 2,
                    MigrationKind::Write => 3,
                };
                let ad =
                    if keeps_young_dirty { u64::from(young) | u64::from(dirty) << 1 } else { 0 };
                special(k, frame(pfn)? | ad << pfn_bits)
            }
            NonPresent::Device { kind, pfn } => {
                let k = match kind {
                    DeviceKind::PrivateWrite => 4,
                    DeviceKind::PrivateRead => 5,
                    DeviceKind::Exclusive => 6,
                };
                special(k, frame(pfn)?)
            }
            NonPresent::Marker(m) => {
                if m.is_empty() || Markers::from_bits(m.bits()).is_none() {
                    return Err(EncodeError::BadMarker { bits: m.bits() });
                }
                special(7, m.bits())
            }
        })
    }

    /// The meaning of the common form, or `None` for a marker that means
    /// nothing or a type out of range.
    pub fn decode(raw: TypeOffset, pfn_bits: u32, keeps_young_dirty: bool) -> Option<Self> {
        let TypeOffset { ty, offset } = raw;
        let pfn = Pfn::new(offset & ((1 << pfn_bits) - 1));
        let ad = if keeps_young_dirty { offset >> pfn_bits } else { 0 };
        Some(match ty {
            0..FIRST_SPECIAL => NonPresent::Swap(SwapSlot { device: ty, offset }),
            24 => NonPresent::Hwpoison(pfn),
            25..=27 => NonPresent::Migration {
                kind: match ty {
                    25 => MigrationKind::Read,
                    26 => MigrationKind::ReadExclusive,
                    _ => MigrationKind::Write,
                },
                pfn,
                young: ad & 1 != 0,
                dirty: ad & 2 != 0,
            },
            28..=30 => NonPresent::Device {
                kind: match ty {
                    28 => DeviceKind::PrivateWrite,
                    29 => DeviceKind::PrivateRead,
                    _ => DeviceKind::Exclusive,
                },
                pfn,
            },
            31 => {
                let m = Markers::from_bits(offset).filter(|m| !m.is_empty())?;
                NonPresent::Marker(m)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules: SWP-01, SWP-05, SWP-06.
    #[test]
    fn every_kind_round_trips_and_is_told_apart() {
        let pfn = Pfn::new(0x12_3456);
        let mut kinds = [NonPresent::Hwpoison(pfn); 64];
        let mut n = 1;
        let mut add = |k| {
            kinds[n] = k;
            n += 1;
        };
        for device in [0, 1, 23] {
            add(NonPresent::Swap(SwapSlot { device, offset: 0x77 }));
        }
        for kind in [MigrationKind::Read, MigrationKind::ReadExclusive, MigrationKind::Write] {
            for (young, dirty) in [(false, false), (true, false), (false, true), (true, true)] {
                add(NonPresent::Migration { kind, pfn, young, dirty });
            }
        }
        for kind in [DeviceKind::PrivateWrite, DeviceKind::PrivateRead, DeviceKind::Exclusive] {
            add(NonPresent::Device { kind, pfn });
        }
        for bits in 1..8 {
            add(NonPresent::Marker(Markers::from_bits_retain(bits)));
        }
        for (i, k) in kinds[..n].iter().enumerate() {
            let raw = k.encode(40, true).expect("encodes");
            assert_eq!(NonPresent::decode(raw, 40, true), Some(*k));
            for other in &kinds[..i] {
                assert_ne!(other.encode(40, true), Ok(raw));
            }
        }
    }

    /// Rules: SWP-05.
    #[test]
    fn young_and_dirty_are_dropped_where_there_is_no_room() {
        let e = NonPresent::Migration {
            kind: MigrationKind::Write,
            pfn: Pfn::new(9),
            young: true,
            dirty: true,
        };
        let raw = e.encode(24, false).expect("encodes");
        assert_eq!(raw.offset, 9);
    }

    #[test]
    fn bad_values_are_errors() {
        let bad = NonPresent::Swap(SwapSlot { device: 24, offset: 0 });
        assert_eq!(bad.encode(40, true), Err(EncodeError::NoSuchDevice { device: 24 }));
        let bad = NonPresent::Marker(Markers::empty());
        assert_eq!(bad.encode(40, true), Err(EncodeError::BadMarker { bits: 0 }));
        let bad = NonPresent::Hwpoison(Pfn::new(1 << 40));
        assert!(matches!(bad.encode(40, true), Err(EncodeError::OffsetTooWide { bits: 40, .. })));
        assert_eq!(NonPresent::decode(TypeOffset { ty: 31, offset: 8 }, 40, true), None);
    }
}
