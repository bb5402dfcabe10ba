//! The queue of folios that may be worth splitting.
//!
//! A doubly linked list through the third tails, so that a folio leaves it in
//! constant time and without memory. Folios of order 0 and 1 have no third tail
//! and are never queued (rules FOLIO-22, FOLIO-51).

use crate::refs::{FolioRef, Get};
use crate::{Folio, FolioFlags, FolioSpace, MemMap};
use mm_sync::atomic::Ordering::Relaxed;
use mm_sync::{mutant, ord};

/// The end of the list; a link of zero means "not on it".
const END: u64 = u64::MAX;

/// The ends of the list; links are head index + 1.
#[derive(Debug)]
pub(crate) struct DeferredQueue {
    first: u64,
    last: u64,
    len: usize,
}

impl Default for DeferredQueue {
    fn default() -> Self {
        DeferredQueue { first: END, last: END, len: 0 }
    }
}

#[cfg(all(test, not(loom)))]
impl DeferredQueue {
    /// Makes the length wrong, for a test of the audit.
    pub fn plant_len(&mut self, extra: usize) {
        self.len += extra;
    }
}

/// Why a folio is queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueReason {
    /// Some of its pages were unmapped (rule FOLIO-22).
    PartiallyMapped,
    /// It is new, and may turn out to be mostly zeros (rule FOLIO-24).
    MaybeUnderused,
}

impl<F: FolioSpace> MemMap<F> {
    fn link(&self, link: u64, side: usize) -> &mm_sync::atomic::AtomicU64 {
        &self.record(link as usize - 1 + 3).words[side]
    }
    fn enqueue(&self, queue: &mut DeferredQueue, head: usize) {
        let me = head as u64 + 1;
        self.link(me, 0).store(END, Relaxed);
        self.link(me, 1).store(queue.last, Relaxed);
        match queue.last {
            END => queue.first = me,
            last => self.link(last, 0).store(me, Relaxed),
        }
        queue.last = me;
        queue.len += 1;
    }
    fn dequeue(&self, queue: &mut DeferredQueue, head: usize) {
        let me = head as u64 + 1;
        let prev = self.link(me, 1).swap(0, Relaxed);
        self.record(head).content.used();
        // The last access: who sees the folio off the queue may free it without
        // the lock. Release pairs with the Acquire of `is_queued`.
        let next = self.link(me, 0).swap(0, ord!("folio.deferred.unlink", Release));
        match prev {
            END => queue.first = next,
            prev => self.link(prev, 0).store(next, Relaxed),
        }
        match next {
            END => queue.last = prev,
            next => self.link(next, 1).store(prev, Relaxed),
        }
        queue.len -= 1;
    }

    /// The number of queued folios.
    pub fn deferred_len(&self) -> usize {
        self.deferred.lock().len
    }
    /// Takes the oldest queued folio that can still be referenced off the
    /// queue. A dying one is dropped from it (rule FOLIO-57). The caller locks
    /// and splits it, and queues it again if that failed and it is still
    /// partially mapped.
    pub fn deferred_pop(&self) -> Option<FolioRef<'_, F, Get>> {
        let mut queue = self.deferred.lock();
        while queue.first != END {
            let head = queue.first as usize - 1;
            let folio = self.folio_at(head);
            // While it is queued its last holder waits for our lock before it
            // touches the records, so no second look at the head is needed.
            let got = self.grab_queued(head);
            if !got && !mutant!("folio.deferred.late_forget") {
                folio.forget_partially_mapped();
            }
            self.dequeue(&mut queue, head);
            if got {
                return Some(FolioRef::from_counted(folio, 1));
            }
            if mutant!("folio.deferred.late_forget") {
                folio.forget_partially_mapped();
            }
        }
        None
    }
}

impl<F: FolioSpace> Folio<'_, F> {
    fn queueable(&self) -> bool {
        self.order() > 1
    }
    fn is_queued(&self) -> bool {
        self.tail(3).words[0].load(ord!("folio.deferred.queued", Acquire)) != 0
    }
    /// Whether the folio waits for a split.
    pub fn is_deferred(&self) -> bool {
        self.queueable() && self.is_queued()
    }
    /// Puts the folio on the deferred-split queue, once. Folios of order 0 and
    /// 1 and those in the swap cache are left alone.
    pub fn queue_deferred(&self, reason: QueueReason) {
        if !self.queueable() || self.has(FolioFlags::SWAPCACHE) {
            return;
        }
        let mut queue = self.map.deferred.lock();
        if reason == QueueReason::PartiallyMapped && self.set_flag(FolioFlags::PARTIALLY_MAPPED) {
            let stats = &self.map.stats.order[self.order() as usize];
            stats.split_deferred.add(1);
            stats.nr_anon_partially_mapped.add(1);
        }
        if !self.is_queued() {
            self.map.enqueue(&mut queue, self.head);
        }
    }
    /// Takes the folio off the queue, at a count of zero or frozen.
    pub(crate) fn unqueue_deferred(&self) {
        if !self.queueable() {
            return;
        }
        if self.is_queued() {
            let mut queue = self.map.deferred.lock();
            // A scan may have won in between.
            if self.is_queued() {
                self.map.dequeue(&mut queue, self.head);
            }
        }
        self.forget_partially_mapped();
    }
    fn forget_partially_mapped(&self) {
        if self.clear_flag(FolioFlags::PARTIALLY_MAPPED) {
            self.map.stats.order[self.order() as usize].nr_anon_partially_mapped.sub(1);
        }
    }
}
