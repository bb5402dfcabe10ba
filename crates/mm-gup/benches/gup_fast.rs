//! GUP-fast on bare page tables and a memory map, against the reference loops.
//!
//! `cargo bench -p mm-gup`: prints, per folio size, microseconds for 65,536
//! pages (median and spread of interleaved rounds) and ratios to the reference.
//! `-- --once CELL` runs one cell once, for instruction counts:
//! `get-4k-page`, `pin-64k-run`, …

use mm_arch::{Arch, Entry, Level, Pfn, Protection, SpaceId, VirtAddr, WriteKind};
use mm_folio::{AllocError, FolioSource, FolioSpace, Get, MemMap, Pin, RefKind};
use mm_gup::{FastPolicy, GupFlags, Pages, fast::Walk, put_pages, unpin_pages};
use mm_pgtable::slab::{SlabSpace, slab_space};
use mm_pgtable::{PageTables, TableSpace, TablesStay};
use mm_sync::SeqCount;
use mm_sync::stat::Counter;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Instant;

#[path = "../../mmlab/src/repro/reference.rs"]
mod reference;
use reference::{Loop, Reference};

const NR: usize = 65_536;
type A = mm_x86::X86_64;

struct Bump(Counter);
impl FolioSource for Bump {
    fn alloc(&self, order: u32) -> Result<Pfn, AllocError> {
        let at = self.0.get();
        self.0.add(1 << order);
        Ok(Pfn::new(0x1000 + at))
    }
    fn free(&self, _: Pfn, _: u32) {}
}

#[derive(Clone)]
struct Space(SlabSpace<A>);
impl TableSpace for Space {
    type Arch = A;
    type PtLock = <SlabSpace<A> as TableSpace>::PtLock;
    type Epochs = <SlabSpace<A> as TableSpace>::Epochs;
    type Tables = <SlabSpace<A> as TableSpace>::Tables;
    type Tlb = <SlabSpace<A> as TableSpace>::Tlb;
    fn tables(&self) -> &Self::Tables {
        self.0.tables()
    }
    fn epochs(&self) -> &Self::Epochs {
        self.0.epochs()
    }
    fn tlb(&self) -> &Self::Tlb {
        self.0.tlb()
    }
}
impl FolioSpace for Space {
    type Source = Bump;
    type FolioLock = mm_sync::Spin;
}

struct Bed {
    tables: PageTables<Space>,
    map: MemMap<Space>,
    seq: SeqCount,
}

const BASE: u64 = 1 << 30;

fn bed(order: u32) -> Bed {
    let map = MemMap::new(Pfn::new(0x1000), NR as u64, Bump(Counter::new())).expect("memory map");
    let tables = PageTables::new(Space(slab_space(140)), SpaceId(1)).expect("root");
    let mm = mm_folio::MmIds::<mm_sync::Spin>::new().alloc().expect("id");
    // SAFETY: nothing else runs.
    let stay = unsafe { TablesStay::new() };
    let prot = A::prot(Protection::private_read_write());
    for folio in 0..NR >> order {
        let refs = map.alloc(order).expect("folio");
        let at = VirtAddr::new(BASE).add_units((folio as u64) << order, 12);
        let n = NonZeroU32::new(1 << order).expect("not zero");
        let mut refs = refs;
        if order > 0 {
            refs.grow((1 << order) - 1).expect("fits");
        }
        let f = refs.hand_over();
        f.set_flag(mm_folio::FolioFlags::REFERENCED);
        f.set_anon(mm_folio::AnonId(0), folio as u64);
        f.add_file_ptes(0, n, mm);
        let e = <A as Arch>::Entry::leaf(f.head(), prot, Level::Pte)
            .mkyoung()
            .mkdirty()
            .mkwrite(WriteKind::Normal);
        let mut t = tables.ensure_table(stay, at).expect("table").table().expect("no leaf");
        let i = t.index_of(at);
        t.fill(i, 1 << order, e);
    }
    Bed { tables, map, seq: SeqCount::new() }
}

impl Bed {
    #[inline(never)]
    fn take<K: RefKind>(&self, policy: FastPolicy, out: &mut [Pfn]) -> usize {
        let walk = Walk {
            tables: &self.tables,
            map: &self.map,
            write_protect_seq: &self.seq,
            observer: &(),
        };
        let mut pages = Pages::new(out);
        walk.take::<K>(policy, VirtAddr::new(BASE), NR, GupFlags::WRITE, &mut pages)
    }
    fn back<K: RefKind>(&self, out: &[Pfn]) {
        if K::PINS { unpin_pages(&self.map, out) } else { put_pages(&self.map, out) }
    }
}

fn median(mut v: Vec<f64>) -> (f64, f64, f64) {
    v.sort_by(f64::total_cmp);
    (v[v.len() / 2], v[v.len() / 10], v[v.len() * 9 / 10])
}

fn cell<K: RefKind>(name: &str, order: u32) {
    let bed = bed(order);
    let reference = Reference::new(NR, 1 << order);
    let (mut out, mut raw) = (vec![Pfn::new(0); NR], vec![0u64; NR]);
    let mut t: [Vec<f64>; 4] = Default::default();
    for _ in 0..31 {
        for (k, policy) in [FastPolicy::Page, FastPolicy::Run].into_iter().enumerate() {
            let s = Instant::now();
            let got = bed.take::<K>(policy, black_box(&mut out));
            t[k].push(s.elapsed().as_secs_f64() * 1e6);
            assert_eq!(got, NR);
            bed.back::<K>(&out);
        }
        for (k, which) in [Loop::PerPage, Loop::Run].into_iter().enumerate() {
            if which == Loop::Run && order < 3 {
                continue;
            }
            let s = Instant::now();
            let got = reference.take(which, K::PINS, black_box(&mut raw));
            t[2 + k].push(s.elapsed().as_secs_f64() * 1e6);
            assert_eq!(got, NR);
            reference.give_back();
        }
    }
    let [page, run, ref_page, ref_run] =
        t.map(|v| if v.is_empty() { (0.0, 0.0, 0.0) } else { median(v) });
    println!(
        "{name:<6} {} page {:7.1} us ({:.2} x of {:6.1})   run {:6.1} us ({:.2} x of {:5.1})   page/run {:5.1}",
        if K::PINS { "pin" } else { "get" },
        page.0,
        page.0 / ref_page.0,
        ref_page.0,
        run.0,
        run.0 / if order < 3 { ref_page.0 } else { ref_run.0 },
        if order < 3 { ref_page.0 } else { ref_run.0 },
        page.0 / run.0,
    );
}

const SIZES: [(&str, u32); 4] = [("4k", 0), ("64k", 4), ("1m", 8), ("2m-pte", 9)];

fn once(cell: &str) -> Option<()> {
    let mut words = cell.split('-');
    let (op, size, policy) = (words.next()?, words.next()?, words.next_back()?);
    let order = SIZES.iter().find(|s| s.0.starts_with(size))?.1;
    let policy = match policy {
        "page" => FastPolicy::Page,
        "run" => FastPolicy::Run,
        _ => return None,
    };
    let bed = bed(order);
    let mut out = vec![Pfn::new(0); NR];
    let got = match op {
        "get" => bed.take::<Get>(policy, &mut out),
        "pin" => bed.take::<Pin>(policy, &mut out),
        _ => return None,
    };
    println!("{got} pages");
    Some(())
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(i) = args.iter().position(|a| a == "--once") {
        let cell = args.get(i + 1).map_or("", String::as_str);
        if once(cell).is_none() {
            eprintln!("no cell `{cell}`: OP-SIZE-POLICY, as in pin-64k-run");
            std::process::exit(2);
        }
        return;
    }
    for (name, order) in SIZES {
        cell::<Get>(name, order);
        cell::<Pin>(name, order);
    }
}
