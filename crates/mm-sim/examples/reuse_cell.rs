//! One kind of write fault after a fork, taken once per folio: what `cargo xtask
//! instructions` counts. The argument is KIND-SIZE: `page-2m` and `table-2m` reuse the
//! page and the whole folio, `allocate-1m` fills an empty one, `copy-4k` copies a
//! shared page.

use mm_arch::{Rights, VirtAddr, VirtRange};
use mm_fault::{
    FaultFlags, FaultOutcome, FaultPolicy, OrderMode, ReusePolicy, ThpMode, ThpPolicy, handle_fault,
};
use mm_map::Advice;
use mm_sim::{Host, Machine, MachineConfig, Preset};
use mm_vma::{MmRead, VmaFlags};
use mm_x86::X86_64;
use std::error::Error;
use std::process::ExitCode;

const BASE: u64 = 0x1000_0000_0000;
const PAGES: u64 = 32 << 8;

fn va(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * 4096)
}

/// A store fault on each of `pages`.
#[inline(never)]
fn reuse_region(vmas: &MmRead<'_, Host<X86_64>>, policy: &FaultPolicy, step: usize) -> u64 {
    let fault = |page| handle_fault(policy, vmas, va(page), FaultFlags::WRITE);
    let done = |outcome| matches!(outcome, FaultOutcome::Done { .. });
    (0..PAGES).step_by(step).filter(|page| done(fault(*page))).count() as u64
}

/// How many faults were taken; `None` if there is no such cell.
fn once(cell: &str) -> Result<Option<u64>, Box<dyn Error>> {
    let Some((kind, size)) = cell.split_once('-') else { return Ok(None) };
    let Some(order) = [("4k", 0), ("64k", 4), ("1m", 8), ("2m", 9)]
        .into_iter()
        .find_map(|(name, order)| (name == size).then_some(order))
    else {
        return Ok(None);
    };
    let reuse = if kind == "table" { ReusePolicy::Table } else { ReusePolicy::Page };
    let mut policy = Preset::Linux618.policy();
    let thp = ThpPolicy::new(9).with_global(ThpMode::Madvise).with_order(9, OrderMode::Never);
    policy.fault.thp = if order > 0 { thp.with_order(order, OrderMode::Madvise) } else { thp };
    policy.fault.reuse = reuse;
    let faults = policy.fault;

    let config = MachineConfig { bytes: 96 << 20, poison: false, ..MachineConfig::default() };
    let machine = Machine::<X86_64>::new(config, policy)?;
    let process = machine.spawn()?;
    let range = VirtRange::units(va(0), PAGES, 12)?;
    process.mmap_anon(range, VmaFlags::READ | VmaFlags::WRITE)?;
    process.madvise(range, Advice::HugePage)?;
    if kind != "allocate" {
        for page in 0..PAGES {
            process.store(va(page), page)?;
        }
    }
    if order == 9 {
        // From a PMD leaf to a page table.
        for page in (0..PAGES).step_by(512) {
            let last = VirtRange::units(va(page + 511), 1, 12)?;
            process.mprotect(last, Rights::READ)?;
            process.mprotect(last, Rights::READ | Rights::WRITE)?;
        }
    }
    let child = process.fork()?;
    // A copy is made only while somebody shares the page.
    let child = (kind == "copy").then_some(child);
    if !matches!(kind, "page" | "table" | "allocate" | "copy") {
        return Ok(None);
    }
    let got = reuse_region(&process.mm().read(), &faults, 1 << order);
    drop(child);
    Ok(Some(got))
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let cell = std::env::args().nth(1).unwrap_or_else(|| "table-2m".to_owned());
    Ok(match once(&cell)? {
        Some(got) => {
            println!("{cell}: {got} faults");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("no cell `{cell}`: KIND-SIZE, as in table-2m");
            ExitCode::from(2)
        }
    })
}
