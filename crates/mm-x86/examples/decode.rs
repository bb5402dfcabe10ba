//! Prints what raw x86-64 entries mean.
//!
//! ```text
//! cargo run -p mm-x86 --example decode -- 0x8000000012345067 0x40fffffedcba120
//! cargo run -p mm-x86 --example decode -- pmd 0x80000000002000e7
//! ```

use mm_arch::{AccessKind, Entry, Level};
use mm_x86::{X86Entry, bits, pkey};

fn describe(raw: u64, level: Level) -> String {
    let e = X86Entry::from_bits(raw);
    if e.is_none() {
        return "empty".into();
    }
    if let Some(table) = e.as_table(level) {
        return format!("table in frame {}", table.pfn());
    }
    if !e.is_present(level) {
        let flags = e.swap_bits();
        return match e.nonpresent(level) {
            Some(what) => format!("{what:?}, {flags:?}"),
            None => "non-present, means nothing".into(),
        };
    }
    if !e.is_leaf(level) {
        return "present, but neither a leaf nor a good table entry".into();
    }
    let mut words = vec![format!("frame {}", e.pfn(level))];
    for (yes, word) in [
        (e.permits(AccessKind::Read, level), "readable"),
        (e.permits(AccessKind::Write, level), "writable"),
        (e.permits(AccessKind::Exec, level), "executable"),
        (e.is_shadow_stack(level), "shadow stack"),
        (e.is_protnone(level), "inaccessible"),
        (e.is_young(), "young"),
        (e.is_dirty() && raw & bits::SAVED_DIRTY == 0, "dirty"),
        (raw & bits::SAVED_DIRTY != 0, "dirty (saved)"),
        (e.is_soft_dirty(), "soft-dirty"),
        (e.is_uffd_wp(), "uffd-wp"),
        (e.is_special(), "special"),
    ] {
        if yes {
            words.push(word.into());
        }
    }
    if pkey::key(e) != 0 {
        words.push(format!("key {}", pkey::key(e)));
    }
    words.join(", ")
}

fn main() {
    let mut level = Level::Pte;
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() {
        // A dirty page, the same page made inaccessible, a swap entry.
        arguments = ["0x8000000012345067", "0x040fffffedcba120", "0x1fffffffffdffe00"]
            .map(String::from)
            .to_vec();
    }
    for argument in arguments {
        match argument.as_str() {
            "pte" => level = Level::Pte,
            "pmd" => level = Level::Pmd,
            "pud" => level = Level::Pud,
            "pgd" => level = Level::Pgd,
            number => match u64::from_str_radix(number.trim_start_matches("0x"), 16) {
                Ok(raw) => println!("{raw:#018x} {level:?}: {}", describe(raw, level)),
                Err(error) => eprintln!("{number}: {error}; want pte, pmd, pud, pgd or a number"),
            },
        }
    }
}
