//! Mappings that move, with holes in between.

use crate::known::Known;
use crate::region::{RIGHTS, Region};
use crate::worker::Worker;
use mm_arch::Arch;
use mm_map::{MapError, OldPlace};

const MOVING: Region = Region::Moving;
const HOLE: Known = Known {
    value: 0,
    or_zero: false,
    hole: true,
    protected: false,
    missing: false,
    stored: false,
    lost: false,
    copied: false,
};

impl<A: Arch> Worker<'_, A> {
    /// Pages, and what is known of them, go to other addresses; what was there is gone.
    pub fn move_mapping(&mut self) -> Result<(), String> {
        let (from, nr) = self.any_pages(MOVING, 48);
        let to = self.random.below(MOVING.pages() - nr + 1);
        if from.abs_diff(to) < nr {
            return Ok(());
        }
        let old = self.random.one_of(&[OldPlace::Unmap, OldPlace::Keep]);
        let moved = self.own().mremap_move(MOVING.range((from, nr)), MOVING.va(to), old);
        if self.known(MOVING, from).hole {
            return match moved {
                Err(MapError::BadAddress(_)) => Ok(()),
                other => Err(format!("mremap where nothing is mapped: {other:?}")),
            };
        }
        moved.map_err(|e| format!("mremap: {e} free {}", self.host().frames().nr_free()))?;
        self.done.add("pages moved by mremap", nr);
        for k in 0..nr {
            let page = *self.known(MOVING, from + k);
            *self.known(MOVING, to + k) = page;
            let stays = old == OldPlace::Keep && !page.hole;
            *self.known(MOVING, from + k) = if stays { Known::default() } else { HOLE };
        }
        self.check(MOVING, from)?;
        (to..to + nr).try_for_each(|page| self.check(MOVING, page))
    }
    /// The holes among some pages become empty memory.
    pub fn fill_hole(&mut self) -> Result<(), String> {
        let (first, nr) = self.any_pages(MOVING, 64);
        for page in first..first + nr {
            if self.known(MOVING, page).hole {
                let mapped = self.own().mmap_anon(MOVING.range((page, 1)), RIGHTS);
                mapped.map_err(|e| format!("mmap: {e}"))?;
                *self.known(MOVING, page) = Known::default();
            }
        }
        self.check(MOVING, first)
    }
    pub fn make_hole(&mut self) -> Result<(), String> {
        let (first, nr) = self.any_pages(MOVING, 24);
        self.own().munmap(MOVING.range((first, nr))).map_err(|e| format!("munmap: {e}"))?;
        (first..first + nr).for_each(|page| *self.known(MOVING, page) = HOLE);
        self.check(MOVING, first)
    }
}
