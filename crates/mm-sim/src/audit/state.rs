//! The audits of page tables, records and caches.

use super::AuditViolation;
use super::dirt::{CleanLeaf, Dirt};
use crate::events::Events;
use crate::scan::{E, entries, page_of, user_space};
use crate::{Host, Machine, Pinned, Process};
use mm_arch::explain::Facts;
use mm_arch::{
    AccessKind, Arch, Entry, Level, Markers, NonPresent, Pfn, SpaceId, SwapSlot, VirtAddr,
    VirtRange,
};
use mm_folio::audit::{Access, AuditLog, Mapping, Sharing};
use mm_folio::{FileId, FolioFlags, MmId};
use mm_pgtable::TableSpace;
use mm_reclaim::{LruList, ReclaimPlatform};
use mm_rmap::RmapPlatform;
use mm_vma::{BackingKind, MmRead, Platform, RssKind, SlotState, SwapSpace, Vma, VmaFlags};
use std::collections::{BTreeMap, BTreeSet};

/// What the page tables of all processes say.
struct Seen<A: Arch> {
    log: AuditLog,
    /// Present leaves, by address space and first address.
    leaves: BTreeMap<(SpaceId, VirtAddr), (Level, E<A>)>,
    dirt: Dirt,
    /// Pages of leaves; of a PMD leaf the first one.
    mapped: BTreeSet<Pfn>,
    /// VMAs that show an object, as the file trees should list them.
    shown: Vec<(FileId, MmId, VirtRange, u64)>,
    /// Entries by the swap slot that they count on.
    slots: BTreeMap<SwapSlot, u32>,
    /// Folios that locked mappings show.
    locked: BTreeSet<Pfn>,
    tables: usize,
    found: Vec<AuditViolation>,
}

/// Audits a machine at rest: nothing runs, [`Machine::settle`] was called.
/// `processes` are all processes that live, `pinned` all pins and references
/// that anybody holds.
pub fn audit<'a, A: Arch, O: Events>(
    machine: &Machine<A, O>,
    processes: impl IntoIterator<Item = &'a Process<A, O>>,
    pinned: impl IntoIterator<Item = &'a Pinned<A, O>>,
) -> Vec<AuditViolation> {
    let host = machine.host();
    let mut seen = Seen {
        log: AuditLog::new(),
        leaves: BTreeMap::new(),
        dirt: Dirt::default(),
        mapped: BTreeSet::new(),
        shown: Vec::new(),
        slots: BTreeMap::new(),
        locked: BTreeSet::new(),
        tables: 0,
        found: host.cpus().audit().into_iter().map(AuditViolation::from).collect(),
    };
    for process in processes {
        seen.space(&process.mm().read());
    }
    seen.caches(host);
    seen.objects(host);
    seen.swap(host);
    seen.found.extend(seen.dirt.lost(host));
    for folio in host.memmap().alive().filter(|f| f.has(FolioFlags::MLOCKED)) {
        if !seen.locked.contains(&folio.head()) {
            seen.found.push(AuditViolation::LockedForNobody { head: folio.head() });
        }
    }
    seen.lists(host);
    if seen.tables != host.tables().in_use() {
        let got = host.tables().in_use();
        seen.found.push(AuditViolation::Tables { expected: seen.tables, got });
    }
    for held in pinned {
        for run in held.runs() {
            let pfn = run.head.add(u64::from(run.first));
            if held.is_pin() {
                seen.log.pin(pfn, run.nr);
            } else {
                seen.log.hold(pfn, run.nr, "a reference");
            }
        }
    }
    for kept in [Some(host.zero_page()), host.huge_zero()].into_iter().flatten() {
        seen.log.hold(kept, 1, "the kernel");
    }
    seen.trees(host);
    seen.found.extend(seen.log.finish(host.memmap()).into_iter().map(AuditViolation::from));
    seen.found
}

impl<A: Arch> Seen<A> {
    /// Every folio that says so is on a list of reclaim, and nothing else is. Which of the
    /// lists of what may go, a scan sees to; those that must stay no scan looks at.
    fn lists<O: Events>(&mut self, host: &Host<A, O>) {
        let mut expected: BTreeMap<Pfn, bool> = host
            .memmap()
            .alive()
            .filter(|f| f.has(FolioFlags::LRU))
            .map(|f| (f.head(), LruList::of(f.flags()) == LruList::Unevictable))
            .collect();
        for list in LruList::ALL {
            for head in host.lru().heads(list) {
                if expected.remove(&head) != Some(list == LruList::Unevictable) {
                    self.found.push(AuditViolation::Unlisted { head });
                }
            }
        }
        let left = expected.into_keys().map(|head| AuditViolation::Unlisted { head });
        self.found.extend(left);
    }
}

/// Whether everything came back, once all processes have exited and all pins are
/// gone.
pub fn leaks<A: Arch, O: Events>(machine: &Machine<A, O>) -> Vec<AuditViolation> {
    let mut found = audit(machine, [], []);
    let host = machine.host();
    let kept = 1 + host.huge_zero().map_or(0, |_| 1 << A::order(Level::Pmd));
    let expected = host.frames().ram().nr_frames() as u64 - kept;
    let got = host.frames().nr_free();
    if got != expected {
        found.push(AuditViolation::FramesLeaked { expected, got });
    }
    let stats = host.memmap().stats();
    let (acquired, released) = (stats.foll_pin_acquired.get(), stats.foll_pin_released.get());
    if acquired != released {
        found.push(AuditViolation::PinsLeaked { acquired, released });
    }
    found
}

impl<A: Arch> Seen<A> {
    /// Takes stock of one address space.
    fn space<O: Events>(&mut self, vmas: &MmRead<'_, Host<A, O>>) {
        let mm = vmas.mm();
        let (host, space) = (mm.platform(), mm.tables().id());
        let mut rss = [0u64; 4];
        for vma in vmas.iter() {
            if let Some(object) = vma.backing() {
                self.shown.push((object.id(), mm.id(), vma.range(), vma.pgoff()));
            }
            let trees = (host.anon_trees(), host.file_trees());
            let known = [trees.0.known_flags(mm, vma), trees.1.known_flags(mm, vma)];
            if known.into_iter().flatten().any(|flags| flags != vma.flags()) {
                self.found.push(AuditViolation::TreeFlags { space, va: vma.start() });
            }
        }
        if let Some(all) = user_space::<A>() {
            entries(vmas, all, |va, level, e| {
                let pages = 1u64 << A::order(level);
                if let Some(NonPresent::Swap(slot)) = e.nonpresent(level) {
                    rss[RssKind::Swap as usize] += pages;
                    *self.slots.entry(slot).or_default() += 1;
                    let count = host.swap().slots().count(slot);
                    if e.swap_bits().exclusive && count != 1 {
                        self.found.push(AuditViolation::ExclusiveSharedSlot { space, va, count });
                    }
                }
                let vma = vmas.find(va);
                let Some(vma) = vma else {
                    self.found.push(AuditViolation::NoMapping { space, va, level });
                    return;
                };
                let marked = match e.nonpresent(level) {
                    Some(NonPresent::Marker(m)) => m.contains(Markers::UFFD_WP),
                    Some(_) => e.swap_bits().uffd_wp,
                    None => e.is_leaf(level) && e.is_uffd_wp(),
                };
                let holds = vma.flags().contains(VmaFlags::UFFD_WP)
                    && !(e.is_leaf(level) && e.is_writable(level));
                if marked && !holds {
                    self.found.push(AuditViolation::StaleProtection { space, va, level });
                }
                if e.is_leaf(level) {
                    self.rights(space, vma, va, level, e);
                    self.place(host, space, vma, va, level, e);
                    self.leaves.insert((space, va), (level, e));
                    if let Some(kind) = self.leaf(host, vma, mm.id(), level, e) {
                        rss[kind as usize] += pages;
                        let first = page_of::<A>(va, level, e);
                        if e.is_dirty() {
                            self.dirt.dirty.extend((0..pages).map(|i| first.add(i)));
                        } else if kind == RssKind::Anon {
                            let droppable = vma.flags().contains(VmaFlags::DROPPABLE);
                            let leaf = CleanLeaf { space, va, first, pages, droppable };
                            self.dirt.clean.push(leaf);
                        }
                    }
                }
            });
        }
        for kind in [RssKind::Anon, RssKind::File, RssKind::Shmem, RssKind::Swap] {
            let (expected, got) = (rss[kind as usize], mm.counters().get(kind));
            if expected != got {
                self.found.push(AuditViolation::Rss { space, kind, expected, got });
            }
        }
        self.tables += mm.tables().count_tables(vmas.stay());
        mm.tables().audit_counts(vmas.stay(), &mut |frame, expected, got| {
            self.found.push(AuditViolation::TableEntries { frame, expected, got });
        });
    }

    fn rights(&mut self, space: SpaceId, vma: &Vma, va: VirtAddr, level: Level, e: E<A>) {
        let allows = vma.flags();
        // Some formats cannot refuse fetches of what is readable: theirs is the template's word.
        let fetches = || {
            let template = E::<A>::leaf(e.pfn(level), A::prot(vma.protection()), level);
            allows.contains(VmaFlags::EXEC) || template.permits(AccessKind::Exec, level)
        };
        // A forced write leaves an entry read-only where the mapping is.
        let stack = Facts::of(e, level).contains(Facts::SHADOW_STACK);
        let is_stack = allows.contains(VmaFlags::SHADOW_STACK);
        let stores = e.permits(AccessKind::Write, level);
        // Shadow stacks and other mappings keep their kinds of stores apart (rule
        // SHSTK-01).
        let wider = stores && (is_stack || !allows.contains(VmaFlags::WRITE))
            || stack && !is_stack
            || e.permits(AccessKind::Read, level) && !vma.is_accessible()
            || e.permits(AccessKind::Exec, level) && !fetches()
            || level == Level::Pmd
                && (va.bytes_from(vma.start()) + (1 << A::shift(level)) > vma.range().bytes());
        if wider {
            self.found.push(AuditViolation::WiderThanMapping { space, va, level });
        }
    }

    /// Takes note of a present leaf; what it counts as.
    fn leaf<O: Events>(
        &mut self,
        host: &Host<A, O>,
        vma: &Vma,
        mm: MmId,
        level: Level,
        e: E<A>,
    ) -> Option<RssKind> {
        let (map, pfn) = (host.memmap(), e.pfn(level));
        if e.is_special() || !map.contains(pfn) || map.is_zero_page(pfn) || map.is_huge_zero(pfn) {
            return None;
        }
        let shared = vma.flags().contains(VmaFlags::SHARED);
        self.log.mapping(Mapping {
            pfn,
            nr: 1,
            level,
            mm,
            access: if e.is_writable(level) { Access::Writable } else { Access::ReadOnly },
            sharing: if shared { Sharing::Shared } else { Sharing::Private },
        });
        self.mapped.insert(pfn);
        if vma.flags().contains(VmaFlags::LOCKED) {
            self.locked.insert(map.folio(pfn).head());
        }
        Some(RssKind::of(map.folio(pfn)))
    }

    /// A leaf of a mapping of an object: the page that belongs there, before the
    /// end, and writable only where nobody waits for a store; or a private copy.
    fn place<O: Events>(
        &mut self,
        host: &Host<A, O>,
        space: SpaceId,
        vma: &Vma,
        va: VirtAddr,
        level: Level,
        e: E<A>,
    ) {
        let (map, pfn) = (host.memmap(), e.pfn(level));
        let Some(object) = vma.backing() else { return };
        if e.is_special() || !map.contains(pfn) {
            return;
        }
        let folio = map.folio(pfn);
        let shared = vma.flags().contains(VmaFlags::SHARED);
        if folio.is_anon() && !shared {
            return;
        }
        let index = vma.linear_index(va);
        let first = index.checked_sub(folio.index_of(pfn).into());
        if folio.file() != first.map(|first| (object.id(), first)) {
            self.found.push(AuditViolation::WrongPage { space, va, level, index });
        }
        let end = index + (1 << A::order(level));
        if end > object.nr_pages() && object.kind() == BackingKind::File {
            self.found.push(AuditViolation::BehindEnd { space, va, level });
        }
        if shared
            && object.notifies_writes()
            && e.is_writable(level)
            && !folio.has(FolioFlags::DIRTY)
        {
            self.found.push(AuditViolation::Unannounced { space, va });
        }
    }

    /// Cached pages are held by their cache; the trees list the VMAs that there are.
    fn objects<O: Events>(&mut self, host: &Host<A, O>) {
        for object in host.objects().alive() {
            object.each_swap_slot(&mut |slot| *self.slots.entry(slot).or_default() += 1);
            for (_, head) in object.cache().folios() {
                let nr = host.memmap().folio(head).nr_pages();
                self.log.hold(head, nr, "a page cache");
                self.mapped.insert(head);
                self.dirt.of_objects.insert(head);
            }
        }
        let mut linked = Vec::new();
        host.file_trees().members(&mut |id, mm, range, pgoff| linked.push((id, mm, range, pgoff)));
        let mut wrong = |what, from: &[_], other: &[_]| {
            let missing = from.iter().filter(|v| {
                let times = |list: &[(FileId, MmId, VirtRange, u64)]| {
                    list.iter().filter(|o| o == v).count()
                };
                times(from) != times(other)
            });
            for &(id, mm, range, _) in missing {
                self.found.push(AuditViolation::FileTree { what, id, mm, range });
            }
        };
        wrong("a VMA is not linked once", &self.shown, &linked);
        wrong("a link has no VMA", &linked, &self.shown);
    }

    /// Slots have the entries that they say, and the cache holds its folios.
    fn swap<O: Events>(&mut self, host: &Host<A, O>) {
        let mut expected = std::mem::take(&mut self.slots);
        for SlotState { slot, count, cached, reading, .. } in host.swap().slots().in_use() {
            let entries = expected.remove(&slot).unwrap_or(0);
            if entries != count || reading {
                let (expected, got) = (entries, count);
                self.found.push(AuditViolation::SlotCount { slot, expected, got });
            }
            if let Some(page) = cached {
                self.log.hold(page, 1, "the swap cache");
            }
        }
        let lost = expected.into_iter();
        self.found.extend(lost.map(|(slot, expected)| AuditViolation::SlotCount {
            slot,
            expected,
            got: 0,
        }));
    }

    /// The leaf that covers `va`.
    fn leaf_at(&self, space: SpaceId, va: VirtAddr) -> Option<(Level, E<A>)> {
        [Level::Pte, Level::Pmd].into_iter().find_map(|level| {
            let leaf = self.leaves.get(&(space, va.align_down(A::shift(level))))?;
            (leaf.0 == level).then_some(*leaf)
        })
    }

    /// No translation may go elsewhere than the tables or allow more than they do.
    fn caches<O: Events>(&mut self, host: &Host<A, O>) {
        let mut stale = Vec::new();
        host.cpus().each_cached(|cpu, space, va, _, head, stores| {
            let same = self.leaf_at(space, va).is_some_and(|(level, e)| {
                crate::scan::page_of::<A>(va, level, e) == head
                    && stores.is_none_or(|kind| kind.goes_through(e, level))
            });
            if !same {
                stale.push(AuditViolation::StaleRights { cpu, space, va });
            }
        });
        self.found.extend(stale);
    }

    /// The trees are sound, and lead to every entry that maps a page.
    fn trees<O: Events>(&mut self, host: &Host<A, O>) {
        let found = &mut self.found;
        host.anon_trees().audit(&mut |fault| found.push(AuditViolation::Tree(fault)));
        let heads: BTreeSet<_> =
            self.mapped.iter().map(|pfn| host.memmap().folio(*pfn).head()).collect();
        for head in heads {
            let folio = host.memmap().folio(head);
            let audited = if folio.is_anon() {
                host.anon_trees().audit_folio(folio)
            } else {
                host.file_trees().audit_folio(folio)
            };
            if let Err(fault) = audited {
                self.found.push(AuditViolation::ReverseMap { head, fault });
            }
        }
    }
}
