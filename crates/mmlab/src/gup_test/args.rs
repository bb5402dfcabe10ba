//! Arguments of `mmlab gup-test` (rules BENCH-01, BENCH-02).

use super::pass::{Mode, Plan};
use crate::bed::FolioSize;
use clap::{ArgGroup, Args};
use mm_gup::GupFlags;
use mm_sim::Preset;

/// Arguments of `mmlab gup-test`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("mode").multiple(false)))]
#[expect(clippy::struct_excessive_bools, reason = "one field per option of the tool")]
pub struct GupTestArgs {
    /// get_user_pages_fast (the default).
    #[arg(short = 'u', group = "mode")]
    pub get_fast: bool,
    /// get_user_pages, once and untimed.
    #[arg(short = 'U', group = "mode")]
    pub get: bool,
    /// pin_user_pages_fast.
    #[arg(short = 'a', group = "mode")]
    pub pin_fast: bool,
    /// pin_user_pages, once and untimed.
    #[arg(short = 'b', group = "mode")]
    pub pin: bool,
    /// pin_user_pages with FOLL_LONGTERM.
    #[arg(short = 'L', group = "mode")]
    pub longterm: bool,
    /// Dump the pages of the given indexes, once and untimed.
    #[arg(short = 'c', group = "mode")]
    pub dump: bool,
    /// With -c: pin instead of get.
    #[arg(short = 'p', requires = "dump")]
    pub dump_pinned: bool,
    /// Size of the region in MiB.
    #[arg(short = 'm', value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=32768))]
    pub mib: u64,
    /// Pages per call.
    #[arg(short = 'n', value_name = "PAGES", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub pages_per_call: u64,
    /// Repeats of a benchmark (-u, -a, -L).
    #[arg(short = 'r', default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub repeats: u64,
    /// madvise(HUGEPAGE).
    #[arg(short = 't', conflicts_with = "no_thp")]
    pub thp: bool,
    /// madvise(NOHUGEPAGE).
    #[arg(short = 'T')]
    pub no_thp: bool,
    /// FOLL_WRITE (the default).
    #[arg(short = 'w', conflicts_with = "read")]
    pub write: bool,
    /// Without FOLL_WRITE, unless -F has it.
    #[arg(short = 'W')]
    pub read: bool,
    /// MAP_SHARED: of the file, or of shared memory.
    #[arg(short = 'S', conflicts_with = "folio")]
    pub shared: bool,
    /// MAP_HUGETLB: all of it in huge pages of 2 MiB before anything is measured. There is no
    /// hugetlbfs: they are anonymous folios, mapped by PMD leaves.
    #[arg(short = 'H', conflicts_with_all = ["shared", "file", "folio", "thp", "no_thp", "untouched"])]
    pub hugetlb: bool,
    /// A file of this computer to map, privately without -S. It must be large enough.
    #[arg(short = 'f', value_name = "FILE", conflicts_with = "folio")]
    pub file: Option<String>,
    /// FOLL flags to start with (any base, as in C).
    #[arg(short = 'F', value_name = "FLAGS", value_parser = parse_number)]
    pub flags: Option<u32>,
    /// Threads, each of which takes the whole region.
    #[arg(short = 'j', default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub threads: u64,
    /// Let GUP fault the pages instead of touching them before.
    #[arg(short = 'z')]
    pub untouched: bool,
    /// Page indexes for -c, from 0, at most 8.
    #[arg(value_name = "INDEX", value_parser = parse_number, requires = "dump", num_args = 0..=8)]
    pub indexes: Vec<u32>,
    /// Fill the region with folios of this size.
    #[arg(long, conflicts_with_all = ["thp", "no_thp", "untouched"])]
    pub folio: Option<FolioSize>,
    /// Policy preset.
    #[arg(long, default_value = "best", value_parser = crate::cli::policy)]
    pub policy: Preset,
    /// One JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// The lines of the kernel's tool, letter for letter, and its surprises: a partly served
    /// call counts as whole, an error as nothing, and -z adds FOLL_GET, which pins refuse.
    #[arg(long, conflicts_with = "json")]
    pub compat: bool,
}

/// FOLL_GET, which is what the kernel's tool sets where it means FOLL_TOUCH.
const FOLL_GET: u32 = 1 << 1;

/// A number in decimal, octal (`0…`) or hexadecimal (`0x…`).
fn parse_number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None if text.len() > 1 && text.starts_with('0') => u32::from_str_radix(text, 8),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is not a number"))
}

impl GupTestArgs {
    /// What is called.
    pub fn mode(&self) -> Mode {
        match (self.get, self.pin_fast, self.pin, self.longterm, self.dump) {
            (true, ..) => Mode::Get,
            (_, true, ..) => Mode::PinFast,
            (_, _, true, ..) => Mode::Pin,
            (_, _, _, true, _) => Mode::Longterm,
            (.., true) => Mode::Dump { pinned: self.dump_pinned },
            _ => Mode::GetFast,
        }
    }

    /// How often a thread does it (rule BENCH-04).
    pub fn repeats(&self) -> u64 {
        if self.mode().is_benchmark() { self.repeats } else { 1 }
    }

    /// What a pass does.
    ///
    /// # Errors
    ///
    /// If `-F` has flags that no caller may pass. In the kernel's format that shows in
    /// what is printed (rule BENCH-10).
    pub fn plan(&self) -> Result<Plan, String> {
        let mode = self.mode();
        let mut raw = self.flags.unwrap_or(0);
        if self.compat {
            raw |= if self.untouched { FOLL_GET } else { 0 };
            // References are what these modes take anyway.
            raw &= if mode.pins() { !0 } else { !FOLL_GET };
        }
        let legal = GupFlags::from_bits(raw).filter(|f| !f.intersects(GupFlags::INTERNAL));
        if legal.is_none() && !self.compat {
            return Err(format!("-F {raw:#x}: not a set of FOLL flags that a caller may pass"));
        }
        let add = |condition, flag| if condition { flag } else { GupFlags::empty() };
        let flags = legal.map(|f| {
            f | add(!self.read, GupFlags::WRITE) | add(mode == Mode::Longterm, GupFlags::LONGTERM)
        });
        Ok(Plan {
            mode,
            flags,
            policy: self.policy.policy().gup,
            pages_per_call: usize::try_from(self.pages_per_call).unwrap_or(usize::MAX),
            dump: self.indexes.clone(),
        })
    }

    /// The folios that the region is filled with, if that is asked for.
    pub fn filled_with(&self) -> Option<FolioSize> {
        if self.hugetlb { Some(FolioSize::M2Pmd) } else { self.folio }
    }
}
