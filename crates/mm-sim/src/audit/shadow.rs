//! A second, naive memory: what every stored word must read as.

use super::AuditViolation;
use crate::events::Events;
use crate::scan::{entry, host, page_of};
use crate::{Host, Process};
use mm_arch::{Arch, Entry, VirtAddr, VirtRange};
use mm_folio::FrameBytes;
use mm_vma::{MmRead, Platform};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

type Word = Rc<Cell<u64>>;

/// The words that processes stored, by process and address. It knows nothing of
/// folios: a fork copies every word, and that is all there is to it.
///
/// A word is shared only with a pin of its page: what the pin writes, the process
/// reads.
#[derive(Debug, Default)]
pub struct Shadow {
    processes: BTreeMap<u32, BTreeMap<VirtAddr, Word>>,
}

/// The words of the pages of a pin.
#[derive(Debug, Default)]
pub struct ShadowPin(Vec<Word>);

impl ShadowPin {
    /// The word of page `index`.
    pub fn get(&self, index: usize) -> Option<u64> {
        self.0.get(index).map(|w| w.get())
    }
    /// The holder of the pin writes.
    pub fn set(&self, index: usize, value: u64) {
        if let Some(word) = self.0.get(index) {
            word.set(value);
        }
    }
}

impl Shadow {
    /// Process `process` stored `value` at `va`.
    pub fn store(&mut self, process: u32, va: VirtAddr, value: u64) {
        self.processes.entry(process).or_default().entry(va).or_default().set(value);
    }
    /// What the word at `va` must read as.
    pub fn load(&self, process: u32, va: VirtAddr) -> u64 {
        self.processes.get(&process).and_then(|p| p.get(&va)).map_or(0, |w| w.get())
    }
    /// The memory of `range` is gone, or reads as zero from now on.
    pub fn forget(&mut self, process: u32, range: VirtRange) {
        if let Some(words) = self.processes.get_mut(&process) {
            words.retain(|va, _| !range.contains(*va));
        }
    }
    /// The memory of `range` is at `to` now.
    pub fn move_to(&mut self, process: u32, range: VirtRange, to: VirtAddr) {
        let Some(words) = self.processes.get_mut(&process) else { return };
        let moved: Vec<_> = words.extract_if(.., |va, _| range.contains(*va)).collect();
        for (va, word) in moved {
            words.insert(VirtAddr::new(to.get() + va.bytes_from(range.start())), word);
        }
    }
    /// `child` starts with what `parent` has, where `inherits` says so.
    pub fn fork(&mut self, parent: u32, child: u32, inherits: impl Fn(VirtAddr) -> bool) {
        let words = self.processes.get(&parent).into_iter().flatten();
        let copy = words
            .filter(|(va, _)| inherits(**va))
            .map(|(va, word)| (*va, Rc::new(Cell::new(word.get()))))
            .collect();
        self.processes.insert(child, copy);
    }
    /// The process is gone.
    pub fn exit(&mut self, process: u32) {
        self.processes.remove(&process);
    }
    /// A pin of the pages with the words at `vas`. A `None` is a page that the
    /// process will not write to itself: the zero page, which a pin that only
    /// reads may hold.
    pub fn pin(&mut self, process: u32, vas: impl Iterator<Item = Option<VirtAddr>>) -> ShadowPin {
        let words = self.processes.entry(process).or_default();
        let word = |va: Option<VirtAddr>| {
            va.map(|va| words.entry(va).or_default().clone()).unwrap_or_default()
        };
        ShadowPin(vas.map(word).collect())
    }

    /// Compares with the memory of `process`, without faulting anything in.
    pub fn audit<A: Arch, O: Events>(
        &self,
        process: u32,
        of: &Process<A, O>,
    ) -> Vec<AuditViolation> {
        let vmas = of.mm().read();
        let words = self.processes.get(&process).into_iter().flatten();
        words
            .filter_map(|(&va, word)| {
                let (expected, got) = (word.get(), peek(&vmas, va));
                (got != expected).then_some(AuditViolation::Content { process, va, expected, got })
            })
            .collect()
    }
}

/// The word at `va` as the tables map it; zero where nothing is mapped.
fn peek<A: Arch, O: Events>(vmas: &MmRead<'_, Host<A, O>>, va: VirtAddr) -> u64 {
    match entry(vmas, va) {
        Some((level, e)) if e.is_leaf(level) => {
            let offset = va.get() & ((1 << A::PAGE_SHIFT) - 1);
            host(vmas).bytes().load(page_of::<A>(va, level, e), offset as usize)
        }
        _ => 0,
    }
}
