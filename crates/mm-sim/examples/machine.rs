//! A machine, two processes, and what copy-on-write costs them.
//!
//! `cargo run --example machine`

use mm_arch::{VirtAddr, VirtRange};
use mm_fault::{OrderMode, ThpMode};
use mm_sim::{Machine, MachineConfig, Preset, audit, leaks};
use mm_vma::VmaFlags;
use mm_x86::X86_64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 64 KiB folios for everybody, as a kernel with that policy would.
    let mut policy = Preset::Best.policy();
    policy.fault.thp =
        policy.fault.thp.with_global(ThpMode::Never).with_order(4, OrderMode::Always);
    let config = MachineConfig { bytes: 64 << 20, ..MachineConfig::default() };
    let machine = Machine::<X86_64>::new(config, policy)?;

    let parent = machine.spawn()?;
    let start = VirtAddr::new(0x1000_0000_0000);
    let page = |i: u64| VirtAddr::new(start.get() + i * 4096);
    let range = VirtRange::units(start, 64, 12)?;
    parent.mmap_anon(range, VmaFlags::READ | VmaFlags::WRITE)?;

    for i in 0..64 {
        parent.store(page(i), i)?;
    }
    println!("64 pages filled by {} faults", parent.take_faults().cpu.len());

    let child = parent.fork()?;
    for i in 0..16 {
        child.store(page(i), 1000 + i)?;
    }
    println!("the child copied {} pages", child.take_faults().cpu.len());
    assert_eq!((parent.load(page(3))?, child.load(page(3))?), (3, 1003));

    let flushes = machine.host().cpus().flushes();
    println!("flushes of {} ranges, {} bytes", flushes.ranges.get(), flushes.bytes.get());

    // Nothing is in flight: everything can be recounted.
    machine.settle();
    let found = audit(&machine, [&parent, &child], []);
    assert!(found.is_empty(), "{found:?}");
    child.exit();
    parent.exit();
    machine.settle();
    assert!(leaks(&machine).is_empty());
    println!("everything came back");
    Ok(())
}
