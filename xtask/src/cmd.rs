//! Running other programs: one place that turns "not found" and "exit 1" into
//! errors which name the program.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Why a task could not be carried out or does not hold.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is not installed.
    #[error("`{tool}` not found: {hint}")]
    Missing {
        /// The program.
        tool: String,
        /// How to get it.
        hint: &'static str,
    },
    /// The program ran and failed.
    #[error("`{command}` failed ({status})")]
    Failed {
        /// The command line.
        command: String,
        /// Exit code or signal.
        status: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something read was not as expected.
    #[error("{0}")]
    Input(String),
}

impl Error {
    /// An I/O error with the file that it is about.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { path, source }
    }
}

/// The cargo that runs this task, with `args`.
pub fn cargo(args: &[&str]) -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.args(args);
    c
}

/// Whether `program` can be started at all.
pub fn present(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Runs to the end with inherited output.
pub fn run(c: &mut Command) -> Result<(), Error> {
    eprintln!("+ {}", show(c));
    let status = c.status().map_err(|e| spawn_error(c, &e))?;
    if status.success() { Ok(()) } else { Err(failed(c, status)) }
}

/// Runs to the end; shows standard output only if it failed.
pub fn run_quiet(c: &mut Command) -> Result<(), Error> {
    eprintln!("+ {}", show(c));
    let out = c.stderr(Stdio::inherit()).output().map_err(|e| spawn_error(c, &e))?;
    if out.status.success() {
        return Ok(());
    }
    print!("{}", String::from_utf8_lossy(&out.stdout));
    Err(failed(c, out.status))
}

/// Runs to the end, keeps standard output, lets the rest through.
pub fn output(c: &mut Command) -> Result<Output, Error> {
    let out = c.stderr(Stdio::inherit()).output().map_err(|e| spawn_error(c, &e))?;
    if out.status.success() { Ok(out) } else { Err(failed(c, out.status)) }
}

/// The error for a program that could not be started.
pub fn spawn_error(c: &Command, e: &io::Error) -> Error {
    let tool = c.get_program().to_string_lossy().into_owned();
    match e.kind() {
        io::ErrorKind::NotFound => Error::Missing { tool, hint: "install it or put it on PATH" },
        _ => Error::Failed { command: show(c), status: e.to_string() },
    }
}

fn failed(c: &Command, status: std::process::ExitStatus) -> Error {
    Error::Failed { command: show(c), status: status.to_string() }
}

/// The command line as a person would type it.
pub fn show(c: &Command) -> String {
    let program = PathBuf::from(c.get_program());
    let name = program.file_name().unwrap_or(c.get_program()).to_owned();
    std::iter::once(name.as_os_str())
        .chain(c.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tool_is_named() {
        let e = run(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(e.to_string().contains("`no-such-program-here` not found"), "{e}");
        assert!(!present("no-such-program-here"));
    }

    #[test]
    fn failure_shows_the_command_line() {
        let e = run(Command::new("/bin/sh").args(["-c", "exit 3"])).unwrap_err();
        let text = e.to_string();
        assert!(text.contains("sh -c exit 3") && text.contains('3'), "{text}");
    }
}
