//! Children, and children of children, that share memory with the thread's process.

use crate::known::{Got, Known, load, store};
use crate::region::Region;
use crate::worker::Worker;
use mm_arch::Arch;
use mm_sim::Process;
use std::sync::Arc;

/// A child, and what its private memory was at the fork.
pub struct Child<A: Arch> {
    process: Arc<Process<A>>,
    known: [Vec<Known>; Region::PRIVATE.len()],
}

impl<A: Arch> Worker<'_, A> {
    pub fn fork(&mut self) -> Result<(), String> {
        if self.children.len() >= 2 {
            self.forget_child()?;
        }
        let of_child = self.random.once_in(3);
        let parent = self.children.last().filter(|_| of_child);
        let Ok(mut process) = parent.map_or(self.own(), |child| &child.process).fork() else {
            return Ok(());
        };
        let known = match parent {
            Some(child) => child.known.clone(),
            // Userfaultfd does not follow, and nobody asks what the child stores to.
            None => Region::PRIVATE.map(|region| {
                let inherited = |page: &Known| Known { protected: false, missing: false, ..*page };
                self.all_known(region).iter().map(inherited).collect()
            }),
        };
        process.run_on(self.random.below(crate::THREADS as u64) as usize);
        let process = Arc::new(process);
        self.world.add_child(&process);
        self.done.add("forks", 1);
        let mut child = Child { process, known };
        for _ in 0..8 {
            let region = self.random.one_of(&Region::PRIVATE);
            let page = self.random.below(region.pages());
            self.check_child(&mut child, region, page)?;
            self.change_child(&mut child, region, page)?;
            // The parent's is another one.
            self.check(region, page)?;
        }
        // What both share changes for both, and what the parent marked stays so.
        let region = self.random.one_of(&Region::SHARED);
        let (page, at) = (self.random.below(region.pages()), region);
        let (at, value) = (self.at(at, page), self.value(region, page));
        if store(&child.process, at, value)? == Got::Done(()) {
            let known = self.known(region, page);
            (known.value, known.lost) = (value, false);
        }
        self.check(region, page)?;
        self.children.push(child);
        Ok(())
    }
    pub fn forget_child(&mut self) -> Result<(), String> {
        let Some(mut child) = self.children.pop() else { return Ok(()) };
        for region in Region::PRIVATE {
            for page in 0..region.pages() {
                self.check_child(&mut child, region, page)?;
            }
        }
        self.world.remove_child(&child.process);
        Ok(())
    }

    fn check_child(&self, child: &mut Child<A>, region: Region, page: u64) -> Result<(), String> {
        let got = load(&child.process, self.at(region, page))?;
        let known = of_child(child, region, page);
        match got {
            Got::Done(_) if known.hole => Err("nothing is mapped there".to_owned()),
            Got::Done(got) => known.judge(got),
            Got::Segv if known.hole => Ok(()),
            Got::Bus if self.world.reads_fail => Ok(()),
            Got::Bus | Got::Segv => Err(format!("{got:x?}, not {known:x?}")),
        }
        .map_err(|e| format!("a child, {region:?} page {page}: {e}"))
    }
    fn change_child(
        &mut self,
        child: &mut Child<A>,
        region: Region,
        page: u64,
    ) -> Result<(), String> {
        let value = self.value(region, page);
        let got = store(&child.process, self.at(region, page), value)?;
        let known = of_child(child, region, page);
        if got == Got::Done(()) && !known.hole {
            *known = Known { value, or_zero: false, ..*known };
        }
        Ok(())
    }
}

fn of_child<A: Arch>(child: &mut Child<A>, region: Region, page: u64) -> &mut Known {
    let at = Region::PRIVATE.iter().position(|r| *r == region).unwrap_or(0);
    &mut child.known[at][page as usize]
}
