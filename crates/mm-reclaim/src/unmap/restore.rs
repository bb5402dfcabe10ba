//! Entries that are gone, and whose fate is not decided.

use crate::E;
use core::num::NonZeroU32;
use mm_arch::{Entry, Flush};
use mm_pgtable::{ClearedRun, LockedTable, Run, TableSpace};
use mm_vma::Platform;

/// The entries of one step, taken out of their table: they stay gone, become something
/// non-present, or come back. Dropping this brings them back, never with more rights and
/// never with less dirt (rule UNMAP-18).
#[must_use = "dropping this maps the pages again"]
pub(crate) struct Taken<'t, 'g, P: Platform> {
    kind: Kind<'t, 'g, P>,
    /// The number of entries: fresh for every step (rule UNMAP-16).
    n: NonZeroU32,
}

enum Kind<'t, 'g, P: Platform> {
    Run(ClearedRun<'t, 'g, P>),
    Device(Device<'t, 'g, P>),
}

/// An entry of memory that a device uses: hardware has no part in it.
struct Device<'t, 'g, P: Platform> {
    table: &'t mut LockedTable<'g, P>,
    index: usize,
    old: E<P>,
    decided: bool,
}

impl<P: Platform> Drop for Device<'_, '_, P> {
    fn drop(&mut self) {
        if !self.decided {
            self.table.set(self.index, self.old);
        }
    }
}

impl<'t, 'g, P: Platform> Taken<'t, 'g, P> {
    /// Takes a run of present entries (rule UNMAP-10).
    pub fn run(
        table: &'t mut LockedTable<'g, P>,
        run: Run<'_>,
        owed: &mut Flush<'_, <P as TableSpace>::Tlb>,
    ) -> Self {
        let n = run.count();
        Taken { kind: Kind::Run(table.clear(run, owed)), n }
    }
    /// Takes one entry of device memory, whatever is beside it (rule UNMAP-06).
    pub fn device(table: &'t mut LockedTable<'g, P>, index: usize, old: E<P>) -> Self {
        table.set(index, E::<P>::NONE);
        let kind = Kind::Device(Device { table, index, old, decided: false });
        Taken { kind, n: NonZeroU32::MIN }
    }
    /// The first entry, with young and dirty of all merged in.
    pub fn entry(&self) -> E<P> {
        match &self.kind {
            Kind::Run(cleared) => cleared.entry(),
            Kind::Device(device) => device.old,
        }
    }
    /// How many entries there are.
    pub fn n(&self) -> NonZeroU32 {
        self.n
    }
    /// They stay gone.
    pub fn commit(self) {
        match self.kind {
            Kind::Run(cleared) => drop(cleared.commit()),
            Kind::Device(mut device) => device.decided = true,
        }
    }
    /// Entry `k` becomes `with(k)`, which is not present.
    pub fn replace(self, with: impl Fn(u32) -> E<P>) {
        match self.kind {
            Kind::Run(cleared) => cleared.replace(|k| with(k as u32)),
            Kind::Device(mut device) => {
                device.table.set(device.index, with(0));
                device.decided = true;
            }
        }
    }
    /// They come back.
    pub fn restore(self) {}
}
