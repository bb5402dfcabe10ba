//! Maps a large folio, pins it by both paths, forks, and gives it back.
//!
//! `cargo run -p mm-gup --example pin`

use mm_arch::{VirtAddr, VirtRange};
use mm_fault::{
    FaultFlags, FaultOutcome, FaultPolicy, OrderMode, ThpMode, ThpPolicy, handle_fault,
};
use mm_gup::{FaultError, FaultHandler, Gup, GupFault, GupFlags, Resolved, Runs, unpin_runs};
use mm_map::{MapPolicy, exit, fork, mmap_anon};
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_vma::{Mm, MmRead, Platform, VmaFlags};
use mm_x86::X86_64;

type Machine = ModelPlatform<X86_64>;

/// What a kernel implements: resolves faults on behalf of GUP.
struct Faults(FaultPolicy);

impl FaultHandler<Machine> for Faults {
    fn resolve<'m>(
        &self,
        vmas: MmRead<'m, Machine>,
        va: VirtAddr,
        fault: GupFault,
    ) -> Resolved<'m, Machine> {
        let mut flags = FaultFlags::FORCE;
        flags.set(FaultFlags::WRITE, fault.contains(GupFault::WRITE));
        flags.set(FaultFlags::UNSHARE, fault.contains(GupFault::UNSHARE));
        match handle_fault(&self.0, &vmas, va, flags) {
            FaultOutcome::Done { .. } => Resolved::Done(vmas),
            FaultOutcome::Oom => Resolved::Failed(vmas, FaultError::NoMemory),
            _ => Resolved::Failed(vmas, FaultError::Signal),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine: Machine = machine(ModelConfig::default())?;
    let mm = Mm::new(machine.clone())?;
    let at = VirtAddr::new(1 << 30);
    let range = VirtRange::units(at, 64, 12)?;
    mmap_anon(&mut mm.write(), range, VmaFlags::READ | VmaFlags::WRITE)?;

    // Nothing is mapped yet: the slow path faults in folios of 16 pages.
    let thp = ThpPolicy::new(9).with_global(ThpMode::Never).with_order(4, OrderMode::Always);
    let faults = Faults(FaultPolicy::new(thp));
    let gup = Gup::new(&mm, &faults);
    let mut first = Runs::new();
    let pinned = gup.pin_fast(at, 64, GupFlags::WRITE, &mut first)?;
    println!("slow path: {pinned} pages in {} runs", first.runs().len());

    // Now everything is there: the fast path alone, two atomics per run.
    let mut second = Runs::new();
    let pinned = gup.pin_fast_only(at, 64, GupFlags::WRITE, &mut second)?;
    println!("fast path: {pinned} pages in {} runs", second.runs().len());
    unpin_runs(machine.memmap(), second.take());

    // A pinned page is not shared with a child: it gets copies.
    let child = fork(&MapPolicy::default(), &mm)?;
    let mut childs = Runs::new();
    Gup::new(&child, &faults).get(at, 1, GupFlags::empty(), &mut childs)?;
    assert_ne!(childs.runs()[0].head, first.runs()[0].head);
    println!("the child has its own copy of page 0");
    mm_gup::put_runs(machine.memmap(), childs.take());

    unpin_runs(machine.memmap(), first.take());
    let stats = machine.memmap().stats();
    assert_eq!(stats.foll_pin_acquired.get(), stats.foll_pin_released.get());
    exit(&MapPolicy::default(), &child);
    exit(&MapPolicy::default(), &mm);
    println!("folios left: {}", machine.folios_in_use());
    Ok(())
}
