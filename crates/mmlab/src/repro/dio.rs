//! The pin share of O_DIRECT, a user of patch series 002.
//!
//! A read with O_DIRECT pins the pages of its buffer, has the device write to
//! them, and unpins them. Here a job does only the first and the last, with as
//! many blocks in flight as the published jobs had: what is left of them when
//! device, block layer and system calls cost nothing. So the microseconds that one
//! I/O saves can be compared with the published ones, the rates cannot.

use super::line::{Against, Line, Published, Side, print};
use super::request::{Buffer, Loops, Op, Request};
use crate::bed::{Bed, FolioSize};
use crate::report::{in_turns, progress};
use mm_gup::GupFlags;
use mm_sim::Preset;
use mm_vma::VmaFlags;
use serde_json::json;
use std::time::Instant;

/// The buffers of all jobs fit, and folios of all sizes fill it.
const BYTES: u64 = 16 << 20;
/// Reference loops in one measurement.
const LOOPS: usize = 64;
const TITLE: [&str; 5] = [
    "Pin share of O_DIRECT reads (a user of patch series 002): pin and unpin of one block, µs per I/O.",
    "No device, no block layer, no system calls: compare what one I/O saves, not the rate.",
    "Published: fio on a null block device, buffers in 64k folios. Saved: µs per I/O, ours and theirs.",
    "`/loop`: multiple of the reference loop, same run, which takes a block and does not give it back.",
    "runs: best with folio runs as its output instead of one entry per page.",
];

/// A job of fio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Job {
    /// 1 MiB, one at a time.
    M1Sync,
    /// 1 MiB, 16 in flight.
    M1Uring,
    /// 64 KiB, 16 in flight.
    K64Uring,
}

impl Job {
    const ALL: [Job; 3] = [Job::M1Sync, Job::M1Uring, Job::K64Uring];
    const fn name(self) -> &'static str {
        match self {
            Job::M1Sync => "1m psync",
            Job::M1Uring => "1m io_uring, depth 16",
            Job::K64Uring => "64k io_uring, depth 16",
        }
    }
    const fn block_pages(self) -> usize {
        match self {
            Job::M1Sync | Job::M1Uring => 256,
            Job::K64Uring => 16,
        }
    }
    const fn depth(self) -> usize {
        match self {
            Job::M1Sync => 1,
            Job::M1Uring | Job::K64Uring => 16,
        }
    }
    /// I/Os between two looks at the clock: milliseconds of pinning page by page.
    const fn ios(self) -> usize {
        match self {
            Job::M1Sync | Job::M1Uring => 512,
            Job::K64Uring => 4096,
        }
    }
    /// Rates of the published runs, two boots before, one after.
    const fn published(self, size: FolioSize) -> Published {
        match (self, size) {
            (Job::M1Sync, FolioSize::K64) => Published::Rate(&[126.2, 125.6], &[220.6]),
            (Job::M1Uring, FolioSize::K64) => Published::Rate(&[71.2, 71.6], &[112.1]),
            (Job::K64Uring, FolioSize::K64) => Published::Rate(&[50.2, 50.7], &[60.1]),
            _ => Published::Nothing,
        }
    }
    /// Microseconds that one I/O of the published runs saved.
    fn published_saving(self, size: FolioSize) -> Option<f64> {
        let Published::Rate(before, after) = self.published(size) else { return None };
        let us = |rate: &f64| self.block_pages() as f64 * 4096.0 / (rate * 1e3);
        let fastest = before.iter().map(us).fold(f64::INFINITY, f64::min);
        Some(fastest - after.iter().map(us).fold(f64::INFINITY, f64::min))
    }

    /// Microseconds per I/O. As many are in flight as there are `buffers`; when all
    /// are, they are done in order.
    fn run(self, bed: &Bed<()>, request: &Request, buffers: &mut [Buffer]) -> Result<f64, String> {
        let start = Instant::now();
        for _ in 0..self.ios() / buffers.len() {
            for (i, buffer) in buffers.iter_mut().enumerate() {
                request.call(bed, i * self.block_pages(), &(), buffer)?;
            }
            buffers.iter_mut().for_each(|buffer| request.give_back(bed, buffer));
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / self.ios() as f64)
    }
    /// Microseconds per I/O of a reference loop over all blocks in flight: a mean of several,
    /// each of which is short.
    fn reference(self, mut time: impl FnMut() -> Result<f64, String>) -> Result<f64, String> {
        let us: f64 = (0..LOOPS).map(|_| time()).sum::<Result<_, _>>()?;
        Ok(us / (LOOPS * self.depth()) as f64)
    }
}

fn measure(bed: &Bed<()>, size: FolioSize, job: Job, rounds: usize) -> Result<Vec<Line>, String> {
    let mut buffers: Vec<_> = (0..job.depth()).map(|_| Buffer::new(job.block_pages())).collect();
    let all = Request::fast(Op::Pin, GupFlags::WRITE);
    let mut loops = Loops::new(job.block_pages() * job.depth(), size, Op::Pin);
    let [before, series, best, runs, matching, per_page] = in_turns(rounds, |i| match i {
        4 => job.reference(|| loops.matching()),
        5 => job.reference(|| loops.per_page()),
        i => job.run(bed, &all[i].1, &mut buffers),
    })?;
    let block = &mut buffers[0];
    let before = Side::new(&all[0], before, bed, block)?;
    let series = Side::new(&all[1], series, bed, block)?;
    let best = Side::new(&all[2], best, bed, block)?;
    let runs = Side::new(&all[3], runs, bed, block)?;
    let line = |before: &Side, after: Side, published, published_saving: Option<f64>| Line {
        size,
        op: Op::Pin,
        more: vec![
            ("job", json!(job.name())),
            ("share", json!("pin")),
            ("block_bytes", json!(job.block_pages() * 4096)),
            ("saved_us", json!(before.us.median - after.us.median)),
            ("published_saved_us", json!(published_saving)),
        ],
        before: before.clone(),
        after,
        published,
        against: Against { matching, per_page },
    };
    let (rates, saving) = (job.published(size), job.published_saving(size));
    Ok(vec![
        line(&before, series, rates, saving),
        line(&before, best.clone(), rates, saving),
        line(&best, runs, Published::Nothing, None),
    ])
}

/// Measures and prints the table.
pub fn main(rounds: usize, as_json: bool) -> Result<(), String> {
    let bar = progress("dio", (FolioSize::ALL.len() * Job::ALL.len()) as u64);
    let mut lines = Vec::new();
    for size in FolioSize::ALL {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        let bed = Bed::new(BYTES, Some(size), None, rights, Preset::Linux618.policy())?;
        for job in Job::ALL {
            lines.extend(measure(&bed, size, job, rounds)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let more = [("job", "job"), ("saved_us", "saved"), ("published_saved_us", "published")];
    print("dio", &TITLE, &lines, &more, as_json);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_io_saved_comes_from_the_better_boot() {
        let saved = |job: Job| job.published_saving(FolioSize::K64).expect("published");
        assert_eq!(format!("{:.2}", saved(Job::M1Sync)), "3.56");
        assert_eq!(format!("{:.2}", saved(Job::K64Uring)), "0.20");
        assert_eq!(Job::M1Sync.published_saving(FolioSize::M1), None);
    }

    #[test]
    fn all_jobs_fit_into_the_region() {
        for job in Job::ALL {
            assert!((job.block_pages() * job.depth() * 4096) as u64 <= BYTES, "{job:?}");
            assert_eq!(job.ios() % job.depth(), 0, "{job:?}");
        }
    }
}
