//! A process with memory that reclaim unmaps, in folios of one size.

use super::Op;
use crate::bed::{FolioSize, check_memory, memory_for, split_leaves};
use mm_arch::{Arch, Entry, Level, Pfn, VirtAddr, VirtRange};
use mm_fault::{FaultFlags, FaultOutcome, OrderMode, ShmemMode, ThpMode, ThpPolicy, handle_fault};
use mm_folio::{Folio, FolioFlags, FolioRef, Get};
use mm_map::{Advice, UffdMode, WpChange};
use mm_pgtable::Step;
use mm_reclaim::{FlushBatch, UnmapFlags, UnmapPolicy, Unmapped, try_to_unmap_each};
use mm_sim::{
    Events, File, Host, Machine, MachineConfig, Object, Preset, Process, Shmem, ShmemKind,
};
use mm_vma::{Platform, SwapSpace, VmaFlags};
use mm_x86::X86_64;
use std::sync::Arc;
use std::time::Instant;

const BASE: u64 = 0x1000_0000_0000;
const RIGHTS: VmaFlags = VmaFlags::READ.union(VmaFlags::WRITE);
/// The folios that are reclaimed, of ten.
const OF_TEN: usize = 8;
/// The folios that a pass of reclaim has locked at the same time.
pub(super) const AT_ONCE: usize = 32;
const FLAGS: UnmapFlags =
    UnmapFlags::SPLIT_PMD.union(UnmapFlags::SYNC).union(UnmapFlags::PUT_OFF_FLUSH);

/// A process with a region in folios of one size.
pub(super) struct Region<O: Events> {
    // Dropped in this order: a process goes before its machine.
    process: Process<X86_64, O>,
    // Nothing but this keeps what the region shows.
    _object: Option<Arc<dyn Object<X86_64, O>>>,
    pub machine: Machine<X86_64, O>,
    range: VirtRange,
    op: Op,
    size: FolioSize,
}

impl<O: Events> Region<O> {
    pub fn new(op: Op, size: FolioSize, bytes: u64) -> Result<Self, String> {
        let order = size.order();
        let mut policy = Preset::Linux618.policy();
        let thp = ThpPolicy::new(9).with_global(ThpMode::Madvise).with_order(9, OrderMode::Never);
        policy.fault.thp = thp.with_order(order, OrderMode::Madvise);
        let memory = memory_for(bytes);
        check_memory(memory)?;
        // With one CPU there would be nobody to put flushes off for.
        let config =
            MachineConfig { bytes: memory, cpus: 2, poison: false, ..MachineConfig::default() };
        let machine = Machine::<X86_64, O>::new(config, policy).map_err(|e| e.to_string())?;
        let process = machine.spawn().map_err(|e| e.to_string())?;
        let range = VirtRange::new(VirtAddr::new(BASE), bytes).map_err(|e| e.to_string())?;
        let nr = range.nr(X86_64::PAGE_SHIFT);
        let host = machine.host();
        let mounted = ShmemKind::Mounted(ShmemMode::Always);
        let object: Option<Arc<dyn Object<X86_64, O>>> = match op {
            Op::File => Some(File::new(host, nr).map_err(|e| e.to_string())?),
            Op::UffdWp => Some(Shmem::new(host, mounted, nr).map_err(|e| e.to_string())?),
            Op::Lazyfree | Op::Swap => None,
        };
        if op == Op::Swap {
            host.swap().add::<X86_64>(nr).map_err(|e| e.to_string())?;
        }
        if let Some(object) = &object {
            let per = 1u64 << order;
            for first in (0..nr).step_by(per as usize) {
                object.write(first, per, &|_, _| 0).map_err(|e| e.to_string())?;
            }
            let shared = RIGHTS | VmaFlags::SHARED;
            process.mmap_object(range, shared, object.clone(), 0).map_err(|e| e.to_string())?;
            if size == FolioSize::M2Pte {
                process.madvise(range, Advice::NoHugePage).map_err(|e| e.to_string())?;
            }
        }
        if op == Op::UffdWp {
            process.uffd_register(range, UffdMode::WP).map_err(|e| e.to_string())?;
        }
        let region = Region { process, _object: object, machine, range, op, size };
        region.map()?;
        if op == Op::UffdWp {
            region.process.uffd_wp(range, WpChange::Protect).map_err(|e| e.to_string())?;
        }
        Ok(region)
    }
    fn va(&self, page: usize) -> VirtAddr {
        self.range.start().add_units(page as u64, X86_64::PAGE_SHIFT)
    }
    fn nr_pages(&self) -> usize {
        self.range.nr(X86_64::PAGE_SHIFT) as usize
    }
    fn nr_folios(&self) -> usize {
        self.nr_pages() >> self.size.order()
    }
    /// The frame that a page is mapped to, and the level of the entry that does.
    fn frame(&self, page: usize) -> Option<(Pfn, Level)> {
        let (va, guard) = (self.va(page), self.process.mm().tables().pin());
        match guard.walk(va) {
            Step::Table(_, table) => {
                let e = table.pte(table.index_of(va));
                e.is_leaf(Level::Pte).then(|| (e.pfn(Level::Pte), Level::Pte))
            }
            Step::Leaf(slot) => {
                let in_leaf = page as u64 & ((1 << X86_64::order(Level::Pmd)) - 1);
                Some((slot.entry().pfn(Level::Pmd).add(in_leaf), Level::Pmd))
            }
            _ => None,
        }
    }

    /// Maps what is not mapped, and makes all of it what it was in the beginning.
    pub fn map(&self) -> Result<(), String> {
        // Faults make no folio of this size where there is a table, and unmapping leaves
        // the table of a leaf that it split.
        let anew = match self.op {
            Op::Lazyfree => self.size.order() >= X86_64::order(Level::Pmd),
            Op::Swap => self.size == FolioSize::M2Pmd,
            Op::File | Op::UffdWp => false,
        };
        let first = self.process.mm().read().find(self.range.start()).is_none();
        if matches!(self.op, Op::Lazyfree | Op::Swap) && (anew || first) {
            if !first {
                self.process.munmap(self.range).map_err(|e| e.to_string())?;
            }
            self.process.mmap_anon(self.range, RIGHTS).map_err(|e| e.to_string())?;
            self.process.madvise(self.range, Advice::HugePage).map_err(|e| e.to_string())?;
        }
        self.fault_in()?;
        let new = self.op == Op::Lazyfree || self.op == Op::Swap && first;
        if new && self.size == FolioSize::M2Pte {
            split_leaves(&self.process, self.range)?;
        }
        if self.op == Op::Lazyfree {
            self.process.madvise_free(self.range).map_err(|e| e.to_string())?;
        }
        // What is in the cache is clean, as behind a write to a device.
        if self.op == Op::File {
            for n in 0..self.nr_folios() {
                self.folio(n)?.clear_flag(FolioFlags::DIRTY);
            }
        }
        self.check()
    }
    fn fault_in(&self) -> Result<(), String> {
        let policy = self.machine.host().policy().fault;
        let anonymous = matches!(self.op, Op::Lazyfree | Op::Swap);
        let flags = if anonymous { FaultFlags::WRITE } else { FaultFlags::empty() };
        let vmas = self.process.mm().read();
        for page in 0..self.nr_pages() {
            if self.frame(page).is_some() {
                continue;
            }
            match handle_fault(&policy, &vmas, self.va(page), flags) {
                FaultOutcome::Done { .. } => {}
                other => return Err(format!("the fault at {} ended in {other:?}", self.va(page))),
            }
        }
        Ok(())
    }
    fn folio(&self, n: usize) -> Result<Folio<'_, Host<X86_64, O>>, String> {
        let (pfn, _) = self.frame(n << self.size.order()).ok_or("a page is not mapped")?;
        Ok(self.machine.host().memmap().folio(pfn))
    }
    /// The region is what it should be: folios of one size, mapped by entries of one level.
    fn check(&self) -> Result<(), String> {
        let (order, map) = (self.size.order(), self.machine.host().memmap());
        let level = if self.size == FolioSize::M2Pmd { Level::Pmd } else { Level::Pte };
        for n in 0..self.nr_folios() {
            match self.frame(n << order) {
                Some((pfn, at)) if at == level && map.folio(pfn).order() == order => {}
                got => {
                    let folio = got.map(|(pfn, _)| map.folio(pfn));
                    return Err(format!(
                        "{} {}: folio {n} is mapped by {got:?} and is {folio:?}",
                        self.op.name(),
                        self.size.name()
                    ));
                }
            }
        }
        Ok(())
    }
    /// The folios that are reclaimed: eight of ten, all over the region.
    pub fn chosen(&self) -> impl Iterator<Item = usize> {
        (0..self.nr_folios()).filter(|n| n % 10 < OF_TEN)
    }

    /// Unmaps the chosen folios; microseconds.
    pub fn unmap(&self, policy: UnmapPolicy) -> Result<f64, String> {
        let host = self.machine.host();
        let mut folios: Vec<FolioRef<'_, _, Get>> = Vec::new();
        for n in self.chosen() {
            let own = self.folio(n)?.grab::<Get>(1).map_err(|e| e.to_string())?;
            if self.op == Op::Swap {
                host.swap().slots().add(&own.folio().lock()).map_err(|e| e.to_string())?;
            }
            folios.push(own);
        }
        let mut flushes = FlushBatch::new(host);
        let mut locked = Vec::with_capacity(AT_ONCE);
        let start = Instant::now();
        let mut kept = 0;
        for folios in folios.chunks(AT_ONCE) {
            locked.extend(folios.iter().map(|own| own.folio().lock()));
            try_to_unmap_each(
                policy,
                &locked.iter().collect::<Vec<_>>(),
                FLAGS,
                &mut flushes,
                |_, end| {
                    kept += usize::from(end != Unmapped::All);
                },
            );
            locked.clear();
        }
        flushes.flush();
        let us = start.elapsed().as_secs_f64() * 1e6;
        if kept > 0 {
            return Err(format!("{kept} folios stayed mapped"));
        }
        Ok(us)
    }
}
