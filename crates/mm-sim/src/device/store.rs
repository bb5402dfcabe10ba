//! What keeps the pages of a file: hardware, whose memory is the host's.

use super::FileError;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

/// A device that holds the pages of one file.
#[derive(Debug)]
pub(super) enum Store {
    /// Pages that were written; the others are holes.
    Memory(BTreeMap<u64, Box<[u64]>>),
    /// A file of the host.
    Host(std::fs::File),
}

impl Store {
    /// Reads a page, and hands out each of its words with its number.
    pub fn read(
        &self,
        index: u64,
        words: usize,
        mut each: impl FnMut(usize, u64),
    ) -> Result<(), FileError> {
        match self {
            Store::Memory(pages) => {
                let page = pages.get(&index);
                (0..words).for_each(|w| each(w, page.map_or(0, |page| page[w])));
                Ok(())
            }
            Store::Host(file) => {
                let mut bytes = vec![0u8; words * 8];
                let mut got = 0;
                // What is behind the end reads as zero.
                while got < bytes.len() {
                    let at = index * bytes.len() as u64 + got as u64;
                    match file.read_at(&mut bytes[got..], at) {
                        Ok(0) => break,
                        Ok(n) => got += n,
                        Err(_) => return Err(FileError::Io),
                    }
                }
                for (w, bytes) in bytes.chunks_exact(8).enumerate() {
                    each(w, u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
                }
                Ok(())
            }
        }
    }
    /// Writes a page.
    pub fn write(
        &mut self,
        index: u64,
        page: impl ExactSizeIterator<Item = u64>,
    ) -> Result<(), FileError> {
        match self {
            Store::Memory(pages) => {
                pages.insert(index, page.collect());
                Ok(())
            }
            Store::Host(file) => {
                let bytes: Vec<u8> = page.flat_map(u64::to_le_bytes).collect();
                file.write_all_at(&bytes, index * bytes.len() as u64).map_err(|_| FileError::Io)
            }
        }
    }
    /// Makes the pages `first..end` holes.
    pub fn clear(&mut self, first: u64, end: u64, words: usize) -> Result<(), FileError> {
        match self {
            Store::Memory(pages) => {
                pages.retain(|index, _| !(first..end).contains(index));
                Ok(())
            }
            Store::Host(file) => {
                let bytes = words as u64 * 8;
                let len = file.metadata().map_err(|_| FileError::Io)?.len();
                if end.saturating_mul(bytes) >= len {
                    return file.set_len(first * bytes).map_err(|_| FileError::Io);
                }
                (first..end).try_for_each(|index| self.write(index, (0..words).map(|_| 0)))
            }
        }
    }
}
