//! Userfaultfd puts pages where none are, and moves them.

use crate::known::Known;
use crate::region::Region;
use crate::worker::Worker;
use mm_arch::{Arch, VirtAddr};
use mm_map::{Advice, Comes, MapError, MoveHoles};

const FILLED: Region = Region::Filled;

impl<A: Arch> Worker<'_, A> {
    fn page_at(va: VirtAddr) -> Option<u64> {
        Region::at(va).and_then(|(region, page)| (region == FILLED).then_some(page))
    }
    /// Puts pages in, up to the first that is there.
    pub fn fill(&mut self) -> Result<(), String> {
        let (first, nr) = self.any_pages(FILLED, 16);
        let values: Vec<_> = (0..nr).map(|k| self.value(FILLED, first + k)).collect();
        let offsets: Vec<_> = (0..nr).map(|k| self.offset(FILLED, first + k)).collect();
        let word = |k: u64, w: usize| {
            if offsets[k as usize] == w as u64 * 8 { values[k as usize] } else { 0 }
        };
        let done = self.own().uffd_copy(FILLED.range((first, nr)), Comes::Plain, word);
        let filled = match done {
            Ok(()) => nr,
            Err(MapError::Exists(range)) => Self::page_at(range.start())
                .and_then(|page| page.checked_sub(first))
                .filter(|k| *k < nr && !self.known(FILLED, first + k).missing)
                .ok_or_else(|| format!("nothing is there: {done:?}"))?,
            Err(e) => return Err(format!("UFFDIO_COPY: {e}")),
        };
        self.done.add("pages filled", filled);
        for k in 0..filled {
            let page = first + k;
            if !self.known(FILLED, page).missing {
                return Err(format!("Filled page {page} is filled, and was not missing"));
            }
            *self.known(FILLED, page) = Known { value: values[k as usize], ..Known::default() };
        }
        self.check(FILLED, first)
    }
    /// Moves pages where none are, up to the first that does not go.
    pub fn move_pages(&mut self) -> Result<(), String> {
        let (from, nr) = self.any_pages(FILLED, 16);
        let to = self.random.below(FILLED.pages() - nr + 1);
        if from.abs_diff(to) < nr {
            return Ok(());
        }
        let holes = self.random.one_of(&[MoveHoles::Skip, MoveHoles::Refuse]);
        let done = self.own().uffd_move(FILLED.va(to), FILLED.range((from, nr)), holes);
        let at = match done {
            Ok(()) => None,
            Err(MapError::Busy(va) | MapError::Again(va) | MapError::NotRegistered(va)) => Some(va),
            Err(MapError::Exists(range)) => Some(range.start()),
            // The page is lost.
            Err(MapError::BadAddress(va)) if self.world.reads_fail => Some(va),
            Err(e) => return Err(format!("UFFDIO_MOVE: {e}")),
        };
        let moved = match at.map(|va| Self::page_at(va).ok_or(va)) {
            None => nr,
            Some(Ok(page)) if (from..from + nr).contains(&page) => page - from,
            Some(Ok(page)) if (to..to + nr).contains(&page) => page - to,
            Some(page) => return Err(format!("UFFDIO_MOVE ends at {page:?}")),
        };
        match done {
            Err(MapError::Exists(_)) if self.known(FILLED, to + moved).missing => {
                return Err(format!("Filled page {} is there", to + moved));
            }
            Err(MapError::NotRegistered(_)) if !self.known(FILLED, from + moved).missing => {
                return Err(format!("Filled page {} is not there", from + moved));
            }
            _ => {}
        }
        for k in 0..moved {
            let page = *self.known(FILLED, from + k);
            if page.missing {
                continue;
            }
            if !self.known(FILLED, to + k).missing {
                return Err(format!("a page moved to Filled page {}, which is there", to + k));
            }
            *self.known(FILLED, to + k) = page;
            *self.known(FILLED, from + k) = Known { missing: true, ..Known::default() };
            self.done.add("pages moved by userfaultfd", 1);
            self.check(FILLED, to + k)?;
        }
        Ok(())
    }
    pub fn empty(&mut self) -> Result<(), String> {
        let (first, nr) = self.any_pages(FILLED, 24);
        let done = self.own().madvise(FILLED.range((first, nr)), Advice::DontNeed);
        done.map_err(|e| format!("DONTNEED: {e}"))?;
        for page in first..first + nr {
            *self.known(FILLED, page) = Known { missing: true, ..Known::default() };
        }
        Ok(())
    }
}
