//! get_user_pages and pin_user_pages, slow and fast, in runs.
#![no_std]
