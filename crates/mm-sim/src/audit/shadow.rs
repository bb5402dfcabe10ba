//! A second, naive memory: what every stored word must read as.

use super::AuditViolation;
use crate::events::Events;
use crate::scan::{entry, host, page_of};
use crate::{Host, Machine, Process};
use mm_arch::{Arch, Entry, Level, VirtAddr, VirtRange};
use mm_folio::{FileId, FrameBytes};
use mm_vma::{MmRead, Platform, VmaFlags};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// `None`: not known any more.
type Word = Rc<Cell<Option<u64>>>;

/// The words that processes stored, by process and address. It knows nothing of
/// folios: a fork copies every word, and that is all there is to it.
///
/// A word is shared with a pin of its page: what the pin writes, the process reads.
/// What is stored to a shared mapping of a file or of shared memory is a word of
/// that object.
#[derive(Debug, Default)]
pub struct Shadow {
    processes: BTreeMap<u32, BTreeMap<VirtAddr, Word>>,
    objects: BTreeMap<(FileId, u64), Word>,
}

/// Where a word that was stored is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spot {
    /// In memory of its own of a process.
    Private(u32, VirtAddr),
    /// In an object, at this byte.
    Object(FileId, u64),
}

impl Spot {
    /// The spot of the word at `va` of `process`, by the mapping it is in.
    pub fn of<A: Arch, O: Events>(process: u32, of: &Process<A, O>, va: VirtAddr) -> Self {
        let vmas = of.mm().read();
        let shared = vmas.find(va).filter(|v| v.flags().contains(VmaFlags::SHARED));
        match shared.and_then(|v| Some((v.backing()?.id(), v.linear_index(va)))) {
            Some((id, index)) => {
                let in_page = va.get() & ((1 << A::PAGE_SHIFT) - 1);
                Spot::Object(id, (index << A::PAGE_SHIFT) + in_page)
            }
            None => Spot::Private(process, va),
        }
    }
}

/// The words of the pages of a pin.
#[derive(Debug, Default)]
pub struct ShadowPin(Vec<Option<Word>>);

impl ShadowPin {
    /// The word of page `index`.
    pub fn get(&self, index: usize) -> Option<u64> {
        self.0.get(index)?.as_ref()?.get()
    }
    /// The holder of the pin writes.
    pub fn set(&self, index: usize, value: u64) {
        if let Some(Some(word)) = self.0.get(index) {
            word.set(Some(value));
        }
    }
}

impl Shadow {
    fn word(&mut self, spot: Spot) -> &mut Word {
        match spot {
            Spot::Private(process, va) => {
                self.processes.entry(process).or_default().entry(va).or_default()
            }
            Spot::Object(id, at) => self.objects.entry((id, at)).or_default(),
        }
    }
    fn knows(&self, spot: Spot) -> bool {
        let word = match spot {
            Spot::Private(process, va) => self.processes.get(&process).and_then(|p| p.get(&va)),
            Spot::Object(id, at) => self.objects.get(&(id, at)),
        };
        word.is_some_and(|word| word.get().is_some())
    }
    /// `value` was stored at `spot`.
    pub fn store_at(&mut self, spot: Spot, value: u64) {
        self.word(spot).set(Some(value));
    }
    /// Process `process` stored `value` at `va`, in memory of its own.
    pub fn store(&mut self, process: u32, va: VirtAddr, value: u64) {
        self.store_at(Spot::Private(process, va), value);
    }
    /// Bytes of an object are gone, or read as zero from now on. A pin may see what was
    /// there, or the zeros, which a folio that stays whole has there.
    pub fn forget_object(&mut self, id: FileId, bytes: std::ops::Range<u64>) {
        let gone = self.objects.extract_if(.., |(of, at), _| *of == id && bytes.contains(at));
        gone.for_each(|(_, word)| word.set(None));
    }
    /// What the word at `va` must read as.
    pub fn load(&self, process: u32, va: VirtAddr) -> u64 {
        self.processes.get(&process).and_then(|p| p.get(&va)).and_then(|w| w.get()).unwrap_or(0)
    }
    /// The memory of `range` is gone, or reads as zero from now on.
    pub fn forget(&mut self, process: u32, range: VirtRange) {
        if let Some(words) = self.processes.get_mut(&process) {
            words.retain(|va, _| !range.contains(*va));
        }
    }
    /// The memory of `range` was given up: it reads as before or as zero until it is stored to
    /// again. A pin keeps its page, and goes on seeing what the process sees.
    pub fn give_up(&mut self, process: u32, range: VirtRange) {
        let words = self.processes.get(&process).into_iter().flatten();
        words.filter(|(va, _)| range.contains(**va)).for_each(|(_, word)| word.set(None));
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
    /// A pin of the pages with the words at `spots`, which read as the values beside
    /// them. A `None` is a page that the process will not write to itself: the zero
    /// page or a page of a file, which a pin that only reads may hold.
    pub fn pin(&mut self, spots: impl Iterator<Item = Option<(Spot, u64)>>) -> ShadowPin {
        let word = |spot: Option<(Spot, u64)>| {
            let (spot, value) = spot?;
            if !self.knows(spot) {
                self.store_at(spot, value);
            }
            Some(self.word(spot).clone())
        };
        ShadowPin(spots.map(word).collect())
    }

    /// Compares what was stored to objects with what they have, cached or not.
    pub fn audit_objects<A: Arch, O: Events>(
        &self,
        machine: &Machine<A, O>,
    ) -> Vec<AuditViolation> {
        let words = self.objects.iter();
        words
            .filter_map(|(&(id, at), word)| {
                // An object that nobody has any more has no content.
                let object = machine.host().objects().find(id)?;
                let (index, offset) = (at >> A::PAGE_SHIFT, at & ((1 << A::PAGE_SHIFT) - 1));
                let (expected, got) = (word.get()?, object.peek(index, offset as usize));
                (got != expected).then_some(AuditViolation::ObjectContent { id, at, expected, got })
            })
            .collect()
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
                let (expected, got) = (word.get()?, peek(&vmas, va));
                (got != expected).then_some(AuditViolation::Content { process, va, expected, got })
            })
            .collect()
    }
}

/// The word at `va` as the tables map it, or where it was swapped to; zero where nothing is
/// mapped.
fn peek<A: Arch, O: Events>(vmas: &MmRead<'_, Host<A, O>>, va: VirtAddr) -> u64 {
    let offset = (va.get() & ((1 << A::PAGE_SHIFT) - 1)) as usize;
    match entry(vmas, va) {
        Some((level, e)) if e.is_leaf(level) => {
            host(vmas).bytes().load(page_of::<A>(va, level, e), offset)
        }
        Some((Level::Pte, e)) => {
            e.swap_slot().map_or(0, |slot| host(vmas).swap().peek(slot, offset))
        }
        _ => 0,
    }
}
