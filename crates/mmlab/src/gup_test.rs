//! `mmlab gup-test`: the kernel's GUP benchmark on the simulated machine (rules
//! BENCH-01..10).

use crate::bed::{Bed, FolioSize};
use crate::cli::say;
use clap::{ArgGroup, Args};
use mm_arch::{Pfn, VirtAddr};
use mm_gup::{Gup, GupError, GupFlags, Pages, put_pages, unpin_pages};
use mm_map::Advice;
use mm_sim::{EventCounts, Preset};
use mm_vma::{Observer, Platform, VmaFlags};
use serde_json::json;
use std::process::ExitCode;
use std::time::Instant;

const PAGE: u64 = 4096;

/// Arguments of `mmlab gup-test`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("mode").multiple(false)))]
#[expect(clippy::struct_excessive_bools, reason = "one field per option of the tool")]
pub struct GupTestArgs {
    /// get_user_pages_fast (the default).
    #[arg(short = 'u', group = "mode")]
    get_fast: bool,
    /// get_user_pages, once and untimed.
    #[arg(short = 'U', group = "mode")]
    get: bool,
    /// pin_user_pages_fast.
    #[arg(short = 'a', group = "mode")]
    pin_fast: bool,
    /// pin_user_pages, once and untimed.
    #[arg(short = 'b', group = "mode")]
    pin: bool,
    /// pin_user_pages with FOLL_LONGTERM.
    #[arg(short = 'L', group = "mode")]
    longterm: bool,
    /// Dump the pages of the given indexes.
    #[arg(short = 'c', group = "mode")]
    dump: bool,
    /// With -c: pin instead of get.
    #[arg(short = 'p', requires = "dump")]
    dump_pinned: bool,
    /// Size of the region in MiB.
    #[arg(short = 'm', default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=32768))]
    mib: u64,
    /// Pages per call.
    #[arg(short = 'n', default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pages_per_call: u64,
    /// Repeats.
    #[arg(short = 'r', default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeats: u64,
    /// madvise(HUGEPAGE).
    #[arg(short = 't', conflicts_with = "no_thp")]
    thp: bool,
    /// madvise(NOHUGEPAGE).
    #[arg(short = 'T')]
    no_thp: bool,
    /// FOLL_WRITE (the default).
    #[arg(short = 'w', conflicts_with = "read")]
    write: bool,
    /// Without FOLL_WRITE.
    #[arg(short = 'W')]
    read: bool,
    /// MAP_SHARED.
    #[arg(short = 'S')]
    shared: bool,
    /// MAP_HUGETLB.
    #[arg(short = 'H')]
    hugetlb: bool,
    /// A backing file.
    #[arg(short = 'f', value_name = "FILE")]
    file: Option<String>,
    /// FOLL flags to start with (any base, as in C).
    #[arg(short = 'F', value_name = "FLAGS", value_parser = parse_flags)]
    flags: Option<u32>,
    /// Threads.
    #[arg(short = 'j', default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Let GUP fault the pages instead of touching them before.
    #[arg(short = 'z')]
    untouched: bool,
    /// Page indexes for -c.
    #[arg(value_name = "INDEX", value_parser = parse_flags, requires = "dump")]
    indexes: Vec<u32>,
    /// Fill the region with folios of this size.
    #[arg(long, conflicts_with_all = ["thp", "no_thp", "untouched"])]
    folio: Option<FolioSize>,
    /// Policy preset.
    #[arg(long, default_value = "best", value_parser = crate::cli::policy)]
    policy: Preset,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

fn parse_flags(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None if text.len() > 1 && text.starts_with('0') => u32::from_str_radix(text, 8),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is not a number"))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    GetFast,
    Get,
    PinFast,
    Pin,
    Longterm,
    Dump { pinned: bool },
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Mode::GetFast => "GUP_FAST_BENCHMARK",
            Mode::Get => "GUP_BASIC_TEST",
            Mode::PinFast => "PIN_FAST_BENCHMARK",
            Mode::Pin => "PIN_BASIC_TEST",
            Mode::Longterm => "PIN_LONGTERM_BENCHMARK",
            Mode::Dump { .. } => "DUMP_USER_PAGES_TEST",
        }
    }
    const fn is_benchmark(self) -> bool {
        matches!(self, Mode::GetFast | Mode::PinFast | Mode::Longterm)
    }
    const fn pins(self) -> bool {
        matches!(self, Mode::PinFast | Mode::Pin | Mode::Longterm | Mode::Dump { pinned: true })
    }
}

/// One pass over the region.
struct Pass {
    get_us: f64,
    put_us: f64,
    pages: usize,
    held: Vec<Pfn>,
}

impl GupTestArgs {
    fn mode(&self) -> Mode {
        match (self.get, self.pin_fast, self.pin, self.longterm, self.dump) {
            (true, ..) => Mode::Get,
            (_, true, ..) => Mode::PinFast,
            (_, _, true, ..) => Mode::Pin,
            (_, _, _, true, _) => Mode::Longterm,
            (.., true) => Mode::Dump { pinned: self.dump_pinned },
            _ => Mode::GetFast,
        }
    }
    fn gup_flags(&self) -> Result<GupFlags, String> {
        let raw = self.flags.unwrap_or(0);
        // FOLL_GET and FOLL_PIN are the mode here, and TOUCH is set inside.
        let mut flags =
            GupFlags::from_bits(raw).filter(|f| !f.intersects(GupFlags::INTERNAL)).ok_or_else(
                || format!("-F {raw:#x}: not a set of FOLL flags that a caller may pass"),
            )?;
        flags.set(GupFlags::WRITE, !self.read || flags.contains(GupFlags::WRITE));
        flags.set(
            GupFlags::LONGTERM,
            self.mode() == Mode::Longterm || flags.contains(GupFlags::LONGTERM),
        );
        Ok(flags)
    }
    fn not_built(&self) -> Option<&'static str> {
        if self.shared {
            Some("-S")
        } else if self.hugetlb {
            Some("-H")
        } else if self.file.is_some() {
            Some("-f")
        } else {
            None
        }
    }
}

/// Runs the calls of one pass (rules BENCH-05, BENCH-06, BENCH-08).
fn pass<O: Observer>(
    bed: &Bed<()>,
    handler: &impl mm_gup::FaultHandler<mm_sim::Host<mm_x86::X86_64, ()>>,
    args: &GupTestArgs,
    flags: GupFlags,
    observer: &O,
) -> Result<Pass, GupError> {
    let mode = args.mode();
    let gup = Gup::new(bed.process.mm(), handler)
        .with_policy(args.policy.policy().gup)
        .observed_by(observer);
    let nr = bed.nr_pages();
    let per_call = usize::try_from(args.pages_per_call).unwrap_or(usize::MAX).min(nr);
    let mut out = vec![Pfn::new(0); nr];
    let mut done = 0;
    let start = Instant::now();
    while done < nr {
        let want = per_call.min(nr - done);
        let va = bed.range.start().add_units(done as u64, 12);
        let mut pages = Pages::new(&mut out[done..done + want]);
        let got = match mode {
            Mode::GetFast => gup.get_fast(va, want, flags, &mut pages),
            Mode::PinFast => gup.pin_fast(va, want, flags, &mut pages),
            Mode::Get | Mode::Dump { pinned: false } => gup.get(va, want, flags, &mut pages),
            Mode::Pin | Mode::Longterm | Mode::Dump { pinned: true } => {
                gup.pin(va, want, flags, &mut pages)
            }
        };
        match got {
            Ok(got) => done += got,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
        if got != Ok(want) {
            break;
        }
    }
    let get_us = start.elapsed().as_secs_f64() * 1e6;
    out.truncate(done);
    let map = bed.machine.host().memmap();
    let held = if matches!(mode, Mode::Dump { .. }) { out.clone() } else { Vec::new() };
    if mode.pins() {
        for pfn in &out {
            assert!(
                map.is_zero_page(*pfn) || map.folio(*pfn).maybe_dma_pinned(),
                "page {pfn} was pinned but does not look so"
            );
        }
    }
    let start = Instant::now();
    if mode.pins() {
        unpin_pages(map, &out)
    } else {
        put_pages(map, &out)
    }
    Ok(Pass { get_us, put_us: start.elapsed().as_secs_f64() * 1e6, pages: done, held })
}

/// Runs `mmlab gup-test`.
pub fn main(args: &GupTestArgs) -> ExitCode {
    if let Some(option) = args.not_built() {
        eprintln!("mmlab: gup-test: {option} is not built yet");
        return ExitCode::from(2);
    }
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("mmlab: gup-test: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &GupTestArgs) -> Result<(), String> {
    let (mode, flags) = (args.mode(), args.gup_flags()?);
    let advice = match (args.thp, args.no_thp) {
        (true, _) => Some(Advice::HugePage),
        (_, true) => Some(Advice::NoHugePage),
        _ => None,
    };
    let rights = VmaFlags::READ | VmaFlags::WRITE;
    let mut policy = args.policy.policy();
    if args.thp {
        policy.fault.thp = policy.fault.thp.with_global(mm_fault::ThpMode::Madvise);
    }
    let bed = Bed::<()>::new(args.mib << 20, args.folio, advice, rights, policy)?;
    if args.folio.is_none() && !args.untouched {
        bed.touch()?;
    }
    let repeats = if mode.is_benchmark() { args.repeats } else { 1 };
    let handler = bed.process.gup_handler();
    for _ in 0..repeats {
        let passes: Result<Vec<Pass>, GupError> = if args.threads == 1 {
            pass(&bed, &handler, args, flags, &()).map(|p| vec![p])
        } else {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..args.threads)
                    .map(|_| {
                        scope.spawn(|| pass(&bed, &bed.process.gup_handler(), args, flags, &()))
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
                    .collect()
            })
        };
        // Counted apart: counting must not be timed.
        let counts = EventCounts::default();
        pass(&bed, &handler, args, flags, &counts).map_err(|e| e.to_string())?;
        for pass in passes.map_err(|e| e.to_string())? {
            print(args, mode, &bed, &pass, &counts);
        }
    }
    Ok(())
}

fn print(args: &GupTestArgs, mode: Mode, bed: &Bed<()>, pass: &Pass, counts: &EventCounts) {
    let bytes = pass.pages as u64 * PAGE;
    if args.json {
        say(json!({
            "mode": mode.name(),
            "policy": args.policy.name(),
            "folio": args.folio.map(FolioSize::name),
            "bytes": bytes,
            "pages_per_call": args.pages_per_call,
            "get_us": pass.get_us,
            "put_us": pass.put_us,
            "counts": {
                "entries_read": counts.entries_read.get(),
                "grabs": counts.grabs.get(),
                "atomics": counts.atomics.get(),
                "locks": counts.locks.get(),
                "walks": counts.walks.get(),
                "faults": counts.gup_faults.get(),
                "fills_under_lock": counts.fills_under_lock.get(),
            },
        }));
        return;
    }
    match mode {
        _ if mode.is_benchmark() => say(format_args!(
            "{}: get:{:.0} put:{:.0} us; {} grabs, {} atomics, {} walks, {} locks",
            mode.name(),
            pass.get_us,
            pass.put_us,
            counts.grabs.get(),
            counts.atomics.get(),
            counts.walks.get(),
            counts.locks.get(),
        )),
        _ => say(format_args!("{}: done", mode.name())),
    }
    if bytes != bed.range.bytes() {
        say(format_args!("truncated (size: {bytes})"));
    }
    for index in &args.indexes {
        match pass.held.get(*index as usize) {
            Some(pfn) => {
                let folio = bed.machine.host().memmap().folio(*pfn);
                say(format_args!(
                    "page {index} at {}: frame {pfn}, {folio:?}",
                    page_va(bed, *index)
                ));
            }
            None => {
                say(format_args!("page {index}: beyond the {} pages that were taken", pass.pages))
            }
        }
    }
}

fn page_va(bed: &Bed<()>, index: u32) -> VirtAddr {
    bed.range.start().add_units(u64::from(index), 12)
}
