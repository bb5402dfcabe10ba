//! An entry as a command line describes it.

use crate::decode::{Decoded, decode};
use crate::names::{DEVICES, MARKERS, MIGRATIONS, level as level_name, one_of};
use mm_arch::explain::{Explain, Facts, Meaning};
use mm_arch::{
    DeviceKind, Entry, Level, Markers, MigrationKind, NonPresent, Pfn, Protection, Rights,
    SwapBits, SwapSlot, TableFrame, WriteKind,
};

/// What to encode: one of the kinds, and flags.
#[derive(clap::Args, Clone, Debug)]
pub struct Spec {
    #[command(flatten)]
    kind: Kind,
    /// What the mapping of a leaf allows: "none", or letters of rwx; rw without it.
    #[arg(long, value_parser = rights)]
    prot: Option<Rights>,
    /// Protection key of a leaf, 0 without it.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=15))]
    pkey: Option<u8>,
    /// A store goes through the leaf.
    #[arg(long, conflicts_with = "shadow_stack")]
    writable: bool,
    /// A shadow-stack store, and no other, goes through the leaf.
    #[arg(long)]
    shadow_stack: bool,
    /// Accessed (a leaf, or the page of a migration entry).
    #[arg(long)]
    young: bool,
    /// Written (a leaf, or the page of a migration entry).
    #[arg(long)]
    dirty: bool,
    /// Nothing is counted behind the leaf.
    #[arg(long)]
    special: bool,
    /// Anonymous and exclusive (an entry without a translation).
    #[arg(long)]
    exclusive: bool,
    /// Written since tracking was last reset; a leaf that is dirty is that too.
    #[arg(long)]
    soft_dirty: bool,
    /// Write-protected by userfaultfd.
    #[arg(long)]
    uffd_wp: bool,
}

/// What kind of entry.
#[derive(clap::Args, Clone, Debug)]
#[group(multiple = false)]
struct Kind {
    /// A leaf that maps this frame. Frames and offsets are decimal, or hexadecimal with 0x.
    #[arg(long, value_name = "FRAME", value_parser = frame)]
    pfn: Option<Pfn>,
    /// A pointer to the table in this frame.
    #[arg(long, value_name = "FRAME", value_parser = frame)]
    table: Option<Pfn>,
    /// A page in a slot of a swap device.
    #[arg(long, value_name = "DEVICE:OFFSET", value_parser = swap)]
    swap: Option<SwapSlot>,
    /// A page that is being moved; KIND is read, read-exclusive or write.
    #[arg(long, value_name = "KIND:FRAME", value_parser = migration)]
    migration: Option<(MigrationKind, Pfn)>,
    /// A page that belongs to a device; KIND is private-read, private-write or exclusive.
    #[arg(long, value_name = "KIND:FRAME", value_parser = device)]
    device: Option<(DeviceKind, Pfn)>,
    /// A poisoned frame.
    #[arg(long, value_name = "FRAME", value_parser = frame)]
    hwpoison: Option<Pfn>,
    /// A marker: uffd-wp, poisoned, guard, with commas between them.
    #[arg(long, value_name = "NAMES", value_parser = marker)]
    marker: Option<Markers>,
}

impl Kind {
    fn nonpresent(&self, young: bool, dirty: bool) -> Option<NonPresent> {
        let migration = |(kind, pfn)| NonPresent::Migration { kind, pfn, young, dirty };
        self.swap
            .map(NonPresent::Swap)
            .or(self.migration.map(migration))
            .or(self.device.map(|(kind, pfn)| NonPresent::Device { kind, pfn }))
            .or(self.hwpoison.map(NonPresent::Hwpoison))
            .or(self.marker.map(NonPresent::Marker))
    }
}

/// The raw value of what `spec` describes, at `level` of the format.
///
/// # Errors
///
/// A sentence on what the format cannot hold there, or what does not go together.
pub fn encode<A: Explain>(spec: &Spec, level: Level) -> Result<u64, String> {
    let (raw, wanted) = if let Some(pfn) = spec.kind.pfn {
        (leaf::<A>(spec, pfn, level)?, Meaning::Leaf(pfn))
    } else if let Some(pfn) = spec.kind.table {
        (table::<A>(spec, pfn, level)?, Meaning::Table(TableFrame::new(pfn)))
    } else if let Some(what) = spec.kind.nonpresent(spec.young, spec.dirty) {
        let is_move = spec.kind.migration.is_some();
        let history = (spec.young || spec.dirty) && !is_move;
        let leaf_only = [
            (spec.prot.is_some(), "--prot"),
            (spec.pkey.is_some(), "--pkey"),
            (spec.writable, "--writable"),
            (spec.shadow_stack, "--shadow-stack"),
            (spec.special, "--special"),
            (history, "--young and --dirty"),
        ];
        refuse(&leaf_only, "an entry without a translation")?;
        let (exclusive, soft_dirty, uffd_wp) = (spec.exclusive, spec.soft_dirty, spec.uffd_wp);
        let bits = SwapBits { exclusive, soft_dirty, uffd_wp };
        let e = A::Entry::from_nonpresent(what, bits).map_err(|e| e.to_string())?;
        if e.swap_bits() != bits {
            return Err(format!("entries of {} without a translation lack such a flag", A::NAME));
        }
        (e.raw(), Meaning::NonPresent(what, bits))
    } else {
        return Err(
            "nothing to encode: give --pfn, --table, --swap, --migration, --device, --hwpoison \
                    or --marker"
                .into(),
        );
    };
    let Decoded { explanation, faults } = decode::<A>(raw, level);
    if explanation.meaning != wanted {
        return Err(format!("{} cannot say that in a {}", A::NAME, level_name(level)));
    }
    match faults.first() {
        None => Ok(raw),
        Some(fault) => Err(format!("no kernel writes {raw:#018x}: {}", fault.what)),
    }
}

/// Refuses options that do not go with the kind of entry.
fn refuse(options: &[(bool, &str)], kind: &str) -> Result<(), String> {
    match options.iter().find(|(set, _)| *set) {
        None => Ok(()),
        Some((_, option)) => Err(format!("{option} is not for {kind}")),
    }
}

fn leaf<A: Explain>(spec: &Spec, pfn: Pfn, level: Level) -> Result<u64, String> {
    refuse(&[(spec.exclusive, "--exclusive")], "a leaf")?;
    let rights = spec.prot.unwrap_or(Rights::READ | Rights::WRITE);
    let pkey = spec.pkey.unwrap_or(0);
    let prot = A::prot(Protection { rights, writable_at_once: false, pkey });
    let mut e = A::checked_leaf(pfn, prot, level).map_err(|e| e.to_string())?;
    if spec.special {
        e = e.mkspecial();
    }
    // A template may be accessed already.
    e = if spec.young { e.mkyoung() } else { e.mkold() };
    // Before it becomes writable: a shadow stack's dirty bit is its permission (SHSTK-06).
    if spec.dirty {
        e = e.mkdirty();
    }
    if spec.soft_dirty {
        e = e.mksoft_dirty();
    }
    if spec.uffd_wp {
        e = e.mkuffd_wp();
    }
    if spec.writable || spec.shadow_stack {
        let kind = if spec.writable { WriteKind::Normal } else { WriteKind::ShadowStack };
        e = e.mkwrite(kind);
    }
    // What the format or the mapping does not have did not come to be.
    let x = A::explain(e.raw(), level);
    let key = x.fields.iter().find(|f| f.name == "PKEY").map_or(0, |f| f.value(e.raw()));
    for (wanted, is, what) in [
        (spec.writable, x.facts.contains(Facts::WRITE), "writable"),
        (spec.shadow_stack, x.facts.contains(Facts::SHADOW_STACK), "shadow-stack"),
        (spec.dirty, e.is_dirty(), "dirty"),
        (spec.soft_dirty, e.is_soft_dirty(), "soft-dirty"),
        (spec.uffd_wp, e.is_uffd_wp(), "uffd-wp"),
        (pkey != 0, key == u64::from(pkey), "protection-key"),
    ] {
        if wanted && !is {
            return Err(format!("{} has no {what} leaf with these rights", A::NAME));
        }
    }
    Ok(e.raw())
}

fn table<A: Explain>(spec: &Spec, pfn: Pfn, level: Level) -> Result<u64, String> {
    let flags = [
        (spec.prot.is_some(), "--prot"),
        (spec.pkey.is_some(), "--pkey"),
        (spec.writable, "--writable"),
        (spec.shadow_stack, "--shadow-stack"),
        (spec.young, "--young"),
        (spec.dirty, "--dirty"),
        (spec.special, "--special"),
        (spec.exclusive, "--exclusive"),
        (spec.soft_dirty, "--soft-dirty"),
        (spec.uffd_wp, "--uffd-wp"),
    ];
    refuse(&flags, "a pointer to a table")?;
    let bits = A::PHYS_BITS - A::PAGE_SHIFT;
    if pfn.get() >> bits != 0 {
        return Err(format!("frame {pfn} does not fit the {bits} frame bits of the format"));
    }
    if level == Level::Pte {
        return Err("a pte points to no table".into());
    }
    Ok(A::Entry::table(TableFrame::new(pfn), level).raw())
}

/// Reads a number: decimal, or hexadecimal with 0x.
fn number(text: &str) -> Result<u64, String> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if digits.starts_with(['+', '-']) {
        return Err(format!("{text:?} is not a number"));
    }
    u64::from_str_radix(digits, radix)
        .map_err(|_| format!("{text:?} is not a number, decimal or hexadecimal with 0x"))
}
fn frame(text: &str) -> Result<Pfn, String> {
    number(text).map(Pfn::new)
}
fn rights(text: &str) -> Result<Rights, String> {
    if text == "none" {
        return Ok(Rights::empty());
    }
    let letters = [('r', Rights::READ), ('w', Rights::WRITE), ('x', Rights::EXEC)];
    let right = |c| letters.iter().find(|(letter, _)| *letter == c).map(|(_, right)| *right);
    let all: Option<Vec<_>> = text.chars().map(right).collect();
    match all {
        Some(all) if !all.is_empty() => Ok(all.into_iter().collect()),
        _ => Err("it is neither \"none\" nor letters of rwx".into()),
    }
}
fn swap(text: &str) -> Result<SwapSlot, String> {
    let (device, offset) = text.split_once(':').ok_or("it has no colon: DEVICE:OFFSET")?;
    let device = u8::try_from(number(device)?).map_err(|_| "there is no such device")?;
    Ok(SwapSlot { device, offset: number(offset)? })
}
/// Reads `KIND:FRAME`.
fn kind<T: Copy>(text: &str, kinds: &[(&'static str, T)]) -> Result<(T, Pfn), String> {
    let (word, pfn) = text.split_once(':').ok_or("it has no colon: KIND:FRAME")?;
    let (_, kind) = one_of("kind", word, kinds, |(name, _)| name)?;
    Ok((kind, frame(pfn)?))
}
fn migration(text: &str) -> Result<(MigrationKind, Pfn), String> {
    kind(text, &MIGRATIONS)
}
fn device(text: &str) -> Result<(DeviceKind, Pfn), String> {
    kind(text, &DEVICES)
}
fn marker(text: &str) -> Result<Markers, String> {
    text.split(',').map(|w| Ok(one_of("marker", w, &MARKERS, |(name, _)| name)?.1)).collect()
}
