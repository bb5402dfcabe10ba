//! fork, zap, munmap, mprotect, madvise.
#![no_std]
