//! `cargo xtask no-std`: the library crates need no std and no libc.
//!
//! Building a `no_std` library proves little, since std may still sit somewhere
//! in its graph. So `xtask/nostd-proof` is a program with its own entry point,
//! panic handler and allocator, linked statically against every library crate
//! and nothing else. Std anywhere in the graph is a duplicate lang item for
//! rustc, a hidden libc call is an undefined symbol for the linker. Then the
//! program runs and must exit with 0.

use std::path::Path;
use std::process::Command;

use crate::cmd::{self, Error};
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Rust flags of a program without a C runtime to relocate it.
const FLAGS: &str =
    "-Crelocation-model=static -Clink-arg=-nostartfiles -Clink-arg=-nostdlib -Clink-arg=-static";

/// Runs the task.
pub fn run(ws: &Workspace) -> Result<Outcome, Error> {
    if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return Ok(Outcome::Skipped(
            "the entry point is written for Linux on x86-64 and arm64".into(),
        ));
    }
    let dir = ws.root.join("xtask/nostd-proof");
    let target = ws.target.join("nostd-proof");
    let host = host()?;
    // With a target named, the flags reach the program but not the build scripts.
    let mut c = cmd::cargo(&["build", "--quiet", "--release", "--target", &host]);
    c.current_dir(&dir).env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", &target);
    cmd::run(&mut c)?;
    let exe = target.join(host).join("release/nostd-proof");
    cmd::run(&mut Command::new(&exe))?;
    interpreter(&exe)
}

/// The triple of this machine.
fn host() -> Result<String, Error> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let out = cmd::output(Command::new(rustc).arg("-vV"))?;
    parse_host(&String::from_utf8_lossy(&out.stdout))
        .ok_or_else(|| Error::Input("`rustc -vV` names no host".into()))
}

fn parse_host(text: &str) -> Option<String> {
    text.lines().find_map(|l| l.strip_prefix("host: ")).map(str::to_owned)
}

/// A program that asks for a dynamic loader was not linked statically.
fn interpreter(exe: &Path) -> Result<Outcome, Error> {
    let bytes = std::fs::read(exe).map_err(Error::file(exe))?;
    Ok(if has_interpreter(&bytes) {
        Outcome::Failed("the binary asks for a dynamic loader".into())
    } else {
        Outcome::Ok(format!("{} KiB, exit 0", bytes.len() / 1024))
    })
}

/// Whether an ELF64 little-endian file has a PT_INTERP segment.
fn has_interpreter(elf: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let u16_at = |at: usize| {
        elf.get(at..at + 2).map_or(0, |b| usize::from(u16::from_le_bytes([b[0], b[1]])))
    };
    let u32_at =
        |at: usize| elf.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let (offset, size, count) = (u32_at(0x20) as usize, u16_at(0x36), u16_at(0x38));
    (0..count).any(|i| u32_at(offset + i * size) == PT_INTERP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_read() {
        let text = "rustc 1.95.0\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\n";
        assert_eq!(parse_host(text).as_deref(), Some("x86_64-unknown-linux-gnu"));
        assert_eq!(parse_host("rustc 1.95.0\n"), None);
    }

    #[test]
    fn a_test_binary_has_an_interpreter_and_a_header_alone_has_none() {
        let me = std::env::current_exe().expect("path");
        let bytes = std::fs::read(me).expect("readable");
        if cfg!(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")) {
            assert!(has_interpreter(&bytes));
        }
        assert!(!has_interpreter(&bytes[..0x40]));
        assert!(!has_interpreter(&[]));
    }
}
