//! The end of an address space.

use crate::policy::{MapPolicy, by_policy};
use crate::tables::free_tables;
use crate::zap::{How, zap};
use mm_arch::{Private, VirtAddr, VirtRange};
use mm_pgtable::Gather;
use mm_rmap::{RmapPlatform, unlink_vma};
use mm_vma::Mm;

/// Unmaps everything: entries, reverse-map trees, VMAs, tables.
///
/// No CPU runs in `mm` any more and none will, so entries are taken without
/// exchange. Lockless walkers and walkers of the reverse-map trees may still
/// come: the former are waited for by the quiescence domain, the latter by the
/// locks of tables and trees.
pub fn exit<P: RmapPlatform>(policy: &MapPolicy, mm: &Mm<P>) {
    mm.set_ending();
    // Its name goes with the space itself, when nothing is mapped any more (race F-RACE-39).
    if mm_sync::mutant!("map.exit.id_first") {
        mm.platform().mm_ids().free(mm.id());
    }
    let mut vmas = mm.write();
    let mut gather = Gather::new(mm.tables());
    for vma in vmas.iter() {
        let (stay, range) = (vmas.stay(), vma.range());
        by_policy!(
            policy,
            zap::<Private, P>(mm, stay, range, range, How::remove(vma), &mut gather)
        );
    }
    // Tables are freed only when no walker can find its way to them.
    for vma in vmas.iter() {
        unlink_vma(mm, vma);
    }
    if let Ok(all) = VirtRange::new(VirtAddr::new(0), u64::MAX) {
        vmas.change().remove(all, |_| ());
        free_tables(&mut vmas, all, &mut gather);
    }
    gather.finish();
    drop(vmas);
    mm.platform().anon_trees().forget_merged(mm.id());
}
