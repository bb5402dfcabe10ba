//! VMAs, address spaces and the traits a kernel implements.
#![no_std]
