//! Unmapping by reclaim, once for each folio of a region: what `cargo xtask instructions`
//! counts. The argument is KIND-SIZE-POLICY: `file-64k-page` and `file-64k-all` take clean
//! pages of a file, `swap-1m-all` anonymous ones that have a place on a device.

use mm_arch::{VirtAddr, VirtRange};
use mm_fault::{FaultFlags, FaultOutcome, OrderMode, ThpMode, ThpPolicy, handle_fault};
use mm_folio::{Folio, FolioFlags, FolioRef, Get};
use mm_map::Advice;
use mm_reclaim::{FlushBatch, UnmapFlags, UnmapPolicy, Unmapped, try_to_unmap};
use mm_sim::{File, Host, Machine, MachineConfig, Object, Preset, Process};
use mm_vma::{Platform, SwapSpace, VmaFlags};
use mm_x86::X86_64;
use std::error::Error;
use std::process::ExitCode;

const BASE: u64 = 0x1000_0000_0000;
const PAGES: u64 = 32 << 8;

type Held<'m> = Vec<FolioRef<'m, Host<X86_64>, Get>>;

fn va(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * 4096)
}

/// Unmaps each of `folios`; how many.
#[inline(never)]
fn unmap_region<'m>(
    policy: UnmapPolicy,
    folios: &Held<'m>,
    flushes: &mut FlushBatch<'m, Host<X86_64>>,
) -> u64 {
    let flags = UnmapFlags::SYNC | UnmapFlags::PUT_OFF_FLUSH;
    let gone = |own: &&FolioRef<'_, _, Get>| {
        let locked = own.folio().lock();
        try_to_unmap(policy, &locked, flags, flushes) == Unmapped::All
    };
    folios.iter().filter(gone).count() as u64
}

fn folio_at(process: &Process<X86_64>, page: u64) -> Option<Folio<'_, Host<X86_64>>> {
    let guard = process.mm().tables().pin();
    let mm_pgtable::Step::Table(_, table) = guard.walk(va(page)) else { return None };
    let e = table.pte(table.index_of(va(page)));
    Some(process.mm().platform().memmap().folio(mm_arch::Entry::pfn(e, mm_arch::Level::Pte)))
}

/// How many folios were unmapped; `None` if there is no such cell.
fn once(cell: &str) -> Result<Option<u64>, Box<dyn Error>> {
    let parts: Vec<&str> = cell.split('-').collect();
    let [kind, size, policy] = parts[..] else { return Ok(None) };
    let sizes = [("4k", 0), ("64k", 4), ("1m", 8)];
    let policies = [("page", UnmapPolicy::Page), ("all", UnmapPolicy::All)];
    let (Some((_, order)), Some((_, unmap))) = (
        sizes.into_iter().find(|(name, _)| *name == size),
        policies.into_iter().find(|(name, _)| *name == policy),
    ) else {
        return Ok(None);
    };
    let mut policy = Preset::Linux618.policy();
    let thp = ThpPolicy::new(9).with_global(ThpMode::Madvise).with_order(9, OrderMode::Never);
    policy.fault.thp = if order > 0 { thp.with_order(order, OrderMode::Madvise) } else { thp };
    let faults = policy.fault;

    let config = MachineConfig { bytes: 96 << 20, poison: false, ..MachineConfig::default() };
    let machine = Machine::<X86_64>::new(config, policy)?;
    let host = machine.host();
    let process = machine.spawn()?;
    let range = VirtRange::units(va(0), PAGES, 12)?;
    let rights = VmaFlags::READ | VmaFlags::WRITE;
    let step = 1 << order;
    let access = match kind {
        "file" => {
            let file = File::new(host, PAGES).expect("memory");
            for page in (0..PAGES).step_by(step) {
                file.write(page, step as u64, &|_, _| 0)?;
            }
            process.mmap_object(range, rights | VmaFlags::SHARED, file, 0)?;
            FaultFlags::empty()
        }
        "swap" => {
            host.swap().add::<X86_64>(2 * PAGES)?;
            process.mmap_anon(range, rights)?;
            process.madvise(range, Advice::HugePage)?;
            FaultFlags::WRITE
        }
        _ => return Ok(None),
    };
    let mut folios = Held::new();
    for page in (0..PAGES).step_by(step) {
        let vmas = process.mm().read();
        if !matches!(handle_fault(&faults, &vmas, va(page), access), FaultOutcome::Done { .. }) {
            return Err("a fault failed".into());
        }
        let folio = folio_at(&process, page).ok_or("a page is not mapped")?;
        if kind == "swap" {
            host.swap().slots().add(&folio.lock())?;
        } else {
            folio.clear_flag(FolioFlags::DIRTY);
        }
        folios.push(folio.grab::<Get>(1)?);
    }
    let mut flushes = FlushBatch::new(host);
    let gone = unmap_region(unmap, &folios, &mut flushes);
    drop(flushes);
    Ok(Some(gone))
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let cell = std::env::args().nth(1).unwrap_or_else(|| "file-64k-all".to_owned());
    Ok(match once(&cell)? {
        Some(n) => {
            println!("{cell}: {n} folios");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("no cell {cell:?}: (file|swap)-(4k|64k|1m)-(page|all)");
            ExitCode::FAILURE
        }
    })
}
