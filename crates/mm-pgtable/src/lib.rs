//! Page tables in memory: views, runs, batch scan, gather.
#![no_std]
