//! A process with memory in folios of one size, made through its own system
//! calls and faults, and verified.

use clap::ValueEnum;
use mm_arch::{Rights, VirtAddr, VirtRange};
use mm_fault::{OrderMode, ThpMode, ThpPolicy};
use mm_map::Advice;
use mm_sim::{Events, File, Machine, MachineConfig, Policy, Process};
use mm_vma::{Platform, VmaFlags};
use mm_x86::X86_64;

/// Folio size, and how it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum FolioSize {
    /// Single pages.
    #[value(name = "4k")]
    Small,
    /// 4 pages.
    #[value(name = "16k")]
    K16,
    /// 16 pages.
    #[value(name = "64k")]
    K64,
    /// 256 pages.
    #[value(name = "1m")]
    M1,
    /// 512 pages, mapped page by page.
    #[value(name = "2m-pte")]
    M2Pte,
    /// 512 pages, mapped by one PMD leaf.
    #[value(name = "2m-pmd")]
    M2Pmd,
}

impl FolioSize {
    /// The sizes of the tables of GUP, in their order.
    pub const ALL: [FolioSize; 5] =
        [FolioSize::Small, FolioSize::K64, FolioSize::M1, FolioSize::M2Pte, FolioSize::M2Pmd];

    /// The name on command lines and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            FolioSize::Small => "4k",
            FolioSize::K16 => "16k",
            FolioSize::K64 => "64k",
            FolioSize::M1 => "1m",
            FolioSize::M2Pte => "2m-pte",
            FolioSize::M2Pmd => "2m-pmd",
        }
    }
    /// Pages of a folio, as an order.
    pub const fn order(self) -> u32 {
        match self {
            FolioSize::Small => 0,
            FolioSize::K16 => 2,
            FolioSize::K64 => 4,
            FolioSize::M1 => 8,
            FolioSize::M2Pte | FolioSize::M2Pmd => 9,
        }
    }
}

/// Where the region starts: aligned for every folio size.
const BASE: u64 = 0x1000_0000_0000;
const PAGE: u64 = 4096;

/// Memory of a machine with a region of `bytes`: its tables, the machine's own folios, and
/// room for alignment.
pub const fn memory_for(bytes: u64) -> u64 {
    (bytes + bytes / 16 + (64 << 20)).next_multiple_of(2 << 20)
}

/// Refuses what this computer has no memory for: the machine's memory is real, and
/// touching all of it would end in a kill.
///
/// # Errors
///
/// A line that says how much there is.
pub fn check_memory(bytes: u64) -> Result<(), String> {
    match std::fs::read_to_string("/proc/meminfo").ok().and_then(|m| available(&m)) {
        Some(available) if available < bytes => Err(format!(
            "this needs {} MiB of memory, and {} MiB are available",
            bytes >> 20,
            available >> 20
        )),
        _ => Ok(()),
    }
}

/// Bytes that can be used without swapping, from `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Splits every PMD leaf by taking a right from one of its pages and giving it back.
///
/// # Errors
///
/// A line that says what could not be done.
pub fn split_leaves<O: Events>(
    process: &Process<X86_64, O>,
    range: VirtRange,
) -> Result<(), String> {
    for leaf in (0..range.bytes()).step_by(512 * PAGE as usize) {
        let va = VirtAddr::new(range.start().get() + leaf + 500 * PAGE);
        let page = VirtRange::new(va, PAGE).map_err(|e| e.to_string())?;
        for rights in [Rights::READ, Rights::READ | Rights::WRITE] {
            process.mprotect(page, rights).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

/// A machine with one process and one region.
#[derive(Debug)]
pub struct Bed<O: Events> {
    // Dropped in this order: a process goes before its machine.
    /// The process.
    pub process: Process<X86_64, O>,
    /// The machine.
    pub machine: Machine<X86_64, O>,
    /// The region.
    pub range: VirtRange,
}

impl<O: Events> Bed<O> {
    /// Number of pages.
    pub fn nr_pages(&self) -> usize {
        (self.range.bytes() / PAGE) as usize
    }

    /// The address of a page of the region.
    pub fn page_va(&self, page: usize) -> VirtAddr {
        self.range.start().add_units(page as u64, 12)
    }

    /// Maps `bytes` bytes; with `size` also fills them with folios of that size
    /// and checks that it did.
    ///
    /// # Errors
    ///
    /// A line that says what could not be done.
    pub fn new(
        bytes: u64,
        size: Option<FolioSize>,
        advice: Option<Advice>,
        rights: VmaFlags,
        mut policy: Policy,
    ) -> Result<Self, String> {
        if let Some(size) = size {
            if !bytes.is_multiple_of(PAGE << size.order()) {
                return Err(format!("{bytes} bytes cannot be filled with {} folios", size.name()));
            }
            let thp = ThpPolicy::new(9).with_global(ThpMode::Madvise);
            let thp = thp.with_order(9, OrderMode::Never);
            policy.fault.thp = thp.with_order(size.order(), OrderMode::Madvise);
        }
        let memory = memory_for(bytes);
        check_memory(memory)?;
        let config = MachineConfig { bytes: memory, poison: false, ..MachineConfig::default() };
        let machine = Machine::<X86_64, O>::new(config, policy).map_err(|e| e.to_string())?;
        let process = machine.spawn().map_err(|e| e.to_string())?;
        let range = VirtRange::new(VirtAddr::new(BASE), bytes).map_err(|e| e.to_string())?;
        let bed = Bed { process, machine, range };
        bed.process.mmap_anon(range, rights).map_err(|e| e.to_string())?;
        let advice = advice.or(size.filter(|s| s.order() > 0).map(|_| Advice::HugePage));
        if let Some(advice) = advice {
            bed.process.madvise(range, advice).map_err(|e| e.to_string())?;
        }
        if let Some(size) = size {
            bed.touch()?;
            if size == FolioSize::M2Pte {
                split_leaves(&bed.process, range)?;
            }
            bed.verify(size)?;
        }
        Ok(bed)
    }

    /// Maps `bytes` bytes of a file of this computer, shared or privately, or of shared
    /// memory without one, readable and writable.
    ///
    /// # Errors
    ///
    /// A line that says what could not be done.
    pub fn of_object(
        bytes: u64,
        file: Option<&str>,
        shared: bool,
        advice: Option<Advice>,
        policy: Policy,
    ) -> Result<Self, String> {
        // Private copies come on top of what is cached.
        let memory = memory_for(bytes.saturating_mul(2));
        check_memory(memory)?;
        let config = MachineConfig { bytes: memory, poison: false, ..MachineConfig::default() };
        let machine = Machine::<X86_64, O>::new(config, policy).map_err(|e| e.to_string())?;
        let process = machine.spawn().map_err(|e| e.to_string())?;
        let range = VirtRange::new(VirtAddr::new(BASE), bytes).map_err(|e| e.to_string())?;
        let bed = Bed { process, machine, range };
        let mut flags = VmaFlags::READ | VmaFlags::WRITE;
        flags.set(VmaFlags::SHARED, shared);
        let mapped = match file {
            None => bed.process.mmap_shared(range, flags),
            Some(path) => {
                let open = std::fs::File::options().read(true).write(true).open(path);
                let open = open.map_err(|e| format!("{path}: {e}"))?;
                let object = File::of_host(bed.machine.host(), open);
                let object = object.map_err(|e| format!("{path}: {e}"))?;
                bed.process.mmap_object(range, flags, object, 0)
            }
        };
        mapped.map_err(|e| e.to_string())?;
        if let Some(advice) = advice {
            bed.process.madvise(range, advice).map_err(|e| e.to_string())?;
        }
        Ok(bed)
    }

    /// Stores one word to each page, in ascending order.
    ///
    /// # Errors
    ///
    /// A line that names the page.
    pub fn touch(&self) -> Result<(), String> {
        for i in 0..self.nr_pages() {
            self.process
                .store(self.page_va(i), 0)
                .map_err(|e| format!("touching page {i}: {e}"))?;
        }
        Ok(())
    }

    /// Compares the memory map's gauges with what was asked for.
    fn verify(&self, size: FolioSize) -> Result<(), String> {
        let stats = self.machine.host().memmap().stats();
        let (order, pages) = (size.order(), self.nr_pages() as u64);
        for (o, s) in stats.order.iter().enumerate().skip(1) {
            let expected = if o as u32 == order { pages >> order } else { 0 };
            let got = s.nr_anon.get();
            if got != expected {
                return Err(format!(
                    "{}: expected {expected} folios of order {o}, the machine has {got}",
                    size.name()
                ));
            }
        }
        let by_pmd = stats.nr_anon_thps.get();
        let expected = if size == FolioSize::M2Pmd { pages } else { 0 };
        if by_pmd != expected {
            return Err(format!(
                "{}: expected {expected} pages mapped by PMD leaves, the machine has {by_pmd}",
                size.name()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mm_sim::Preset;

    fn bed(size: FolioSize, advice: Option<Advice>) -> Result<Bed<()>, String> {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        Bed::new(4 << 20, Some(size), advice, rights, Preset::Linux618.policy())
    }

    #[test]
    fn memory_is_asked_for_before_it_is_used() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        assert_eq!(check_memory(memory_for(1 << 20)), Ok(()));
        assert!(check_memory(1 << 60).is_err_and(|e| e.contains("MiB are available")));
    }

    /// Rules: BENCH-13. Folio sizes are counted, not assumed.
    #[test]
    fn a_region_that_has_other_folios_is_refused() {
        for size in FolioSize::ALL {
            assert_eq!(bed(size, None).map(|b| b.nr_pages()), Ok(1024), "{size:?}");
        }
        let refused = bed(FolioSize::K64, Some(Advice::NoHugePage)).map(|b| b.nr_pages());
        assert_eq!(
            refused,
            Err("64k: expected 64 folios of order 4, the machine has 0".to_owned())
        );
    }
}
