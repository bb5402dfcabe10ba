//! What an entry means, as text and as JSON.

use mm_arch::explain::{Explanation, Field, Meaning};
use mm_arch::{Markers, NonPresent, Pfn, SwapBits};
use mmlab_formats::names::{DEVICES, MARKERS, MIGRATIONS, level};
use mmlab_formats::{Decoded, Format};
use serde_json::{Value, json};

/// The name of a value in one of the lists above.
fn name_of<T: PartialEq>(list: &[(&'static str, T)], value: &T) -> &'static str {
    list.iter().find(|(_, v)| v == value).map_or("unknown", |(name, _)| name)
}

fn markers(m: Markers) -> Vec<&'static str> {
    MARKERS.iter().filter(|(_, flag)| m.contains(*flag)).map(|(name, _)| *name).collect()
}

fn swap_flags(bits: SwapBits) -> Vec<&'static str> {
    [(bits.exclusive, "exclusive"), (bits.soft_dirty, "soft-dirty"), (bits.uffd_wp, "uffd-wp")]
        .into_iter()
        .filter(|(set, _)| *set)
        .map(|(_, word)| word)
        .collect()
}

/// What the entry remembers and allows, as words.
pub fn facts(x: &Explanation) -> Vec<&'static str> {
    match x.meaning {
        Meaning::NonPresent(_, bits) => swap_flags(bits),
        _ => x.facts.words().collect(),
    }
}

/// What the entry stands for, as a phrase.
pub fn meaning(format: Format, x: &Explanation) -> String {
    let frame = |pfn: Pfn| format!("frame {:#x}", pfn.get());
    match x.meaning {
        Meaning::Empty => "empty: nothing is mapped and nothing remembered".into(),
        Meaning::Leaf(pfn) => {
            let bytes = format.page_size << (format.order)(x.level);
            let address = pfn.get().wrapping_mul(format.page_size);
            format!("maps {} (address {address:#x}), {}", frame(pfn), size(bytes))
        }
        Meaning::Table(table) => format!("points to the table in {}", frame(table.pfn())),
        Meaning::NonPresent(what, _) => match what {
            NonPresent::Swap(slot) => {
                format!("swapped out: device {}, slot {:#x}", slot.device, slot.offset)
            }
            NonPresent::Migration { kind, pfn, young, dirty } => {
                let kind = name_of(&MIGRATIONS, &kind);
                let young = if young { ", accessed" } else { "" };
                let dirty = if dirty { ", dirty" } else { "" };
                format!("migration of {}, {kind}{young}{dirty}", frame(pfn))
            }
            NonPresent::Device { kind, pfn } => {
                format!("device memory, {}: {}", name_of(&DEVICES, &kind), frame(pfn))
            }
            NonPresent::Hwpoison(pfn) => format!("poisoned: {}", frame(pfn)),
            NonPresent::Marker(m) => format!("marker: {}", markers(m).join(", ")),
        },
        Meaning::Unknown => "nothing that the format knows".into(),
    }
}

/// Bytes with the largest unit that divides them.
fn size(bytes: u64) -> String {
    match bytes.trailing_zeros() {
        30.. => format!("{} GiB", bytes >> 30),
        20.. => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

/// The bits of a field, such as `63` or `62..59`.
pub fn bits(field: &Field) -> String {
    let last = field.shift + field.width - 1;
    if field.width == 1 { last.to_string() } else { format!("{last}..{}", field.shift) }
}

/// Everything about a value.
pub fn json(format: Format, decoded: &Decoded) -> Value {
    let x = &decoded.explanation;
    let hex = |n: u64| format!("{n:#x}");
    let mut meaning = match x.meaning {
        Meaning::Empty => json!({ "kind": "empty" }),
        Meaning::Leaf(pfn) => json!({
            "kind": "leaf",
            "pfn": hex(pfn.get()),
            "bytes": format.page_size << (format.order)(x.level),
        }),
        Meaning::Table(table) => json!({ "kind": "table", "pfn": hex(table.pfn().get()) }),
        Meaning::NonPresent(what, _) => match what {
            NonPresent::Swap(slot) => {
                json!({ "kind": "swap", "device": slot.device, "offset": hex(slot.offset) })
            }
            NonPresent::Migration { kind, pfn, young, dirty } => json!({
                "kind": "migration",
                "of": name_of(&MIGRATIONS, &kind),
                "pfn": hex(pfn.get()),
                "young": young,
                "dirty": dirty,
            }),
            NonPresent::Device { kind, pfn } => json!({
                "kind": "device",
                "of": name_of(&DEVICES, &kind),
                "pfn": hex(pfn.get()),
            }),
            NonPresent::Hwpoison(pfn) => json!({ "kind": "hwpoison", "pfn": hex(pfn.get()) }),
            NonPresent::Marker(m) => json!({ "kind": "marker", "markers": markers(m) }),
        },
        Meaning::Unknown => json!({ "kind": "unknown" }),
    };
    if let Some(meaning) = meaning.as_object_mut() {
        meaning.insert("is".into(), json!(facts(x)));
    }
    let fields: Vec<_> = x
        .fields
        .iter()
        .map(|f| {
            json!({
                "name": f.name,
                "shift": f.shift,
                "width": f.width,
                "value": hex(f.value(x.raw)),
                "meaning": f.meaning,
            })
        })
        .collect();
    let faults: Vec<_> = decoded
        .faults
        .iter()
        .map(|fault| json!({ "bits": hex(fault.bits), "what": fault.what }))
        .collect();
    json!({
        "arch": format.name,
        "level": level(x.level),
        "raw": format!("{:#018x}", x.raw),
        "meaning": meaning,
        "fields": fields,
        "faults": faults,
    })
}
