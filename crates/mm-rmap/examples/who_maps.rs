//! Who maps this folio? A parent and two children, one of which has forked
//! again, and one page that only a grandchild knows.
//!
//! ```text
//! cargo run -p mm-rmap --example who_maps
//! ```

use core::ops::ControlFlow;
use mm_arch::model::ModelWord;
use mm_arch::{Arch, Entry, Level, VirtAddr, VirtRange};
use mm_folio::{Exclusivity, Folio};
use mm_rmap::model::{ModelConfig, ModelPlatform, machine};
use mm_rmap::{Hit, MappedWalk, RmapPlatform, Seek, Strict};
use mm_vma::{Mm, Platform, RssKind, Vma, VmaFlags};
use std::error::Error;
use std::sync::Arc;

type A = ModelWord<16>;
type P = ModelPlatform<A>;

/// What a fault does: a folio of four pages at `at`.
fn fault(mm: &Mm<P>, at: VirtAddr) -> Result<Folio<'_, P>, Box<dyn Error>> {
    let platform = mm.platform();
    let vmas = mm.read();
    let vma = vmas.find(at).ok_or("nothing is mapped there")?;
    let tree = platform.anon_trees().prepare(mm, &vmas, vma)?;
    let mut new = platform.memmap().alloc(2)?;
    new.grow(3)?;
    let folio = new.hand_over();
    folio.set_anon(tree, vma.linear_index(at));
    folio.add_new_anon(mm.id(), Level::Pte, Exclusivity::Exclusive);
    let entry = <A as Arch>::Entry::leaf(folio.head(), A::prot(vma.protection()), Level::Pte);
    let ensured = mm.tables().ensure_table(vmas.stay(), at)?;
    let mut table = ensured.table().ok_or("a PMD leaf is in the way")?;
    table.fill(table.index_of(at), 4, entry);
    mm.counters().add(RssKind::Anon, 4);
    Ok(folio)
}

/// What a fork does to the trees. The entries are another crate's business.
fn fork(parent: &Mm<P>) -> Result<Arc<Mm<P>>, Box<dyn Error>> {
    let child = Mm::new(parent.platform().clone())?;
    let vmas = parent.write();
    for vma in vmas.iter() {
        let copy = vma.clone();
        parent.platform().anon_trees().fork_vma(&child, vma, &copy)?;
        child.write().change().insert(copy)?;
    }
    Ok(child)
}

fn who_maps(folio: Folio<'_, P>, platform: &P) {
    let _lock = folio.lock();
    platform.anon_trees().walk(folio, &mut |mm, visit| {
        let mut walk = MappedWalk::<P, Strict>::new(mm, &visit, folio, Seek::Mappings);
        let mut entries = 0;
        while let Some(hit) = walk.next_hit() {
            entries += match hit {
                Hit::Pmd(_) | Hit::Pte(_) => 1,
            };
        }
        println!("  {:?}: pages from {} on, {entries} entries", mm.id(), visit.va);
        ControlFlow::Continue(())
    });
}

fn main() -> Result<(), Box<dyn Error>> {
    let platform = machine::<A>(ModelConfig::default())?;
    let parent = Mm::new(platform.clone())?;
    let range = VirtRange::new(VirtAddr::new(0x4000), 0x10_000)?;
    parent.write().change().insert(Vma::anonymous(range, VmaFlags::READ | VmaFlags::WRITE, 12))?;

    let old = fault(&parent, VirtAddr::new(0x8000))?;
    let (_first, second) = (fork(&parent)?, fork(&parent)?);
    let grandchild = fork(&second)?;
    let new = fault(&grandchild, VirtAddr::new(0xc000))?;

    println!("the parent's folio may be mapped by everybody:");
    who_maps(old, &platform);
    println!("the grandchild's folio by the grandchild alone:");
    who_maps(new, &platform);
    // The example ends here; a kernel would unmap everything.
    core::mem::forget((parent, grandchild));
    Ok(())
}
